"""Dask-parallel batch writer of sharded Zarr v3 arrays.

Importing shardwrite gives every `dask.array.Array` the methods ``to_sharded_zarr`` and
``to_precomputed``; ``shardwrite.to_sharded_zarr(x, ...)`` is the same as a function. Objects of
xarray get the accessor ``shardwrite``, as in ``ds.shardwrite.to_zarr(...)``.
"""

from importlib import import_module as _import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardwrite import errors
from shardwrite._lazy import LateMethod, attach, when_imported
from shardwrite.config.table import PREFIX as _PREFIX
from shardwrite.config.table import Setting as _Setting
from shardwrite.config.table import as_tree as _as_tree
from shardwrite.config.table import use as _use
from shardwrite.errors import *  # noqa: F403 (every error is public)
from shardwrite.seams import register as _register

_SCALE = "neuroglancer_uint64_sharded_v1"
# What the wings bring: of which kind, by which name, and where it lies in this package.
for _kind, _name, _place in (
    ("abandon", "in place", "convert.in_place:abandon_in_place"),
    ("place", "file", "sources.opening:place_of"),
    ("document", "v2", "legacy.v2:translated"),
    ("format", "transformer-2022", "legacy.transformer:FORMAT_OF_2022"),
    ("hierarchy", "transformer-2022", "legacy.place:place_in"),
    ("source in hierarchy", "transformer-2022", "legacy.source:open_in_hierarchy"),
    ("deep check", "hdf5", "hdf5.shards:why_unreadable"),
    ("file as a store", "hdf5", "hdf5.reading:Hdf5Store"),
    ("file as a store", "zip", "legacy.zip:ZippedStore"),
    ("framing", "hdf5", "hdf5.shards:Hdf5Framing"),
    ("new index", "hdf5", "hdf5.salvage:index_again"),
    ("old shard", "hdf5", "hdf5.shards:strategy_of"),
    ("strategy", "hdf5", "hdf5.strategy:Hdf5"),
    ("foreign", "volume", "volumes.reading:refuse_volume"),
    ("give up", "scale", "volumes.hashed:abandon_scale"),
    ("not whole", "scale", "volumes.hashed:refuse_waiting"),
    ("serializer", "neuroglancer_compressed_segmentation", "volumes.codecs:VolumeSerializer"),
    ("serializer", "neuroglancer_jpeg", "volumes.codecs:VolumeSerializer"),
    ("serializer", "neuroglancer_png", "volumes.codecs:VolumeSerializer"),
    ("shard-format", _SCALE, "volumes.scale:PrecomputedShards"),
    ("source axes", _SCALE, "volumes.new:source_axes"),
    ("steps", _SCALE, "volumes.hashed:ScaleSteps"),
    ("unfinished", "scale", "volumes.hashed:is_abandonable"),
    ("report", "run", "show.make_report:report_file"),
    ("view", "bar", "show.bar:in_notebook"),
    ("view", "card", "show.html:card_html"),
    ("view", "census", "show.page:fragment"),
    ("job", "slurm", "slurm.notes:note_job"),
    ("job", "over", "slurm.client:over"),
    ("opener", "write strategy", "format.strategies:strategy_opener"),
    ("opener", "shard format", "format.sharding:shard_format_opener"),
    ("opener", "source", "sources.registry:source_opener"),
):
    _register(_kind, _name, f"{__name__}.{_place}")

