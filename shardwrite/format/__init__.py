"""Metadata, shard indexes, and the order and placement of inner chunks in a shard."""
