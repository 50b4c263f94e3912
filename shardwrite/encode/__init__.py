"""Encoding of source arrays into inner chunks, and reading of stored shards."""
