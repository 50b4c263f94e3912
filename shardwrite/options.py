"""Keywords of functions, each said once: its name, type and default, and a text for users.

Keywords are fields of frozen dataclasses, one class for each group. From the fields are made the
signature and the docstring of a function (`entry.public`), the options of commands and the
arguments in job scripts (`cli.options`), and the reference. Rooms derive their own options from a
group, and check the values; see `PlanOptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, field
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

from shardwrite._dataclass import dataclass
from shardwrite.grid import Sized

Manifest = Literal["nonempty_chunks"] | None

DURABILITIES = ("full", "batch", "none")
"""Levels of durability; the first two need a store that can sync."""

STRATEGIES = ("fixed-order", "append-only", "C", "F", "morton", "hdf5")
"""Strategies of this package and orders, as texts."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """How a keyword is described to users, and how a command takes it."""

    help: str  # for docstrings
    kind: str = ""  # type in words; made of the annotation or choices if empty
    choices: tuple[str, ...] = ()
    # Option of commands, without dashes; None if commands have none, and empty for the name
    flag: str | None = ""
    opposite: str = ""  # option of commands that says the contrary, such as no-NAME
    least: int | None = None  # smallest and largest number that a command takes
    most: int | None = None
    command_help: str = ""  # for commands; `help` if empty
    parser: str = ""  # what reads the text of an option; see `cli.options`
    example: str = ""  # what the parser proposes, if it cannot read a text
    suggested: tuple[str, ...] = ()  # what a shell completes, where other texts are taken, too


def option(default: _T, help: str, **details: Any) -> _T:  # noqa: A002 (the word of click)
    """Declare a keyword: its default, a text for users, and the other fields of `Option`."""
    declared: _T = argument(help, default=default, **details)
    return declared


def argument(
    help: str,  # noqa: A002 (the word of click)
    *,
    default: Any = MISSING,
    kw_only: Any = MISSING,
    **details: Any,
) -> Any:
    """Declare an argument that must be given unless it has a default; see `option`."""
    metadata = {"option": Option(help=help, **details)}
    return field(default=default, kw_only=kw_only, metadata=metadata)


def same_as(
    group: type[Keywords], name: str, *, default: Any = MISSING, kw_only: Any = MISSING
) -> Any:
    """Declare an argument that is described as in another group, but has not the same default."""
    return field(default=default, kw_only=kw_only, metadata=declared_in(group, name).metadata)


def flag_of(declared: dataclasses.Field[Any]) -> str:
    """Option of commands for the keyword that a field declares."""
    return f"--{(option_in(declared).flag or declared.name).replace('_', '-')}"


@dataclass_transform(
    eq_default=False,
    kw_only_default=True,
    frozen_default=True,
    field_specifiers=(argument, same_as),
)
def keywords(group: type[_T]) -> type[_T]:
    """Make a group of keywords of a class."""
    return dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)(group)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(argument, same_as))
def arguments(group: type[_T]) -> type[_T]:
    """Make the arguments of a function of a class. Only those of groups are keywords."""
    return dataclass(frozen=True, repr=False, eq=False)(group)


@keywords
class Keywords:
    """Base of all groups."""

    section: ClassVar[str] = "Options"  # of the help of commands
    # Texts for docstrings and for commands, in place of those of the groups above this one
    HELP: ClassVar[Mapping[str, str]] = {}
    COMMAND_HELP: ClassVar[Mapping[str, str]] = {}


def declared_in(group: type[Keywords], name: str) -> dataclasses.Field[Any]:
    """The field that declares a keyword of a group."""
    return next(declared for declared in dataclasses.fields(group) if declared.name == name)


def option_in(declared: dataclasses.Field[Any]) -> Option:
    """How the keyword that a field declares is described."""
    described: Option = declared.metadata["option"]
    return described


def help_of(group: type[Keywords], declared: dataclasses.Field[Any]) -> str:
    """Text of docstrings for a keyword of a group."""
    texts = (cls.HELP.get(declared.name) for cls in group.__mro__ if issubclass(cls, Keywords))
    return next(filter(None, texts), option_in(declared).help)


def command_help_of(group: type[Keywords], declared: dataclasses.Field[Any]) -> str:
    """Text of commands for a keyword of a group."""
    classes = (cls for cls in group.__mro__ if issubclass(cls, Keywords))
    texts = (cls.COMMAND_HELP.get(declared.name) for cls in classes)
    described = option_in(declared)
    return next(filter(None, texts), described.command_help or " ".join(described.help.split()))


def section_of(group: type[Keywords], name: str) -> str:
    """Section of the help of commands for a keyword: that of the group which declares it."""
    classes = (cls for cls in reversed(group.__mro__) if issubclass(cls, Keywords))
    return next(cls.section for cls in classes if name in cls.__annotations__)


def names(*groups: type) -> list[str]:
    """Names of the keywords of groups."""
    return [declared.name for group in groups for declared in dataclasses.fields(group)]


def options_from(arguments: Any, kind: type[_T], **others: Any) -> _T:
    """Options of a kind, with the values of the arguments that have the same names."""
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    shared = {
        each.name: getattr(arguments, each.name)
        for each in fields
        if each.init and hasattr(arguments, each.name)
    }
    return kind(**{**shared, **others})


@keywords
class NameKeywords(Keywords):
    """Where an array lies in its store."""

    section: ClassVar[str] = "Array"

    name: str | None = option(
        None,
        """Path of the array in the store. Missing groups above it are created. Without a name,
        the array is the store itself.""",
        command_help="Path of the array inside the store.",
    )


@keywords
class NamesKeywords(Keywords):
    """Where several arrays lie in their stores."""

    section: ClassVar[str] = "Array"

    names: Sequence[str | None] | None = option(
        None,
        "Path of each array in its store.",
        kind="sequence of str or None",
        parser="names",
        command_help="Paths of several arrays inside the store, such as raw,labels, in place of "
        "--name. Their shards are cut into parts together.",
    )


@keywords
class ArrayKeywords(Keywords):
    """Keywords that describe a new array, with the meanings of `zarr.create_array`."""

    section: ClassVar[str] = "Array"

    shards: Sized | Mapping[str, Any] = option(
        "auto",
        """Shape of a shard, in elements: a shape, one size for all axes, a decoded size in bytes
        such as ``"256MB"``, or ``"auto"``. A mapping such as ``{"time": 720, ...: -1}`` has sizes
        along axes, by their names or numbers. An axis with -1 is whole, as are all that are not
        named. The key ``...`` gives these another size. A text such as ``"8 chunks"`` is a number
        of inner chunks, for all axes or for one in a mapping. One axis of a mapping may have bytes,
        as in ``{"time": "64MB"}``: so many steps that the whole box has no more. ``shards=None``
        stands for an array
        without shards, in which each chunk is an object of its own. `shards` may also be a mapping
        as zarr-python takes it: ``{"shape": ..., "index_location": ...}``.""",
        kind="int, tuple of int, mapping, str or None",
        parser="sizes",
        command_help="Size of a shard (one file): 256 or 256,256,64 elements, time=720,...=-1 by "
        "axes, '8 chunks', 256MB, auto, or none for an array without shards.",
    )
    chunks: Sized = option(
        "auto",
        "Shape of an inner chunk, in elements, given in the same ways.",
        kind="int, tuple of int, mapping or str",
        parser="sizes",
        command_help="Size of an inner chunk, likewise: 64, 64,64,16, 512kB or auto.",
    )
    compressors: Any = option(
        "auto",
        """As in `zarr.create_array`. ``"auto"`` stands for zstd followed by crc32c. The name of a
        compressor alone, such as ``"gzip"``, stands for it followed by crc32c. A list, a mapping or
        a codec of zarr stands for exactly these codecs: ``["gzip"]`` has no checksum.""",
        kind="codec, sequence of codec, str or None",
        parser="json",
        command_help="A codec's name (a checksum follows), a JSON list of exactly these codecs, "
        "none, or auto (zstd with a checksum).",
    )
    filters: Any = option(
        "auto",
        "As in `zarr.create_array`.",
        kind="sequence of codec",
        parser="json",
        example='[{"name": "transpose", "configuration": {"order": [1, 0]}}]',
        command_help="JSON list of codecs that change values before they are compressed.",
    )
    serializer: Any = option(
        "auto",
        "As in `zarr.create_array`.",
        kind="codec",
        parser="codec",
        command_help="Codec that makes bytes of values: a codec's name, a JSON object such as a "
        "sharding (for shards within shards), or auto (little-endian bytes).",
    )
    fill_value: Any = option(
        None,
        "As in `zarr.create_array`.",
        kind="scalar",
        command_help="Value of elements that are not stored, in the dtype of the array: 5, nan, "
        "true, 1+2j or 0x7fc00001. Default: that of SRC.",
    )
    index_location: str = option(
        "end",
        "Position of the index in each shard.",
        choices=("end", "start"),
        command_help="Where a shard holds its index.",
    )
    index_codecs: Any = option(
        None,
        """Codecs of the index; the encoded size must be fixed. Little-endian bytes and crc32c by
        default.""",
        kind="sequence of codec",
        flag=None,
    )
    shard_format: Any = option(
        None,
        """Format of the shards, in place of the one of the sharding specification; see
        :func:`register_shard_format`.""",
        kind="ShardFormat",
        flag=None,
    )
    chunk_key_encoding: Any = option(
        None, "As in `zarr.create_array`.", kind="str or mapping", flag=None
    )
    dimension_names: Sequence[str | None] | None = option(
        None,
        "As in `zarr.create_array`.",
        kind="sequence of str or None",
        parser="names",
        command_help="Names of the axes, such as time,y,x. Default: those of SRC.",
    )
    attributes: Mapping[str, Any] | None = option(
        None,
        "As in `zarr.create_array`.",
        kind="mapping",
        parser="attributes",
        command_help="JSON object of attributes, added to those of SRC.",
    )
    order: str | None = option(
        None,
        """As in `zarr.create_array`: the order in memory of what zarr-python reads. Zarr v3 does
        not store it, so it changes nothing of what is written. The filter ``"transpose"`` does.""",
        choices=("C", "F"),
        flag=None,
    )
    zarr_format: int | None = option(
        None,
        "As in `zarr.create_array`. Zarr v2 has no shards and is refused.",
        kind="{3}",
        flag=None,
    )
    format: str | None = option(
        None,
        """Write the documents and keys of the storage transformer of 2022, with the store as the
        hierarchy and `name` as the path of the array in it.""",
        choices=("transformer-2022",),
        flag="array-format",
        command_help="Write an array of the storage transformer of 2022. Default: Zarr v3.",
    )
    manifest: Manifest = option(
        None,
        "Keep the list of the inner chunks that hold data in an attribute of this name.",
        choices=("nonempty_chunks",),
    )


@keywords
class StrategyKeywords(Keywords):
    """How inner chunks are placed in shards."""

    section: ClassVar[str] = "Array"

    strategy: Any = option(
        "fixed-order",
        """The write strategy, its name, or an order of inner chunks: ``"C"``, ``"F"`` or
        ``"morton"``. It is not stored in the metadata.""",
        kind="FixedOrder, AppendOnly, Hdf5 or str",
        suggested=STRATEGIES,
        command_help="How inner chunks are placed in a shard: fixed-order, append-only, C, F or "
        "morton; or hdf5, which makes each shard a file of HDF5, too, or hdf5:NAME with this name "
        "of the dataset.",
    )


@keywords
class EmptyKeywords(Keywords):
    """What becomes of chunks without data."""

    section: ClassVar[str] = "Array"

    write_empty_chunks: bool = option(
        False,
        "Store also inner chunks and shards that hold only the fill value.",
        command_help="Also store inner chunks that hold only the fill value.",
    )


@keywords
class MemoryKeywords(Keywords):
    """The memory of a process."""

    section: ClassVar[str] = "Threads, processes and memory"

    memory_limit: int | str | None = option(
        None,
        """Bytes that a worker process may use, as a number or a text such as ``"4GB"``. The limit
        of the active engine by default.""",
        command_help="Memory of each worker process, such as 4GB. Default: what it may use, or in "
        "a job array, 1 GiB for each thread.",
    )


@keywords
class ProcessKeywords(MemoryKeywords):
    """The memory of a process, where no job array does the work."""

    COMMAND_HELP: ClassVar[Mapping[str, str]] = {
        "memory_limit": "Memory of each worker process, such as 4GB. Default: what it may use."
    }


@keywords
class SourceKeywords(MemoryKeywords):
    """What a process reads, and the memory that it has for it."""

    source_id: str | None = option(
        None,
        """Identifier of the source. Runs with the same identifier have the same data. By default
        it is made of dask's name of the source.""",
        flag=None,  # commands have it among the options of a source
    )


