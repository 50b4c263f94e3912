"""Dask-parallel batch writer of sharded Zarr v3 arrays.

Importing shardwrite gives every `dask.array.Array` the methods ``to_sharded_zarr`` and
``to_precomputed``; ``shardwrite.to_sharded_zarr(x, ...)`` is the same as a function.
"""

from importlib import import_module as _import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardwrite import errors
from shardwrite._lazy import LateMethod, attach, when_imported
from shardwrite._version import __version__
from shardwrite.config.table import Setting as _Setting
from shardwrite.config.table import as_tree as _as_tree
from shardwrite.config.values import use as _use
from shardwrite.errors import *  # noqa: F403 (every error is public)
from shardwrite.seams import register as _register

_register(
    "view",
    [
        ("card", "shardwrite.notebook.html:card_html"),
        ("bar", "shardwrite.runs.bar:in_notebook"),
        ("census", "shardwrite.picture.page:fragment"),
    ],
)
_register("report", [("run", "shardwrite.reporting.make:report_file")])
_register("format", [("transformer-2022", "shardwrite.format.transformer:FORMAT_OF_2022")])
_register("hierarchy", [("transformer-2022", "shardwrite.place.transformer:place_in")])
_register("document", [("v2", "shardwrite.format.v2:translated")])
_register("place", [("file", "shardwrite.sources.opening:place_of")])
_register("abandon", [("in place", "shardwrite.operations.in_place:abandon_in_place")])
_register("job", [("slurm", "shardwrite.journal.jobs:note_job")])
_register("strategy", [("hdf5", "shardwrite.format.hdf5_strategy:Hdf5")])
_register("framing", [("hdf5", "shardwrite.read.hdf5_shards:Hdf5Framing")])
_register("old shard", [("hdf5", "shardwrite.read.hdf5_shards:strategy_of")])
_register("deep check", [("hdf5", "shardwrite.read.hdf5_shards:why_unreadable")])
_register("file as a store", [("hdf5", "shardwrite.sources.hdf5_store:Hdf5Store")])
_register("new index", [("hdf5", "shardwrite.operations.hdf5_salvage:index_again")])

_SCALE = "neuroglancer_uint64_sharded_v1"
_register("shard-format", [(_SCALE, "shardwrite.format.precomputed.boxes:PrecomputedShards")])
_register(
    "serializer",
    [
        (f"neuroglancer_{encoding}", "shardwrite.codecs.volume:VolumeSerializer")
        for encoding in ("compressed_segmentation", "jpeg", "png")
    ],
)
_register("source axes", [(_SCALE, "shardwrite.format.precomputed.stored:source_axes")])
_register("steps", [(_SCALE, "shardwrite.operations.scales:ScaleSteps")])
_register("foreign", [("volume", "shardwrite.read.volume_paths:refuse_volume")])
_register("not whole", [("scale", "shardwrite.operations.scattered:refuse_waiting")])
_register("unfinished", [("scale", "shardwrite.operations.scattered:is_abandonable")])
_register("give up", [("scale", "shardwrite.operations.scattered:abandon_scale")])

if TYPE_CHECKING:
    from shardwrite.format.hdf5_strategy import Hdf5
    from shardwrite.format.precomputed.parameters import ShardingParameters
    from shardwrite.format.registry import register_strategy
    from shardwrite.format.sharding import register_shard_format
    from shardwrite.format.strategies import AppendOnly, FixedOrder
    from shardwrite.operations.adopt import adopt
    from shardwrite.operations.adopted import Adopted
    from shardwrite.operations.compact import Compaction, compact
    from shardwrite.operations.conversion import Conversion, ConversionPlan
    from shardwrite.operations.convert import plan_reshard, reshard, shard, unshard
    from shardwrite.operations.convert_parts import (
        convert_part,
        finalize_conversion,
        prepare_conversion,
    )
    from shardwrite.operations.create import create
    from shardwrite.operations.dask_patch import DaskPatch, patch_dask
    from shardwrite.operations.parts import finalize, prepare, write_part
    from shardwrite.operations.plan import plan
    from shardwrite.operations.precomputed import plan_precomputed, to_precomputed
    from shardwrite.operations.present import PresentChunks, present
    from shardwrite.operations.read import from_sharded_zarr
    from shardwrite.operations.region import abandon, erase, plan_region, write_region
    from shardwrite.operations.repair import Repair, repair
    from shardwrite.operations.report import Report
    from shardwrite.operations.run_report import report
    from shardwrite.operations.stores_in_place import shard_store, unshard_store
    from shardwrite.operations.transfer import download, plan_transfer, upload
    from shardwrite.operations.transferred import Transfer, TransferPlan
    from shardwrite.operations.transformer import transformer_view
    from shardwrite.operations.uint64_results import UInt64Report, UInt64Written
    from shardwrite.operations.uint64_shards import UInt64Shards
    from shardwrite.operations.verify import census, verify
    from shardwrite.operations.write import store, to_sharded_zarr
    from shardwrite.plan.plan import Part, Plan
    from shardwrite.read.array import open_sharded
    from shardwrite.read.census import Census
    from shardwrite.reporting.report import RunReport
    from shardwrite.runs.result import VolumeResult, WriteResult
    from shardwrite.sources.precomputed import from_precomputed
    from shardwrite.stream.report import StreamReport
    from shardwrite.stream.writer import ShardWriter