if TYPE_CHECKING:
    from shardwrite._version import __version__
    from shardwrite.convert.convert import (
        plan_reshard,
        reshard,
        shard,
        shard_store,
        unshard,
        unshard_store,
    )
    from shardwrite.convert.parts import convert_part, finalize_conversion, prepare_conversion
    from shardwrite.convert.plan import Conversion, ConversionPlan
    from shardwrite.convert.transfer import download, plan_transfer, upload
    from shardwrite.convert.transferring import Transfer, TransferPlan
    from shardwrite.datasets.patch import XarrayPatch, patch_xarray
    from shardwrite.datasets.planned import DatasetPlan
    from shardwrite.datasets.write import DatasetResult, plan_dataset, write_dataset
    from shardwrite.format.sharding import register_shard_format
    from shardwrite.format.strategies import AppendOnly, FixedOrder, register_strategy
    from shardwrite.hdf5.adopt import Adopted, adopt
    from shardwrite.hdf5.strategy import Hdf5
    from shardwrite.legacy.view import transformer_view
    from shardwrite.operations.compact import Compaction, compact
    from shardwrite.operations.dask_patch import DaskPatch, patch_dask
    from shardwrite.operations.design import Design, design
    from shardwrite.operations.parts import finalize, prepare, write_part
    from shardwrite.operations.plan import plan
    from shardwrite.operations.read import from_sharded_zarr, present
    from shardwrite.operations.recover import Recovery, recover
    from shardwrite.operations.region import abandon, erase, plan_region, write_region
    from shardwrite.operations.repair import Repair, repair
    from shardwrite.operations.report import Report
    from shardwrite.operations.verify import census, verify
    from shardwrite.operations.write import create, store, to_sharded_zarr
    from shardwrite.plan.plan import Part, Plan
    from shardwrite.read.array import open_sharded
    from shardwrite.read.cached_store import CachedStore
    from shardwrite.read.census import Census
    from shardwrite.read.present import PresentChunks
    from shardwrite.runs.result import VolumeResult, WriteResult
    from shardwrite.show.make_report import report
    from shardwrite.show.report import RunReport
    from shardwrite.stream.writer import ShardWriter, StreamReport
    from shardwrite.volumes.precomputed import plan_precomputed, to_precomputed
    from shardwrite.volumes.sharding import ShardingParameters
    from shardwrite.volumes.source import from_precomputed
    from shardwrite.volumes.uint64_shards import UInt64Report, UInt64Shards, UInt64Written
else:
    # `shardwrite.plan` is the function. The folder of that name is imported here and unbound, so
    # that no later import binds it to the name.
    from shardwrite import plan

    del plan
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite._version": ("__version__",),
            "shardwrite.hdf5.strategy": ("Hdf5",),
            "shardwrite.volumes.sharding": ("ShardingParameters",),
            "shardwrite.format.strategies": ("register_strategy", "AppendOnly", "FixedOrder"),
            "shardwrite.format.sharding": ("register_shard_format",),
            "shardwrite.hdf5.adopt": ("adopt", "Adopted"),
            "shardwrite.operations.compact": ("Compaction", "compact"),
            "shardwrite.convert.plan": ("Conversion", "ConversionPlan"),
            "shardwrite.convert.convert": (
                "plan_reshard",
                "reshard",
                "shard",
                "unshard",
                "shard_store",
                "unshard_store",
            ),
            "shardwrite.convert.parts": (
                "convert_part",
                "finalize_conversion",
                "prepare_conversion",
            ),
            "shardwrite.datasets.patch": ("XarrayPatch", "patch_xarray"),
            "shardwrite.datasets.planned": ("DatasetPlan",),
            "shardwrite.datasets.write": ("DatasetResult", "plan_dataset", "write_dataset"),
            "shardwrite.operations.dask_patch": ("DaskPatch", "patch_dask"),
            "shardwrite.operations.design": ("Design", "design"),
            "shardwrite.operations.parts": ("finalize", "prepare", "write_part"),
            "shardwrite.operations.plan": ("plan",),
            "shardwrite.volumes.precomputed": ("plan_precomputed", "to_precomputed"),
            "shardwrite.operations.read": ("present", "from_sharded_zarr"),
            "shardwrite.operations.recover": ("Recovery", "recover"),
            "shardwrite.operations.region": ("abandon", "erase", "plan_region", "write_region"),
            "shardwrite.operations.repair": ("Repair", "repair"),
            "shardwrite.operations.report": ("Report",),
            "shardwrite.show.make_report": ("report",),
            "shardwrite.convert.transfer": ("download", "plan_transfer", "upload"),
            "shardwrite.convert.transferring": ("Transfer", "TransferPlan"),
            "shardwrite.legacy.view": ("transformer_view",),
            "shardwrite.volumes.uint64_shards": ("UInt64Report", "UInt64Written", "UInt64Shards"),
            "shardwrite.operations.verify": ("census", "verify"),
            "shardwrite.operations.write": ("create", "store", "to_sharded_zarr"),
            "shardwrite.read.cached_store": ("CachedStore",),
            "shardwrite.read.census": ("Census",),
            "shardwrite.read.present": ("PresentChunks",),
            "shardwrite.plan.plan": ("Part", "Plan"),
            "shardwrite.read.array": ("open_sharded",),
            "shardwrite.show.report": ("RunReport",),
            "shardwrite.runs.result": ("VolumeResult", "WriteResult"),
            "shardwrite.volumes.source": ("from_precomputed",),
            "shardwrite.stream.writer": ("StreamReport", "ShardWriter"),
        },
        modules=(
            "shardwrite.encode",
            "shardwrite.engines",
            "shardwrite.format",
            "shardwrite.grid",
            "shardwrite.host",
            "shardwrite.journal",
            "shardwrite.operations",
            "shardwrite.place",
            "shardwrite.read",
            "shardwrite.runs",
            "shardwrite.sources",
            "shardwrite.stores",
            "shardwrite.stream",
            "shardwrite.write",
        ),
    )


