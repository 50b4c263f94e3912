"""Arrays in files of many formats, with one common protocol."""

from shardwrite.read.source import as_dask
from shardwrite.sources.base import Source, SourceMetadata
from shardwrite.sources.decoded import decoded
from shardwrite.sources.formats import FORMATS, Format, register_format
from shardwrite.sources.registry import open_source

__all__ = [
    "FORMATS",
    "Format",
    "Source",
    "SourceMetadata",
    "as_dask",
    "decoded",
    "open_source",
    "register_format",
]
