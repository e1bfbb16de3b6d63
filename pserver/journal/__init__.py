"""The journal of one shard: what changed its state, in order, on a disk."""
