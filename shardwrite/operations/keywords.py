"""Arguments of the functions that write arrays, made of groups of keywords.

Of several bases, the fields of the last come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from shardwrite.config.table import PROGRESS
from shardwrite.errors import SpecError
from shardwrite.options import (
    ArrayKeywords,
    CastKeywords,
    DropKeywords,
    EmptyKeywords,
    ExclusiveKeywords,
    ExistingArguments,
    GraphKeywords,
    Keywords,
    NameKeywords,
    NamesKeywords,
    PlanKeywords,
    ProcessKeywords,
    ResumeKeywords,
    RunKeywords,
    StagedKeywords,
    StateKeywords,
    StrategyKeywords,
    ViaKeywords,
    argument,
    arguments,
    keywords,
    option,
    same_as,
)

_A = TypeVar("_A")
_R = TypeVar("_R")

if TYPE_CHECKING:  # commands read the keywords, and need not import what runs
    from shardwrite.write.context import GroupReport

OF_URLS = """Options for a URL. For a bucket they are options of obstore, or the usual ones of
    fsspec, such as ``key``. With options, ``{}`` included, the store may also be any other URL that
    fsspec knows. For a local path they have no effect, as in dask."""


@keywords
class ProgressKeywords(Keywords):
    """What is shown while a function works."""

    progress: bool | Callable[[GroupReport], None] = option(
        PROGRESS.default,
        "True shows a progress bar. A callable is called with the report of each group of shards.",
        kind="bool or callable",
        flag=None,
    )


@keywords
class CommitKeywords(Keywords):
    """The commit of a session."""

    message: str | None = option(
        None,
        """Message of the commit, if the store is a session of Icechunk. By default it names the
        array.""",
        flag=None,
    )


def committing(function: Callable[[_A], _R]) -> Callable[[_A], _R]:
    """Let a function that writes take sessions of Icechunk for its `store` or `stores`.

    They are committed once when everything is written; see `icechunk_sessions`.
    """

    @wraps(function)
    def called(given: _A) -> _R:
        from shardwrite.stores.looking import is_session  # commands need none of it

        word = "stores" if hasattr(given, "stores") else "store"
        found, message = getattr(given, word), getattr(given, "message", None)
        if any(map(is_session, found if isinstance(found, list | tuple) else [found])):
            from shardwrite.operations.icechunk_sessions import write_and_commit

            return cast("_R", write_and_commit(function, given, word))
        if message is not None:
            raise SpecError(
                "is for commits, and this store has none",
                field="message",
                value=message,
                remedy="leave it out, or give a session of Icechunk",
            )
        return function(given)

    return called


@keywords
class ReturnKeywords(ProgressKeywords, CommitKeywords):
    """What a function returns."""

    compute: bool = option(
        True,
        "With False, begin the run and return a `dask.delayed.Delayed` of the result.",
        flag=None,
    )
    return_stored: bool = option(
        False,
        """Return a dask array that reads what was written, with the chunks of `x`. With
        ``compute=False``, it is read after the rest of the run, which is part of its graph.""",
        flag=None,
    )


if TYPE_CHECKING:
    # What overloads of these functions are told apart by.

    @keywords
    class Now(ReturnKeywords):
        """Of a call that returns a result."""

        compute: Literal[True] = True
        return_stored: Literal[False] = False

    @keywords
    class Later(ReturnKeywords):
        """Of a call that returns a `Delayed`."""

        compute: Literal[False]
        return_stored: Literal[False] = False

    @keywords
    class Stored(ReturnKeywords):
        """Of a call that returns an array."""

        return_stored: Literal[True]


@keywords
class LayoutKeywords(PlanKeywords, ArrayKeywords):
    """What makes a plan of a source."""


@keywords
class NewKeywords(
    ReturnKeywords,
    RunKeywords,
    ExclusiveKeywords,
    ViaKeywords,
    StateKeywords,
    StagedKeywords,
    CastKeywords,
    LayoutKeywords,
):
    """Keywords of functions that write new arrays, and all others."""

    section: ClassVar[str] = "Run"

    mode: str | None = option(
        None,
        """``"w-"``, the default, refuses to overwrite anything. ``"w"`` replaces an array, and
        refuses to overwrite anything else. ``"r+"`` writes into an array that exists, as
        ``region=...`` does, and ``"a"`` too, or makes the array if there is none. The metadata of
        an array that exists stay; keywords that say otherwise are refused. The mode matters only
        when a run begins: if the run is interrupted, the same call continues it. If the run has
        ended, the same call returns its result and writes nothing. With ``"w"``, and into an array
        that exists, it does so only if `source_id` says that the data are the same.""",
        choices=("w-", "w", "a", "r+"),
        flag=None,
    )
    overwrite: bool | None = option(
        None,
        'True is another word for ``mode="w"``, and False for ``mode="w-"``.',
        command_help="Replace arrays that exist at DST.",
    )
    zarr_array_kwargs: Mapping[str, Any] | None = option(
        None,
        "Keywords of `zarr.create_array`, in place of the keywords above.",
        kind="mapping",
        flag=None,
    )
    publish: str = option(
        "last",
        "Whether ``zarr.json`` appears when the array is whole, or at the start of the run.",
        choices=("last", "first"),
        command_help="Whether zarr.json appears at the end of the run or at its start.",
    )


@keywords
class WriteKeywords(NewKeywords, NameKeywords):
    """Keywords of `to_sharded_zarr`."""

    region: Any = option(
        None,
        """Write into an existing array; see :func:`write_region`. `mode`, `publish` and the
        keywords that describe an array are refused then, and `compression_ratio` and
        `max_source_reruns` have no effect.""",
        kind="tuple of slice or int, or str",
        flag=None,
    )


@arguments
class WriteArguments(WriteKeywords):
    """Arguments of `to_sharded_zarr`."""

    x: Any = argument(
        """The source: a dask array whose chunk sizes are known, a numpy array, a `zarr.Array`, an
        `xarray.DataArray`, or any object with ``__array__`` and a shape. `dimension_names`,
        `attributes` and `fill_value` that are left out are those of a zarr or xarray array.""",
        kind="array_like",
    )
    store: Any = argument(
        """A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore;
        a writable session of Icechunk, which is then committed; or a group or array of
        zarr-python. Such an array is filled, as with ``mode="r+"``, unless `mode` is
        ``"w"``.""",
        kind="str, path, store or node of zarr-python, or icechunk.Session",
    )
    component: str | None = option(None, "Another word for `name`, as in `dask.array.to_zarr`.")
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@keywords
class StoreKeywords(NewKeywords, NamesKeywords):
    """Keywords of `store`."""

    regions: Any = option(
        None,
        """Regions of existing arrays to write into, as in :func:`write_region`: one tuple for all,
        or one for each array. None stands for a new array. With a region, `mode`, `publish` and the
        keywords that describe an array are refused.""",
        kind="tuple of slice, or sequence of them",
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@arguments
class StoreArguments(StoreKeywords):
    """Arguments of `store`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "return_stored": "Return dask arrays that read what was written, with the chunks of the "
        "sources.",
    }

    arrays: Any = argument(
        """The sources, each as in :func:`to_sharded_zarr`. A single dask array is taken as a
        sequence of one.""",
        kind="sequence of array_like",
    )
    stores: Any = argument(
        "A store for each array, as in :func:`to_sharded_zarr`.",
        kind="sequence of str, path, or store or node of zarr-python",
    )


