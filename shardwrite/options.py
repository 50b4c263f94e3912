"""Keywords of functions, each said once: its name, type and default, and a text for users.

Keywords are fields of frozen dataclasses, one class for each group. From the fields are made the
signature and the docstring of a function (`entry.public`), the options of commands and the
arguments in job scripts (`cli.options`), and the reference. Rooms derive their own options from a
group, and check the values; see `PlanOptions`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from shardwrite.grid import Sized

MAX_GRAPH_TASKS = 100_000
"""Tasks that the scheduler may hold at the same time, by default."""

MAX_SOURCE_RERUNS = 1.25
"""Most times that a source task may run, on average over all source tasks, by default."""

Manifest = Literal["nonempty_chunks"] | None

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What users are told of a keyword, and how a command takes it."""

    help: str  # for docstrings
    kind: str = ""  # what is given for it, in words; made of the annotation or choices if empty
    choices: tuple[str, ...] = ()
    # Option of commands, without dashes; None if commands have none, and empty for the name
    flag: str | None = ""
    opposite: str = ""  # option of commands that says the contrary, such as no-NAME
    least: int | None = None  # smallest and largest number that a command takes
    most: int | None = None
    command_help: str = ""  # for commands; `help` if empty
    parser: str = ""  # what reads the text of an option; see `cli.options`
    example: str = ""  # what the parser proposes, if it cannot read a text
    suggested: tuple[str, ...] = ()  # what a shell completes, where other texts can be given, too


def option(default: _T, help: str, **told: Any) -> _T:  # noqa: A002 (the word of click)
    """Declare a keyword: its default, a text for users, and the fields of `Option`."""
    found: _T = field(default=default, metadata=described(help, **told))
    return found


def described(help: str, **told: Any) -> Mapping[str, Option]:  # noqa: A002 (the word of click)
    """Metadata of the field of an argument that must be given."""
    return {"option": Option(help=help, **told)}


def told_of(declared: dataclasses.Field[Any]) -> Option:
    """What users are told of the keyword that a field declares."""
    found: Option = declared.metadata["option"]
    return found


def flag_of(declared: dataclasses.Field[Any]) -> str:
    """Option of commands for the keyword that a field declares."""
    return f"--{(told_of(declared).flag or declared.name).replace('_', '-')}"


def metadata_of(group: type[Keywords], name: str) -> Mapping[str, Option]:
    """Metadata of a keyword, for another group in which it must be given, or has another type."""
    return {"option": told_of(next(one for one in dataclasses.fields(group) if one.name == name))}


def names(*groups: type) -> list[str]:
    """Names of the keywords of groups."""
    return [declared.name for group in groups for declared in dataclasses.fields(group)]


def taken_from(given: Any, kind: type[_T], **others: Any) -> _T:
    """Options of a kind, with the values that keywords of the same names have."""
    known = (one.name for one in dataclasses.fields(kind) if one.init)  # type: ignore[arg-type]
    same = {name: getattr(given, name) for name in known if hasattr(given, name)}
    return kind(**{**same, **others})


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class Keywords:
    """Base of all groups."""

    section: ClassVar[str] = "Options"  # of the help of commands
    # Words of a docstring that hold in place of those of a group that this one is derived from
    HELP: ClassVar[Mapping[str, str]] = {}


