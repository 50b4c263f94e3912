"""Arguments of the functions that write arrays, made of groups of keywords.

Of several bases, the fields of the last come first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from shardwrite.errors import SpecError
from shardwrite.options import (
    ArrayKeywords,
    EmptyKeywords,
    GraphKeywords,
    Keywords,
    MemoryKeywords,
    NameKeywords,
    PlanKeywords,
    ResumeKeywords,
    RunKeywords,
    StateKeywords,
    StrategyKeywords,
    ViaKeywords,
    described,
    option,
)

_A = TypeVar("_A")
_R = TypeVar("_R")

if TYPE_CHECKING:  # commands read the keywords, and need not import what runs
    from shardwrite.write.context import GroupReport

SOURCE = described(
    """The source: a dask array whose chunk sizes are known, a numpy array, a `zarr.Array`, an
    `xarray.DataArray`, or any object with ``__array__`` and a shape. `dimension_names`,
    `attributes` and `fill_value` that are left out are those of a zarr or xarray array.""",
    kind="array_like",
)
EXISTING = described(
    """A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; or a
    group or array of zarr-python.""",
    kind="str, path, or store or node of zarr-python",
)
OF_URLS = """Options for a URL. For a bucket they are options of obstore, or the usual ones of
    fsspec, such as ``key``. With options, ``{}`` included, the store may also be any other URL that
    fsspec knows. For a local path they have no effect, as in dask."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ProgressKeywords(Keywords):
    """What is shown while a function works."""

    progress: bool | Callable[[GroupReport], None] = option(
        False,
        "True shows a progress bar. A callable is called with the report of each group of shards.",
        kind="bool or callable",
        flag=None,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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

    @dataclass(frozen=True, kw_only=True)
    class Now(ReturnKeywords):
        """Of a call that returns a result."""

        compute: Literal[True] = True
        return_stored: Literal[False] = False

    @dataclass(frozen=True, kw_only=True)
    class Later(ReturnKeywords):
        """Of a call that returns a `Delayed`."""

        compute: Literal[False]
        return_stored: Literal[False] = False

    @dataclass(frozen=True, kw_only=True)
    class Stored(ReturnKeywords):
        """Of a call that returns an array."""

        return_stored: Literal[True]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class CastKeywords(Keywords):
    """How a source comes into an array that exists."""

    section: ClassVar[str] = "Run"

    axis: int = option(
        0, 'The axis along which the array grows with the region ``"append"``.', flag=None
    )
    casting: str = option(
        "safe",
        "The numpy rule for casting `x` to the dtype of the array.",
        choices=("no", "equiv", "safe", "same_kind", "unsafe"),
        command_help="Which conversions of values are allowed, as numpy names them.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ExclusiveKeywords(Keywords):
    """How shards come into a bucket."""

    section: ClassVar[str] = "Run"

    exclusive: bool = option(
        False,
        """Promise that nobody else writes to the array meanwhile. An update in a bucket is refused
        without it, if the service cannot refuse a request because an object has changed meanwhile.
        Elsewhere it has no effect.""",
        command_help="Promise that nobody else writes to the array meanwhile. Only for buckets "
        "that cannot refuse a request if an object has changed.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class DropKeywords(Keywords):
    """What may become of shards that are HDF5 files."""

    section: ClassVar[str] = "Run"

    drop_hdf5: bool = option(
        False,
        """Make plain shards of those shards in the region that are also HDF5 files. Without it,
        only the strategy :class:`Hdf5` changes such shards, and any other is refused. The strategy
        must write whole shards, as ``"fixed-order"`` does. With :class:`Hdf5`, the dataset in the
        new files may have another name.""",
        command_help="Make plain shards of those that are also HDF5 files. Only --strategy hdf5 "
        "keeps them so.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LayoutKeywords(PlanKeywords, ArrayKeywords):
    """What makes a plan of a source."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NewKeywords(
    ReturnKeywords,
    RunKeywords,
    ExclusiveKeywords,
    ViaKeywords,
    StateKeywords,
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
        command_help="Replace DST if it is an array.",
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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


@dataclass(frozen=True, repr=False, eq=False)
class WriteArguments(WriteKeywords):
    """Arguments of `to_sharded_zarr`."""

    x: Any = field(metadata=SOURCE)
    store: Any = field(
        metadata=described(
            """A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore;
            a writable session of Icechunk, which is then committed; or a group or array of
            zarr-python. Such an array is filled, as with ``mode="r+"``, unless `mode` is
            ``"w"``.""",
            kind="str, path, store or node of zarr-python, or icechunk.Session",
        )
    )
    component: str | None = option(None, "Another word for `name`, as in `dask.array.to_zarr`.")
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StoreKeywords(NewKeywords):
    """Keywords of `store`."""

    names: Sequence[str | None] | None = option(
        None, "Path of each array in its store.", kind="sequence of str or None"
    )
    regions: Any = option(
        None,
        """Regions of existing arrays to write into, as in :func:`write_region`: one tuple for all,
        or one for each array. None stands for a new array. With a region, `mode`, `publish` and the
        keywords that describe an array are refused.""",
        kind="tuple of slice, or sequence of them",
    )
    storage_options: Mapping[str, Any] | None = option(None, OF_URLS, kind="mapping")


@dataclass(frozen=True, repr=False, eq=False)
class StoreArguments(StoreKeywords):
    """Arguments of `store`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "return_stored": "Return dask arrays that read what was written, with the chunks of the "
        "sources.",
    }

    arrays: Any = field(
        metadata=described(
            """The sources, each as in :func:`to_sharded_zarr`. A single dask array is taken as a
            sequence of one.""",
            kind="sequence of array_like",
        )
    )
    stores: Any = field(
        metadata=described(
            "A store for each array, as in :func:`to_sharded_zarr`.",
            kind="sequence of str, path, or store or node of zarr-python",
        )
    )


@dataclass(frozen=True, repr=False, eq=False)
class PlanArguments(ViaKeywords, StateKeywords, NameKeywords, LayoutKeywords):
    """Arguments of `plan`."""

    x: Any = field(metadata=SOURCE)
    store: Any = field(
        default=None,
        kw_only=True,
        metadata=described(
            """Place of the array, as in :func:`to_sharded_zarr`. If it is in a bucket, the plan
            counts the shards that wait in memory until they are put, and has `traffic`: requests
            and bytes. A run of the same plan that has not ended there counts.""",
            kind="str, path, or store or node of zarr-python",
        ),
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class PlanRegionKeywords(
    DropKeywords,
    ViaKeywords,
    StateKeywords,
    StrategyKeywords,
    EmptyKeywords,
    GraphKeywords,
    CastKeywords,
    NameKeywords,
):
    """Keywords of `plan_region`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "name": "Path of the array in the store.",
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


@dataclass(frozen=True, init=False, repr=False, eq=False)
class _Into(PlanRegionKeywords):
    x: Any = field(
        metadata=described(
            """The source, as in :func:`to_sharded_zarr`. Its shape must be the region's shape. A
            number, text or another scalar is written to the whole region. A source that names its
            axes, as an `xarray.DataArray` does, in another order than the array is refused.""",
            kind="array_like",
        )
    )
    store: Any = field(metadata=EXISTING)
    region: Any = field(
        metadata=described(
            """The region in the array's coordinates, as numpy and zarr take it. An integer drops
            its axis, so the source has one axis less; it may also keep that axis, with length 1.
            Negative numbers count from the end. A step, a mask and a list are refused.
            ``"append"`` writes after the end of the array: first the data, then the new shape.""",
            kind='tuple of slice or int, slice, int, Ellipsis, or "append"',
        )
    )


@dataclass(frozen=True, repr=False, eq=False)
class PlanRegionArguments(_Into):
    """Arguments of `plan_region`."""


@dataclass(frozen=True, repr=False, eq=False)
class RegionArguments(ReturnKeywords, RunKeywords, ExclusiveKeywords, _Into):
    """Arguments of `write_region`."""

    HELP: ClassVar[Mapping[str, str]] = PlanRegionKeywords.HELP


@dataclass(frozen=True, repr=False, eq=False)
class EraseArguments(
    ProgressKeywords,
    CommitKeywords,
    DropKeywords,
    MemoryKeywords,
    ResumeKeywords,
    ExclusiveKeywords,
    StateKeywords,
    StrategyKeywords,
    NameKeywords,
):
    """Arguments of `erase`."""

    HELP: ClassVar[Mapping[str, str]] = PlanRegionKeywords.HELP

    store: Any = field(metadata=EXISTING)
    region: Any = field(
        metadata=described(
            "The region to erase; see :func:`write_region`.",
            kind="tuple of slice or int, slice, int or Ellipsis",
        )
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StripeKeywords(Keywords):
    """How a parallel file system lays out shards."""

    section: ClassVar[str] = "Array"

    stripe_count: int | None = option(
        None,
        """Number of Lustre targets over which each shard is spread; 1 suits shards below about a
        gigabyte. By default the setting of the directory holds. On other file systems, this has no
        effect.""",
        least=1,
        command_help="On Lustre: number of targets for each shard. Default: as the directory has "
        "it.",
    )
