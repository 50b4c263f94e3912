"""Writing of slices into a sharded array as an instrument delivers them."""

from shardwrite.stream.report import StreamReport
from shardwrite.stream.writer import ShardWriter

__all__ = ["ShardWriter", "StreamReport"]