def _look(setting: _Setting[Any]) -> Any:
    configuration = _import_module("shardwrite.host.dask_config")
    _use(configuration.look, configuration.where)  # from now on, without this detour
    return configuration.look(setting)


def _where(setting: _Setting[Any]) -> str:
    found: str = _import_module("shardwrite.host.dask_config").where(setting)
    return found


def _add_defaults(dask_config: ModuleType) -> None:
    given = dask_config.merge({_PREFIX: dask_config.config.get(_PREFIX)})
    dask_config.update_defaults(_as_tree())
    if given[_PREFIX] is not None:  # a value where defaults are a tree is kept, and refused
        dask_config.update(dask_config.config, given)


def _add_method(dask_array: ModuleType) -> None:
    for name in ("to_precomputed", "to_sharded_zarr"):
        setattr(dask_array.Array, name, LateMethod(__name__, name))


def _accessor(given: Any) -> Any:
    return _import_module("shardwrite.datasets.accessor").Accessor(given)


def _add_accessors(xarray: ModuleType) -> None:
    for name in ("Dataset", "DataArray", "DataTree"):
        kind = getattr(xarray, name, None)  # old versions have no trees
        if kind is not None and not hasattr(kind, "shardwrite"):  # this package may be reloaded
            getattr(xarray, f"register_{name.lower()}_accessor")("shardwrite")(_accessor)


_use(_look, _where)
when_imported("dask.config", _add_defaults)
when_imported("dask.array", _add_method)
when_imported("xarray", _add_accessors)

__all__ = [
    "Adopted",
    "AppendOnly",
    "CachedStore",
    "Census",
    "Compaction",
    "Conversion",
    "ConversionPlan",
    "DaskPatch",
    "DatasetPlan",
    "DatasetResult",
    "Design",
    "FixedOrder",
    "Hdf5",
    "Part",
    "Plan",
    "PresentChunks",
    "Recovery",
    "Repair",
    "Report",
    "RunReport",
    "ShardWriter",
    "ShardingParameters",
    "StreamReport",
    "Transfer",
    "TransferPlan",
    "UInt64Report",
    "UInt64Shards",
    "UInt64Written",
    "VolumeResult",
    "WriteResult",
    "XarrayPatch",
    "__version__",
    "abandon",
    "adopt",
    "census",
    "compact",
    "convert_part",
    "create",
    "design",
    "download",
    "erase",
    "finalize",
    "finalize_conversion",
    "from_precomputed",
    "from_sharded_zarr",
    "open_sharded",
    "patch_dask",
    "patch_xarray",
    "plan",
    "plan_dataset",
    "plan_precomputed",
    "plan_region",
    "plan_reshard",
    "plan_transfer",
    "prepare",
    "prepare_conversion",
    "present",
    "recover",
    "register_shard_format",
    "register_strategy",
    "repair",
    "report",
    "reshard",
    "shard",
    "shard_store",
    "store",
    "to_precomputed",
    "to_sharded_zarr",
    "transformer_view",
    "unshard",
    "unshard_store",
    "upload",
    "verify",
    "write_dataset",
    "write_part",
    "write_region",
    *errors.__all__,
]
