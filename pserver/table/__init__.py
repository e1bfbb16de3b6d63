"""Tables: what a shard holds. The owner thread alone comes in here; no network, no torch."""
