"""Dask-parallel batch writer of sharded Zarr v3 arrays.

Importing shardwrite gives every `dask.array.Array` the method ``to_sharded_zarr``;
``shardwrite.to_sharded_zarr(x, ...)`` is the same as a function.
"""

import dask.array as _dask_array

from shardwrite import errors
from shardwrite._version import __version__
from shardwrite.codecs import CHUNK_LIMIT as _CHUNK_LIMIT
from shardwrite.codecs import ask_for_chunk_limit as _ask_for_chunk_limit
from shardwrite.errors import *  # noqa: F403 (every error is public)
from shardwrite.format.strategies import AppendOnly, FixedOrder
from shardwrite.operations.compact import Compaction, compact
from shardwrite.operations.create import create
from shardwrite.operations.parts import finalize, prepare, write_part
from shardwrite.operations.region import abandon, erase, plan_region, write_region
from shardwrite.operations.repair import Repair, repair
from shardwrite.operations.verify import Report, census, verify
from shardwrite.operations.write import store, to_sharded_zarr
from shardwrite.picture import Census
from shardwrite.plan import Part, Plan
from shardwrite.read.array import from_sharded_zarr, open_sharded
from shardwrite.runs.array_plan import plan
from shardwrite.runs.result import WriteResult
from shardwrite.stores import configured_nbytes as _configured_nbytes
from shardwrite.stream import ShardWriter, StreamReport

_ask_for_chunk_limit(lambda: _configured_nbytes("chunk-limit", _CHUNK_LIMIT))
setattr(_dask_array.Array, "to_sharded_zarr", to_sharded_zarr)  # noqa: B010 (mypy knows no such attribute)

__all__ = [
    "AppendOnly",
    "Census",
    "Compaction",
    "FixedOrder",
    "Part",
    "Plan",
    "Repair",
    "Report",
    "ShardWriter",
    "StreamReport",
    "WriteResult",
    "__version__",
    "abandon",
    "census",
    "compact",
    "create",
    "erase",
    "finalize",
    "from_sharded_zarr",
    "open_sharded",
    "plan",
    "plan_region",
    "prepare",
    "repair",
    "store",
    "to_sharded_zarr",
    "verify",
    "write_part",
    "write_region",
    *errors.__all__,
]
