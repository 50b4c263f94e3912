"""Arrays in files of many formats, with one common protocol."""

from shardwrite.sources.base import Source
from shardwrite.sources.lazy import as_dask
from shardwrite.sources.registry import FORMATS, open_source

__all__ = ["FORMATS", "Source", "as_dask", "open_source"]
