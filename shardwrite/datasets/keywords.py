"""Keywords of the functions and methods that take objects of xarray."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from shardwrite.operations.keywords import OF_URLS, CommitKeywords, ProgressKeywords, ReturnKeywords
from shardwrite.options import (
    Keywords,
    PlanKeywords,
    RunKeywords,
    StateKeywords,
    ViaKeywords,
    argument,
    arguments,
    keywords,
    option,
    same_as,
)

Sizes = str | int | Mapping[Any, int | str] | None
"""Sizes along named dimensions, bytes as text, a number of chunks, ``"auto"`` or None."""


@keywords
class SizeKeywords(Keywords):
    """What describes the arrays of a dataset."""

    section: ClassVar[str] = "Array"
    own_sizes: ClassVar[bool] = False  # whether sizes in the encoding of variables count

    shards: Sizes = option(
        "auto",
        """Size of a shard of each variable. A mapping such as ``{"time": 720, ...: -1}`` has
        numbers of elements along dimensions. A dimension with -1 is whole, as are all that are not
        named. The key ``...`` gives these another size. A number such as 8, or a text such as
        ``"8 chunks"``, is that of the inner chunks along each dimension of a shard. Such a text may
        stand for one dimension, too. A text such as ``"256MB"`` is a decoded size, and ``"auto"``
        leaves the choice to the planner. ``shards=None`` writes arrays without shards. A
        variable of up to 1 MiB is one chunk without shards, unless `encoding` has sizes for
        it.""",
        kind="mapping of str to int, or a single int, str or None",
    )
    chunks: Sizes = option(
        "auto",
        "Size of an inner chunk, as a mapping or a text of the same kinds.",
        kind="mapping of str to int, or str",
    )
    encoding: Mapping[Any, Mapping[str, Any]] | None = option(
        None,
        """As in `xarray.Dataset.to_zarr`: for each variable a mapping with such names as ``dtype``,
        ``scale_factor``, ``_FillValue``, ``compressors``, ``chunks`` and ``shards``. It takes the
        place of the variable's own `encoding`, of which sizes are never used: they are those of
        the place that it was read from. For a `DataTree`, for each node such a mapping.""",
        kind="mapping of str to mapping",
    )
    keep_bits: int | Mapping[Any, Any] | None = option(
        None,
        """How many bits of the mantissa stay, of 10 for float16, 23 for float32 and 52 for float64.
        Values are rounded to the nearest (BitRound), so that they take less room. A number is for
        all variables of floats but coordinates and what describes them. A mapping such as ``{"t2m":
        12}`` is for the variables that it names; for a `DataTree`, it has nodes. The attributes
        ``quantization`` and ``quantization_nsb`` of CF tell what was rounded.""",
        kind="int, or mapping of str to int",
    )
    group: str | None = option(
        None, "Path of the group in the store, by default its root.", kind="str"
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@keywords
class IntoKeywords(Keywords):
    """What becomes of a group that exists."""

    section: ClassVar[str] = "Run"

    mode: str | None = option(
        None,
        """``"w-"`` refuses a group that exists. ``"w"`` replaces its arrays and attributes, and
        refuses a group that holds anything besides. ``"a"`` writes values into the arrays of a
        group that exists, and makes a group that does not. ``"a-"`` leaves out the variables that
        do not have `append_dim`. ``"r+"`` writes values, and changes no attributes. By default it
        is ``"a"`` with `append_dim`, ``"r+"`` with `region`, and else ``"w-"``. If a run is
        interrupted, the same call continues it.""",
        kind="str",
    )
    append_dim: Hashable | None = option(
        None,
        """Dimension along which the variables are appended to those of the store. All variables of
        the store that have it must be there. The encoding of the store is used, and `shards` and
        `chunks` have no effect. Steps must follow those of the store, as far as coordinates of
        numbers or times tell.""",
        kind="str",
    )
    region: str | Mapping[Any, slice | str] | None = option(
        None,
        """Where the values go in the arrays of the store: a mapping of dimensions to slices, or to
        ``"auto"``, which finds the place by the values of a coordinate. The text ``"auto"`` does so
        for all dimensions. It need not fit the chunks of the store.""",
        kind='mapping of str to slice, or "auto"',
    )


@keywords
class PlanDatasetKeywords(IntoKeywords, SizeKeywords, ViaKeywords, StateKeywords, PlanKeywords):
    """What makes the plans of a dataset."""

    HELP: ClassVar[Mapping[str, str]] = {
        "source_id": """Identifier of the source. Runs with the same identifier have the same data.
        By default it is made of dask's name of each variable.""",
        "run_dir": """Directory for the state of the run, if the arrays lie in no directory. All
        processes of the run must see it. By default it is ``shardwrite.run-dir`` in the
        configuration of dask. For a store of one process, it is a temporary directory. For a bucket
        no directory is needed: the state lies there until the run ends.""",
    }


@keywords
class WriteDatasetKeywords(CommitKeywords, ProgressKeywords, RunKeywords, PlanDatasetKeywords):
    """What makes a dataset in a store."""

    HELP: ClassVar[Mapping[str, str]] = {
        "message": """Message of the commit, if the store is a session of Icechunk. By default it
        names the first variables.""",
        "keep_report": """Keep a report of the run in each array, as ``shardwrite-report.json``
        beside the receipt. :func:`report` reads it.""",
    }

    consolidated: bool | None = option(
        None,
        """Whether the root of a new store lists the documents of all arrays, as zarr and xarray
        read it by default. In a store that exists, a list is kept up to date, and none is added.
        True refuses such a store if its root has no list.""",
        kind="bool",
    )
    compute: bool = same_as(ReturnKeywords, "compute", default=True)


# ---- Arguments of functions and methods


@arguments
class PlanMethodArguments(PlanDatasetKeywords):
    """Arguments of the method `plan`."""

    store: Any = argument(
        """Where the dataset would go, as in :func:`write_dataset`. In a bucket, the plans count
        the shards that wait in memory until they are put. An append and a region need it.""",
        kind="str, path, or store or group of zarr-python",
        default=None,
    )


@arguments
class WriteMethodArguments(WriteDatasetKeywords):
    """Arguments of the method `to_zarr`."""

    store: Any = argument(
        """A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; a
        group of zarr-python; a session of Icechunk, which is committed once; or a dictionary, which
        gets the objects.""",
        kind="str, path, dict, store or group of zarr-python, or session of Icechunk",
    )


@keywords
class GivenKeywords(Keywords):
    """What is written."""

    ds: Any = argument(
        "A `xarray.Dataset`, `xarray.DataArray` or `xarray.DataTree`.",
        kind="xarray.Dataset, xarray.DataArray or xarray.DataTree",
        kw_only=False,
    )


@arguments
class PlanDatasetArguments(PlanMethodArguments, GivenKeywords):
    """Arguments of `plan_dataset`."""


@arguments
class WriteDatasetArguments(WriteMethodArguments, GivenKeywords):
    """Arguments of `write_dataset`."""


Call = PlanDatasetArguments | WriteDatasetArguments
CallT = TypeVar("CallT", PlanDatasetArguments, WriteDatasetArguments)


@arguments
class PatchedArguments(WriteDatasetArguments):
    """Arguments of a call that is made in place of xarray's `to_zarr`."""

    own_sizes: ClassVar[bool] = True


if TYPE_CHECKING:
    # What overloads are told apart by.

    @keywords
    class Now(WriteDatasetKeywords):
        """Of a call that returns a result."""

        compute: Literal[True] = True

    @keywords
    class Later(WriteDatasetKeywords):
        """Of a call that returns a `Delayed`."""

        compute: Literal[False]