@keywords
class GraphKeywords(SourceKeywords):
    """How large task graphs are."""

    max_graph_tasks: int = option(
        100_000,
        "Number of tasks that the scheduler may hold at a time. A larger graph is cut into waves.",
        flag=None,
    )


@keywords
class PlanKeywords(StrategyKeywords, EmptyKeywords, GraphKeywords):
    """Keywords that control a plan, but do not describe the array."""

    compression_ratio: float | None = option(
        None,
        """Expected ratio of decoded to encoded size. Only the plan's `expected_memory` uses it, and
        the check whether a bucket takes such large shards. The memory limit is checked for data
        that do not compress.""",
        flag=None,
    )
    max_source_reruns: float = option(
        1.25,
        "How often a source task may run on average, if several waves need it.",
        flag=None,
    )


@keywords
class StateKeywords(Keywords):
    """Where the state of a run lies."""

    section: ClassVar[str] = "Run"

    run_dir: Any = option(
        None,
        """Directory for the state of the run, if the array lies in no directory. All processes of
        the run must see it. By default it is ``shardwrite.run-dir`` in the configuration of dask.
        For a store of one process, it is a temporary directory. For a bucket no directory is
        needed: the state lies there until the run ends.""",
        kind="str or path",
        flag=None,
        command_help="Directory of the run's state, if ARRAY lies in no directory.",
    )