@keywords
class FinalizeKeywords(Keywords):
    """Keywords of functions that end a run which was written in parts."""

    section: ClassVar[str] = "Run"

    n_parts: int | None = option(
        None,
        """Number of parts. With it, an `IncompleteError` can name the parts to write again.""",
        flag="parts",
        least=1,
        command_help="Number of parts, so that missing ones can be named.",
    )
    trust_journals: bool = option(
        False,
        """Believe what tasks have noted of the indexes that they wrote, and read none again. Shards
        that a power cut may have damaged are read in any case, and so are spools of volumes.""",
        command_help="Do not read indexes again whose tasks have noted them.",
    )


@arguments
class PlanArguments(ViaKeywords, StateKeywords, NameKeywords, LayoutKeywords):
    """Arguments of `plan`."""

    x: Any = same_as(WriteArguments, "x")
    store: Any = argument(
        """Place of the array, as in :func:`to_sharded_zarr`. If it is in a bucket, the plan
        counts the shards that wait in memory until they are put, and has `traffic`: requests
        and bytes. A run of the same plan that has not ended there counts.""",
        kind="str, path, or store or node of zarr-python",
        default=None,
        kw_only=True,
    )


@keywords
class UpdateKeywords(StrategyKeywords):
    """How shards that exist are changed."""

    COMMAND_HELP: ClassVar[Mapping[str, str]] = {
        "strategy": "How shards that exist are changed: fixed-order, append-only, C, F, morton or "
        "hdf5. hdf5:NAME names the dataset, by default as in the files.",
        "restart": "Give up interrupted updates that stand in the way.",
    }
    HELP: ClassVar[Mapping[str, str]] = {
        "strategy": """How existing shards are changed. ``FixedOrder`` rewrites a shard.
        ``AppendOnly`` clones it and adds the new inner chunks at the end of the clone. In both
        cases the new shard then replaces the old one, unless the strategy has ``in_place=True``.
        """,
        "restart": """Give up unfinished updates that are in the way; each of their shards stays as
        it is, old or new. A finished update is done again.""",
        "recheck": """Before an unfinished update is continued, decode the shards that it has
        committed and write the bad ones again.""",
        "source_id": """Identifier of the source. An update that is finished is not done again by a
        call with the same identifier.""",
        "compute": """With False, begin the run and return a `dask.delayed.Delayed` of the
        result.""",
        "return_stored": """Return a dask array that reads the region, with the chunks of `x`. With
        ``compute=False``, it is read after the rest of the run, which is part of its graph.""",
    }