def section_of(group: type[Keywords], name: str) -> str:
    """Section of the help of commands for a keyword: that of the group which declares it."""
    classes = (one for one in reversed(group.__mro__) if issubclass(one, Keywords))
    return next(one.section for one in classes if name in one.__annotations__)


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class NameKeywords(Keywords):
    """Where an array lies in its store."""

    section: ClassVar[str] = "Array"

    name: str | None = option(
        None,
        """Path of the array in the store. Missing groups above it are created. Without a name,
        the array is the store itself.""",
        command_help="Path of the array inside the store.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ArrayKeywords(Keywords):
    """Keywords that describe a new array, with the meanings of `zarr.create_array`."""

    section: ClassVar[str] = "Array"

    shards: Sized | Mapping[str, Any] = option(
        "auto",
        """Shape of a shard, in elements: a shape, one size for all axes, a decoded size in bytes
        such as ``"256MB"``, or ``"auto"``. ``shards=None`` stands for an array without shards, in
        which each chunk is an object of its own. `shards` may also be a mapping as zarr-python
        takes it: ``{"shape": ..., "index_location": ...}``.""",
        kind="int, tuple of int, str or None",
        parser="sizes",
        command_help="Size of a shard (one file): 256 or 256,256,64 elements, 256MB, auto, or none "
        "for an array without shards.",
    )
    chunks: Sized = option(
        "auto",
        "Shape of an inner chunk, in elements, given in the same ways.",
        kind="int, tuple of int or str",
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StrategyKeywords(Keywords):
    """How inner chunks are placed in shards."""

    section: ClassVar[str] = "Array"

    strategy: Any = option(
        "fixed-order",
        """The write strategy, its name, or an order of inner chunks: ``"C"``, ``"F"`` or
        ``"morton"``. It is not stored in the metadata.""",
        kind="FixedOrder, AppendOnly, Hdf5 or str",
        suggested=("fixed-order", "append-only", "C", "F", "morton", "hdf5"),
        command_help="How inner chunks are placed in a shard: fixed-order, append-only, C, F or "
        "morton; or hdf5, which makes each shard a file of HDF5, too, or hdf5:NAME with this name "
        "of the dataset.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class EmptyKeywords(Keywords):
    """What becomes of chunks without data."""

    section: ClassVar[str] = "Array"

    write_empty_chunks: bool = option(
        False,
        "Store also inner chunks and shards that hold only the fill value.",
        command_help="Also store inner chunks that hold only the fill value.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SourceKeywords(MemoryKeywords):
    """What a process reads, and the memory that it has for it."""

    source_id: str | None = option(
        None,
        """Identifier of the source. Runs with the same identifier have the same data. By default
        it is made of dask's name of the source.""",
        flag=None,  # commands have it among the options of a source
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GraphKeywords(SourceKeywords):
    """How large task graphs are."""

    max_graph_tasks: int = option(
        MAX_GRAPH_TASKS,
        "Number of tasks that the scheduler may hold at a time. A larger graph is cut into waves.",
        flag=None,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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
        MAX_SOURCE_RERUNS,
        "How often a source task may run on average, if several waves need it.",
        flag=None,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class StateKeywords(Keywords):
    """Where the state of a run lies."""

    run_dir: Any = option(
        None,
        """Directory for the state of the run, if the array lies in no directory. All processes of
        the run must see it. By default it is ``shardwrite.run-dir`` in the configuration of dask.
        For a store of one process, it is a temporary directory. For a bucket no directory is
        needed: the state lies there until the run ends.""",
        kind="str or path",
        flag=None,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class BeginKeywords(Keywords):
    """How a run begins."""

    section: ClassVar[str] = "Run"

    restart: bool = option(
        False,
        """Remove the shards of an unfinished run and start over. An array that the run was
        replacing is put back before; to replace it, give ``mode="w"``, too.""",
        command_help="Remove what an interrupted run has written, and start over.",
    )
    durability: str | None = option(
        None,
        """Whether shards are synced to disk one by one before they count as committed, many at a
        time, or not at all. By default the strongest that the store can promise: ``"full"`` in a
        directory, ``"none"`` in memory.""",
        choices=("full", "batch", "none"),
        command_help="What survives a power cut: full and batch sync shards to the disk, none does "
        "not. Default: full.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModeKeywords(Keywords):
    """Whether a run that makes an array may replace one."""

    mode: str = option(
        "w-",
        """``"w-"`` refuses to overwrite anything, and ``"w"`` replaces an array; see
        :func:`to_sharded_zarr`.""",
        choices=("w-", "w"),
        flag=None,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ResumeKeywords(BeginKeywords):
    """How a run goes on, too."""

    recheck: bool = option(
        False,
        """Before an unfinished run is continued, decode the shards that it has committed and write
        the bad ones again. The same is done if the array was finished before.""",
        command_help="Decode the shards that an earlier call has written, and write the bad ones "
        "again.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ReportKeywords(Keywords):
    """What is kept of a run."""

    section: ClassVar[str] = "Run"

    keep_report: bool = option(
        False,
        """Keep a report of the run in the array, as ``shardwrite-report.json`` beside the receipt.
        :func:`report` reads it. Its size does not grow with the number of shards.""",
        command_help="Keep a report of the run, with its timeline, in the array.",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class RunKeywords(ResumeKeywords, ReportKeywords):
    """Keywords that say how a run goes."""


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
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
