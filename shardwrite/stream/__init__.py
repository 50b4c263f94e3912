"""Slices as an instrument gives them, into a sharded array."""

from shardwrite.stream.report import StreamReport
from shardwrite.stream.writer import ShardWriter

__all__ = ["ShardWriter", "StreamReport"]
