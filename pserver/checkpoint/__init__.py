"""Tables on disk: versions of one instant, deltas, loading on any number of shards, export."""
