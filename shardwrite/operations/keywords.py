"""Types of the keywords that functions share, for type checkers.

A function that returns something else with ``compute=False`` or ``return_stored=True`` has an
overload for each case. The overloads take their other keywords from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

from shardwrite.format.manifest import Manifest
from shardwrite.plan import Sized
from shardwrite.write.context import GroupReport


class _Common(TypedDict, total=False):
    axis: int
    casting: str
    strategy: Any
    write_empty_chunks: bool
    durability: str | None
    run_dir: Any
    restart: bool
    recheck: bool
    keep_report: bool
    memory_limit: int | str | None
    source_id: str | None
    max_graph_tasks: int
    progress: bool | Callable[[GroupReport], None]
    via: Any
    message: str | None
    exclusive: bool


class RegionKeywords(_Common, total=False):
    """Keywords of `write_region`."""

    name: str | None
    drop_hdf5: bool


class _OfArrays(_Common, total=False):
    shards: Sized | Mapping[str, Any]
    chunks: Sized
    compressors: Any
    filters: Any
    serializer: Any
    fill_value: Any
    index_location: str
    index_codecs: Any
    shard_format: Any
    chunk_key_encoding: Any
    dimension_names: Sequence[str | None] | None
    attributes: Any
    order: str | None
    zarr_format: int | None
    format: str | None
    manifest: Manifest
    mode: str | None
    overwrite: bool | None
    zarr_array_kwargs: Mapping[str, Any] | None
    publish: str
    compression_ratio: float | None
    max_source_reruns: float


class WriteKeywords(_OfArrays, total=False):
    """Keywords of `to_sharded_zarr`."""

    name: str | None
    region: Any


class StoreKeywords(_OfArrays, total=False):
    """Keywords of `store`."""

    names: Sequence[str | None] | None
    regions: Any
    storage_options: Mapping[str, Any] | None
