"""Metadata, formats of shards and their indexes, and the strategies that place inner chunks."""
