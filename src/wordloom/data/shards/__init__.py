"""Token shards: text encoded once and memory-mapped."""
