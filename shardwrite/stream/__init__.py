"""Writing of slices into a sharded array as an instrument delivers them."""

from shardwrite.stream.writer import ShardWriter, StreamReport

__all__ = ["ShardWriter", "StreamReport"]
