"""The server side of a shard: event loop, owner thread, memory of applied pushes."""
