"""Keywords of the functions that convert arrays, in groups, and the arguments made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final

from shardwrite.grid import Sized
from shardwrite.operations.keywords import FinalizeKeywords, ProgressKeywords
from shardwrite.options import (
    ArrayKeywords,
    BeginKeywords,
    Keywords,
    Manifest,
    MemoryKeywords,
    ModeKeywords,
    ResumeKeywords,
    SourceKeywords,
    StateKeywords,
    StrategyKeywords,
    argument,
    arguments,
    keywords,
    option,
    same_as,
)

if TYPE_CHECKING:
    from shardwrite.write.copying import Check


# ---- Groups of keywords


@keywords
class CodecKeywords(Keywords):
    """What chunks become, if they do not stay as they are."""

    section: ClassVar[str] = "Array"

    chunks: Sized = option(
        None,
        """Shape of an inner chunk **in elements**, or its decoded size, such as ``"1MB"``. By
        default the inner chunks stay.""",
        kind="int, sequence of int or str",
        parser="sizes",
        command_help="Size of an inner chunk: 64 or 64,64,16 elements, or 512kB. Default: as in "
        "SRC.",
    )
    compressors: Any = option(
        "keep",
        """Compressors of the inner chunks, as in :func:`to_sharded_zarr`: a name alone is followed
        by crc32c, and a list is taken as it is. ``"keep"`` leaves them as they are. With others, an
        array of shards within shards gets a single level of shards.""",
        kind='codec, sequence of codec, "auto", "keep" or None',
        parser="json",
        command_help="A codec's name (a checksum follows), a JSON list of exactly these codecs, "
        "none, auto (zstd with a checksum), or keep.",
    )


@keywords
class IndexKeywords(Keywords):
    """What the shards become."""

    section: ClassVar[str] = "Array"

    index_location: str | None = option(
        None,
        "Position of the index in each shard. By default as in the source, or at the end.",
        choices=("end", "start"),
        command_help="Where a shard holds its index. Default: as in SRC, or at the end.",
    )


@keywords
class CheckKeywords(Keywords):
    """How chunks are looked at."""

    section: ClassVar[str] = "Run"

    check: Check = option(
        False,
        """Decode each chunk before it is copied. ``"twice"`` also reads chunks that have no
        checksum a second time, from the storage and not from a cache, and compares.""",
        kind='bool or "twice"',
        command_help="Decode each chunk before it is copied.",
    )
    drop_empty: bool = option(
        False,
        "Leave out chunks that hold only the fill value. All chunks are decoded for that.",
        command_help="Leave out chunks that hold only the fill value. This decodes all chunks.",
    )


@keywords
class CopyKeywords(CheckKeywords):
    """What becomes of chunks that are copied."""

    section: ClassVar[str] = "Array"
    HELP: ClassVar[Mapping[str, str]] = {
        "dimension_names": "Names of the dimensions. By default as in the source.",
        "manifest": """Keep the list of the inner chunks that hold data in an attribute of this
        name, as zarr-vectors does. shardwrite keeps it up to date. If the source has the list, the
        new array has it, too.""",
    }

    checksum: bool | None = option(
        None,
        """True adds a crc32c at the end of each chunk. False checks it and drops it. None leaves
        chunks as they are. A new crc32c cannot show that the bytes were damaged before; see
        `check`.""",
        opposite="no-checksum",
        command_help="Add a checksum (crc32c) to each chunk, or verify and drop it. Default: as in "
        "SRC.",
    )
    dimension_names: Sequence[str | None] | None = same_as(
        ArrayKeywords, "dimension_names", default=None
    )
    manifest: Manifest = same_as(ArrayKeywords, "manifest", default=None)


# ---- Arguments of functions


class _Default(str):
    """A default that is told from the same word when a user gives it."""

    __slots__ = ()


class _Where(Enum):
    IN_PLACE = "in place"

    def __repr__(self) -> str:
        return self.name


AUTO: Final = _Default("auto")
"""Default of `shards`."""

IN_PLACE: Final = _Where.IN_PLACE
"""Default of `dst`."""

_DST = """Where the new array or group goes. Without it, `src` is converted in place, unless it has
    these shards already. The new data are written beside the old data, and are compared with them.
    Then they take the old name, and the old data are removed. This needs room for both."""

_DST_KIND = "str, path, or store or node of zarr-python"

_SHARDS = """Shape of a shard in inner chunks: ``8`` along each axis, or ``(4, 4, 16)``. Or its
    decoded size, such as ``"256MB"``. Or the dimensions that a shard spans as a whole, such as
    ``"XYZ"`` or ``"lat,lon"``; it has one inner chunk along every other axis. ``"auto"`` makes
    shards of at most 64 MiB."""

_NONE = " None makes an array without shards."

_FOR_COMMANDS: Mapping[str, str] = {
    "parser": "sizes",
    "command_help": "Inner chunks of a shard: 8 along each axis or 4,4,16. Or its decoded size, "
    "256MB. Or the dimensions that it spans whole, XYZ or lat,lon. Or none.",
}

_KIND, _KIND_OR_NONE = "int, sequence of int, or str", "int, sequence of int, str or None"

_AS_GIVEN = "As it was given to :func:`prepare_conversion`."


@arguments
class SourceArgument(Keywords):
    """What is converted."""

    src: Any = argument(
        """The existing array, or a group with all arrays in it: a directory; a URL; a store of
        zarr-python or obstore; or a node of zarr-python. It may be of Zarr v2, and lie in a ZIP
        file. A file of HDF5 or NetCDF-4 is also a source. ``file.h5::path`` names a group or an
        array in a file.""",
        kind="str, path, or store or node of zarr-python",
    )


@keywords
class TreeKeywords(Keywords):
    """Which arrays of a hierarchy are converted."""

    section: ClassVar[str] = "Which arrays"

    include: str | Sequence[str] = option(
        (),
        """Patterns for the paths of arrays in a group, such as ``"images/*"``. Only arrays that fit
        one of them are converted.""",
        kind="str or sequence of str",
        parser="patterns",
        command_help="Convert only arrays whose paths fit, such as images/*. May be repeated.",
    )
    exclude: str | Sequence[str] = option(
        (),
        "Patterns, likewise. Arrays that fit one of them are left out.",
        kind="str or sequence of str",
        parser="patterns",
        command_help="Leave out arrays whose paths fit. May be repeated.",
    )
    min_chunks: int | None = option(
        2,
        "In a group, arrays with fewer inner chunks keep the shards that they have.",
        kind="int",
        least=0,
        command_help="In a group, arrays with fewer inner chunks keep their shards.",
    )


@keywords
class ConversionKeywords(TreeKeywords, CopyKeywords):
    """What becomes of which arrays."""


@keywords
class ConvertKeywords(
    ProgressKeywords,
    SourceKeywords,
    ResumeKeywords,
    ModeKeywords,
    StateKeywords,
    StrategyKeywords,
    ConversionKeywords,
):
    """Keywords of `shard`, `unshard` and `reshard`."""

    section: ClassVar[str] = "Run"

    HELP: ClassVar[Mapping[str, str]] = {
        "source_id": """Identifier of the source. Runs with the same identifier have the same data.
        By default it is derived from the place, the document of the array, and its time.""",
    }

    consume: bool = option(
        False,
        """Remove each file of `src` as soon as the shards with its data are durable and were
        compared with it. Use this if there is no room for two copies. There is no way back: in the
        end, `src` is gone. `src` must be a directory, with `dst` elsewhere, and all its chunks must
        be copied as they are. A hierarchy is converted as a whole, array by array.""",
        command_help="Remove each file of SRC as soon as the shards with its data are durable and "
        "were compared with it. There is no way back.",
    )
    while_growing: int | str | None = option(
        None,
        """Axis, by its number or name, along which another program still writes `src` step by step.
        Only shards whose steps are complete are written. Complete are the last step whose chunks
        are all there, and after which another one has begun, and all steps before it. Make the same
        call again to convert what has come since. When `src` is whole, make the call without this
        keyword. Then `dst` appears. Shape and attributes of `src` must not change meanwhile.""",
        parser="axis",
        command_help="A program still writes SRC step by step along this axis, a number or a name. "
        "Convert only the steps that are complete.",
    )
    drop_hdf5: bool = option(
        False,
        """Allow a conversion in place, or with `consume`, of an array whose shards are also HDF5
        files. They are removed, with everything else that they hold. Without it, only the strategy
        :class:`Hdf5` converts such an array, and the new files hold only its dataset.""",
        command_help="With --in-place or --consume: give up shards of SRC that are HDF5 files, "
        "with everything else in them.",
    )


@arguments
class ShardArguments(IndexKeywords, ConvertKeywords, SourceArgument):
    """Arguments of `shard`."""

    dst: Any = option(None, _DST, kind=_DST_KIND)
    shards: Sized = option("auto", _SHARDS, kind=_KIND, **_FOR_COMMANDS)


@arguments
class UnshardArguments(ConvertKeywords, SourceArgument):
    """Arguments of `unshard`."""

    dst: Any = option(None, _DST, kind=_DST_KIND)


@arguments
class ReshardArguments(CodecKeywords, IndexKeywords, ConvertKeywords, SourceArgument):
    """Arguments of `reshard`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "min_chunks": """In a group, arrays with fewer inner chunks keep the shards that they have.
        By default 2, and 0 in ``reshard(path, 4)`` and ``reshard(path, None)``.""",
    }

    dst: Any = option(
        IN_PLACE,
        """See :func:`shard`. In its place you can give `shards`, as a number, a sequence of numbers
        or None. Then, and if you leave `dst` out, `src` is converted in place.""",
        kind=f"{_DST_KIND}, optional",
    )
    shards: Sized = option(AUTO, _SHARDS + _NONE, kind=_KIND_OR_NONE, **_FOR_COMMANDS)
    min_chunks: int | None = same_as(TreeKeywords, "min_chunks", default=None, kw_only=True)


