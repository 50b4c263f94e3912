"""Arrays in files of many formats, with one common protocol."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.read.source import as_dask
    from shardwrite.sources.base import Source, SourceMetadata
    from shardwrite.sources.registry import FORMATS, Format, decoded, open_source, register_format
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.read.source": ("as_dask",),
            "shardwrite.sources.base": (
                "Source",
                "SourceMetadata",
            ),
            "shardwrite.sources.registry": (
                "FORMATS",
                "Format",
                "decoded",
                "open_source",
                "register_format",
            ),
        },
    )

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