@keywords
class DurabilityKeywords(Keywords):
    """What survives a power cut."""

    section: ClassVar[str] = "Run"

    durability: str | None = option(
        None,
        """Whether shards are synced to disk one by one before they count as committed, many at a
        time, or not at all. By default the strongest that the store can promise: ``"full"`` in a
        directory, ``"none"`` in memory.""",
        choices=DURABILITIES,
        command_help="What survives a power cut: full and batch sync shards to the disk, none does "
        "not. Default: full.",
    )


@keywords
class BeginKeywords(DurabilityKeywords):
    """How a run begins."""

    restart: bool = option(
        False,
        """Remove the shards of an unfinished run and start over. An array that the run was
        replacing is put back before; to replace it, give ``mode="w"``, too.""",
        command_help="Remove what an interrupted run has written, and start over.",
    )


@keywords
class ModeKeywords(Keywords):
    """Whether a run that makes an array may replace one."""

    mode: str = option(
        "w-",
        """``"w-"`` refuses to overwrite anything, and ``"w"`` replaces an array; see
        :func:`to_sharded_zarr`.""",
        choices=("w-", "w"),
        flag=None,
    )


@keywords
class ResumeKeywords(BeginKeywords):
    """How a run goes on, too."""

    recheck: bool = option(
        False,
        """Before an unfinished run is continued, decode the shards that it has committed and write
        the bad ones again. The same is done if the array was finished before.""",
        command_help="Decode the shards that an earlier call has written, and write the bad ones "
        "again.",
    )