else:
    # `shardwrite.plan` is the function. The folder of that name is imported here and unbound, so
    # that no later import binds it to the name.
    from shardwrite import plan

    del plan
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.format.hdf5_strategy": ("Hdf5",),
            "shardwrite.format.precomputed.parameters": ("ShardingParameters",),
            "shardwrite.format.registry": ("register_strategy",),
            "shardwrite.format.sharding": ("register_shard_format",),
            "shardwrite.format.strategies": ("AppendOnly", "FixedOrder"),
            "shardwrite.operations.adopt": ("adopt",),
            "shardwrite.operations.adopted": ("Adopted",),
            "shardwrite.operations.compact": ("Compaction", "compact"),
            "shardwrite.operations.conversion": ("Conversion", "ConversionPlan"),
            "shardwrite.operations.convert": ("plan_reshard", "reshard", "shard", "unshard"),
            "shardwrite.operations.convert_parts": (
                "convert_part",
                "finalize_conversion",
                "prepare_conversion",
            ),
            "shardwrite.operations.create": ("create",),
            "shardwrite.operations.dask_patch": ("DaskPatch", "patch_dask"),
            "shardwrite.operations.parts": ("finalize", "prepare", "write_part"),
            "shardwrite.operations.plan": ("plan",),
            "shardwrite.operations.precomputed": ("plan_precomputed", "to_precomputed"),
            "shardwrite.operations.present": ("PresentChunks", "present"),
            "shardwrite.operations.read": ("from_sharded_zarr",),
            "shardwrite.operations.region": ("abandon", "erase", "plan_region", "write_region"),
            "shardwrite.operations.repair": ("Repair", "repair"),
            "shardwrite.operations.report": ("Report",),
            "shardwrite.operations.run_report": ("report",),
            "shardwrite.operations.stores_in_place": ("shard_store", "unshard_store"),
            "shardwrite.operations.transfer": ("download", "plan_transfer", "upload"),
            "shardwrite.operations.transferred": ("Transfer", "TransferPlan"),
            "shardwrite.operations.transformer": ("transformer_view",),
            "shardwrite.operations.uint64_results": ("UInt64Report", "UInt64Written"),
            "shardwrite.operations.uint64_shards": ("UInt64Shards",),
            "shardwrite.operations.verify": ("census", "verify"),
            "shardwrite.operations.write": ("store", "to_sharded_zarr"),
            "shardwrite.read.census": ("Census",),
            "shardwrite.plan.plan": ("Part", "Plan"),
            "shardwrite.read.array": ("open_sharded",),
            "shardwrite.reporting.report": ("RunReport",),
            "shardwrite.runs.result": ("VolumeResult", "WriteResult"),
            "shardwrite.sources.precomputed": ("from_precomputed",),
            "shardwrite.stream.report": ("StreamReport",),
            "shardwrite.stream.writer": ("ShardWriter",),
        },
        modules=(
            "shardwrite.encode",
            "shardwrite.engines",
            "shardwrite.format",
            "shardwrite.grid",
            "shardwrite.host",
            "shardwrite.journal",
            "shardwrite.operations",
            "shardwrite.picture",
            "shardwrite.place",
            "shardwrite.read",
            "shardwrite.reporting",
            "shardwrite.runs",
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
    dask_config.update_defaults(_as_tree())


def _add_method(dask_array: ModuleType) -> None:
    for name in ("to_precomputed", "to_sharded_zarr"):
        setattr(dask_array.Array, name, LateMethod(__name__, name))


_use(_look, _where)
when_imported("dask.config", _add_defaults)
when_imported("dask.array", _add_method)

__all__ = [
    "Adopted",
    "AppendOnly",
    "Census",
    "Compaction",
    "Conversion",
    "ConversionPlan",
    "DaskPatch",
    "FixedOrder",
    "Hdf5",
    "Part",
    "Plan",
    "PresentChunks",
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
    "__version__",
    "abandon",
    "adopt",
    "census",
    "compact",
    "convert_part",
    "create",
    "download",
    "erase",
    "finalize",
    "finalize_conversion",
    "from_precomputed",
    "from_sharded_zarr",
    "open_sharded",
    "patch_dask",
    "plan",
    "plan_precomputed",
    "plan_region",
    "plan_reshard",
    "plan_transfer",
    "prepare",
    "prepare_conversion",
    "present",
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
    "write_part",
    "write_region",
    *errors.__all__,
]