@arguments
class PlanRegionArguments(
    DropKeywords,
    ViaKeywords,
    StateKeywords,
    UpdateKeywords,
    EmptyKeywords,
    ProcessKeywords,
    GraphKeywords,
    StagedKeywords,
    CastKeywords,
    NameKeywords,
):
    """Arguments of `plan_region`."""

    HELP: ClassVar[Mapping[str, str]] = ExistingArguments.HELP

    x: Any = argument(
        """The source, as in :func:`to_sharded_zarr`. Its shape must be the region's shape. A
        number, text or another scalar is written to the whole region. A source that names its
        axes, as an `xarray.DataArray` does, in another order than the array is refused.""",
        kind="array_like",
    )
    store: Any = same_as(ExistingArguments, "store")
    region: Any = argument(
        """The region in the array's coordinates, as numpy and zarr take it. An integer drops
        its axis, so the source has one axis less; it may also keep that axis, with length 1.
        Negative numbers count from the end. A step, a mask and a list are refused.
        ``"append"`` writes after the end of the array: first the data, then the new shape.""",
        kind='tuple of slice or int, slice, int, Ellipsis, or "append"',
    )


@arguments
class RegionArguments(ReturnKeywords, RunKeywords, ExclusiveKeywords, PlanRegionArguments):
    """Arguments of `write_region`."""


@arguments
class EraseArguments(
    ProgressKeywords,
    CommitKeywords,
    DropKeywords,
    ProcessKeywords,
    ResumeKeywords,
    ExclusiveKeywords,
    StateKeywords,
    UpdateKeywords,
    ExistingArguments,
):
    """Arguments of `erase`."""

    region: Any = argument(
        "The region to erase; see :func:`write_region`.",
        kind="tuple of slice or int, slice, int or Ellipsis",
    )
