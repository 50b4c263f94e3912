"""Chunks of a convenient size that respect the layout of a file, as sources of files take them."""

from shardwrite.read.chunking import merge_chunks, slabs

__all__ = ["merge_chunks", "slabs"]