@arguments
class PlanReshardArguments(
    MemoryKeywords,
    StrategyKeywords,
    CodecKeywords,
    IndexKeywords,
    ConversionKeywords,
    SourceArgument,
):
    """Arguments of `plan_reshard`."""

    shards: Sized = option(
        "auto",
        f"{_SHARDS} None plans what :func:`unshard` would do.",
        kind=_KIND_OR_NONE,
    )
    dst: Any = argument(
        """Where the result would go. A bucket needs more memory than a file system. By default,
        the result takes the place of the source.""",
        kind="str, path, or store",
        default=None,
        kw_only=True,
    )


@keywords
class PartKeywords(
    SourceKeywords,
    StateKeywords,
    StrategyKeywords,
    CodecKeywords,
    IndexKeywords,
    ConversionKeywords,
):
    """Keywords of functions that convert in parts. All calls must give the same ones."""

    HELP: ClassVar[Mapping[str, str]] = ConvertKeywords.HELP


@arguments
class PrepareConversionArguments(BeginKeywords, ModeKeywords, PartKeywords, SourceArgument):
    """Arguments of `prepare_conversion`."""

    dst: Any = argument("Where the new array or group goes.", kind=_DST_KIND)
    shards: Sized = option("auto", _SHARDS + _NONE, kind=_KIND_OR_NONE)


@arguments
class PreparedArguments(PartKeywords):
    """What was prepared."""

    src: Any = argument(_AS_GIVEN, kind=_DST_KIND)
    dst: Any = argument(_AS_GIVEN, kind=_DST_KIND)


@arguments
class ConvertPartArguments(ProgressKeywords, PreparedArguments):
    """Arguments of `convert_part`."""

    HELP: ClassVar[Mapping[str, str]] = {
        "memory_limit": """Bytes that this process may use, as a number or a text such as ``"4GB"``.
        By default the limit of the job, the control group or the machine.""",
    }

    index: int = argument("Number of this part, counted from 0.")
    count: int = argument("Number of all parts.")
    shards: Sized = option("auto", _AS_GIVEN, kind=_KIND_OR_NONE)


@arguments
class FinalizeConversionArguments(FinalizeKeywords, PreparedArguments):
    """Arguments of `finalize_conversion`."""

    shards: Sized = option("auto", _AS_GIVEN, kind=_KIND_OR_NONE)
