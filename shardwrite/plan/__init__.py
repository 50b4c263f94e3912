"""Plans: how shapes and limits become tasks. Only integers, no I/O."""

from typing import TYPE_CHECKING

from shardwrite._lazy import attach

if TYPE_CHECKING:
    from shardwrite.plan.estimate import BATCH_NBYTES, MemoryEstimate, Resources
    from shardwrite.plan.identity import Identity, ShardWindow
    from shardwrite.plan.make import Update, make_plan
    from shardwrite.plan.model import SourceLayout
    from shardwrite.plan.options import PlanOptions, memory_limit_of
    from shardwrite.plan.partition import Cuts, Partition, make_partition
    from shardwrite.plan.parts import check_n_parts, check_part
    from shardwrite.plan.plan import Part, Plan, Stretch
    from shardwrite.plan.regions import Region, ShardRef, as_box, as_region, index_of_each_axis
    from shardwrite.plan.sizes import Sized, parse_nbytes, resolve_shapes
    from shardwrite.plan.waves import Wave
else:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "shardwrite.plan.estimate": ("BATCH_NBYTES", "MemoryEstimate", "Resources"),
            "shardwrite.plan.identity": ("Identity", "ShardWindow"),
            "shardwrite.plan.make": ("Update", "make_plan"),
            "shardwrite.plan.model": ("SourceLayout",),
            "shardwrite.plan.options": ("PlanOptions", "memory_limit_of"),
            "shardwrite.plan.partition": ("Cuts", "Partition", "make_partition"),
            "shardwrite.plan.parts": ("check_n_parts", "check_part"),
            "shardwrite.plan.plan": ("Part", "Plan", "Stretch"),
            "shardwrite.plan.regions": (
                "Region",
                "ShardRef",
                "as_box",
                "as_region",
                "index_of_each_axis",
            ),
            "shardwrite.plan.sizes": ("Sized", "parse_nbytes", "resolve_shapes"),
            "shardwrite.plan.waves": ("Wave",),
        },
    )

__all__ = [
    "BATCH_NBYTES",
    "Cuts",
    "Identity",
    "MemoryEstimate",
    "Part",
    "Partition",
    "Plan",
    "PlanOptions",
    "Region",
    "Resources",
    "ShardRef",
    "ShardWindow",
    "Sized",
    "SourceLayout",
    "Stretch",
    "Update",
    "Wave",
    "as_box",
    "as_region",
    "check_n_parts",
    "check_part",
    "index_of_each_axis",
    "make_partition",
    "make_plan",
    "memory_limit_of",
    "parse_nbytes",
    "resolve_shapes",
]
