"""Read existing arrays: their values, their shard indexes, and a comparison with a source."""
