"""Arrays in files of many formats, with one common protocol."""

from shardwrite.sources.base import Source
from shardwrite.sources.formats import FORMATS, Format, register_format
from shardwrite.sources.lazy import as_dask
from shardwrite.sources.registry import open_source

__all__ = ["FORMATS", "Format", "Source", "as_dask", "open_source", "register_format"]
