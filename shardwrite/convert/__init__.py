"""Conversions: arrays and trees that exist into other shards, in place, and to and from buckets."""
