"""Arguments of the functions that write volumes of Neuroglancer, made of groups of keywords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shardwrite.format.precomputed.keywords import ScaleKeywords
from shardwrite.operations.keywords import OF_URLS, ProgressKeywords
from shardwrite.options import (
    EmptyKeywords,
    GraphKeywords,
    PlanKeywords,
    RunKeywords,
    StateKeywords,
    described,
    metadata_of,
    option,
)

_X = described(
    """The source, as in :func:`to_sharded_zarr`. Its dtype is ``uint8``, ``uint16``, ``uint32``,
    ``uint64``, ``int8``, ``int16``, ``int32`` or ``float32``. The encoded chunks of a `zarr.Array`
    are copied if they are what the scale needs; see the notes of :func:`to_precomputed`.""",
    kind="array_like",
)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class VolumeKeywords(EmptyKeywords, GraphKeywords, ScaleKeywords):
    """What makes a plan of a volume."""

    section: ClassVar[str] = "Array"
    HELP: ClassVar[Mapping[str, str]] = {
        "write_empty_chunks": """Store also chunks that hold only zeros. Readers take a chunk that
        is missing for zeros.""",
    }

    axes: str | None = option(
        None,
        """Axes of `x`: the letters x, y and z in any order, with c for channels if there are any.
        By default the names of its dimensions tell them, and they must not say otherwise. With
        ``"zyx"`` or ``"czyx"`` no bytes are transposed.""",
        command_help="Axes of SRC, the letters x, y and z in any order, with c for channels if "
        "there are any. Default: the names of its dimensions.",
    )
    scales: Mapping[Sequence[float], Any] | None = option(
        None,
        """Coarser or finer arrays of the same image, by the sizes of their voxels in nanometres.
        Each becomes one more scale, with the axes and the other parameters of `x`. Its offset is
        where `x` begins, in its own voxels. All scales enter ``info`` at the end, together. They
        are written in one task graph, so that work which they share with `x` is done once. Only
        arrays that take several graphs, and chunks that are scattered, are written one after the
        other.""",
        kind="mapping of sequence of float to array_like",
        flag=None,
    )
    max_source_reruns: float = field(
        default=PlanKeywords.max_source_reruns,
        metadata=metadata_of(PlanKeywords, "max_source_reruns"),
    )


@dataclass(frozen=True, repr=False, eq=False)
class PlanPrecomputedArguments(VolumeKeywords):
    """Arguments of `plan_precomputed`."""

    x: Any = field(metadata=_X)
    path: Any = option(
        None,
        """Where the volume would go. In a bucket, shards wait in memory until they are put, and the
        plan counts that. By default they do not wait.""",
        kind="str, path, or store",
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@dataclass(frozen=True, repr=False, eq=False)
class PrecomputedArguments(ProgressKeywords, RunKeywords, StateKeywords, VolumeKeywords):
    """Arguments of `to_precomputed`."""

    x: Any = field(metadata=_X)
    path: Any = field(
        metadata=described(
            """The directory of the volume, the URL of a bucket such as ``"s3://bucket/volume"``, or
            a store as in :func:`to_sharded_zarr`. If it has an ``info``, the scale is added to it.
            A URL may begin with ``precomputed://``, as in Neuroglancer.""",
            kind="str, path, or store",
        )
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")