@keywords
class ReportKeywords(Keywords):
    """What is kept of a run."""

    section: ClassVar[str] = "Run"

    keep_report: bool = option(
        False,
        """Keep a report of the run in the array, as ``shardwrite-report.json`` beside the receipt.
        :func:`report` reads it. Its size does not grow with the number of shards.""",
        command_help="Keep a report of the run, with its timeline, in the array.",
    )


@keywords
class RunKeywords(ResumeKeywords, ReportKeywords):
    """Keywords that say how a run goes."""


@keywords
class ViaKeywords(Keywords):
    """Where shards wait until they are put into a bucket."""

    section: ClassVar[str] = "Run"

    via: Any = option(
        None,
        """Directory on each machine's own disk, in which shards wait until they are put into a
        bucket, in place of memory. It may name variables, such as ``$SLURM_TMPDIR``.""",
        kind="str or path",
        parser="directory",
        command_help="With a bucket: let shards wait in this directory on each machine's own disk "
        "until they are put. It may name variables, such as '$SLURM_TMPDIR'. Default: they wait in "
        "memory.",
    )


@keywords
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


@keywords
class StagedKeywords(Keywords):
    """How an update reads what it changes."""

    staged: bool = option(
        False,
        """Compute all values of the region, or of all regions of the call, and keep them on disk
        before any shard changes. This is done in any case if the graph of a source shows that it
        reads an array that the call changes. Give True if a function of yours opens such an array
        by itself.""",
        flag=None,
    )


@keywords
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


@keywords
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


@arguments
class ExistingArguments(NameKeywords):
    """Arguments that say which array is meant, of those that exist."""

    HELP: ClassVar[Mapping[str, str]] = {"name": "Path of the array in the store."}

    store: Any = argument(
        """A directory; a URL such as ``s3://bucket/x.zarr``; a store of zarr-python or obstore; or
        a group or array of zarr-python.""",
        kind="str, path, or store or node of zarr-python",
    )


@arguments
class RunArguments(StateKeywords, ExistingArguments):
    """Arguments of `abandon` and `report`."""


@keywords
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
