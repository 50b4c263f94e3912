"""Shards that are files of HDF5: which dataset is the array's, and what programs make of them."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from shardwrite._dataclass import dataclass
from shardwrite.codecs.stages import Ranges
from shardwrite.encode.reader import ShardReader
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.format.frame import HDF5, Frame, OldShards
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import Strategy
from shardwrite.grid import Shape, ShardGrid, counts_of
from shardwrite.hdf5.format import ADDRESS, END_OF_FILE, describe
from shardwrite.hdf5.layout import Hdf5Frame, require_h5py
from shardwrite.hdf5.strategy import DEFAULT_DATASET, Hdf5, dataset_of
from shardwrite.read.signatures import magic_at
from shardwrite.read.stored_shard import ExistingShard
from shardwrite.sources.inside import FileStream

_DAMAGE = (ArithmeticError, LookupError, OSError, RuntimeError, TypeError, ValueError)
"""What h5py raises where a file is damaged."""


# ---- Names and chunks of datasets, as the library reads them


def dataset_names(
    source: Ranges,
    grid: ShardGrid,
    index: ShardIndex | None,
    among: Iterable[str | None] = (),
    *,
    is_enough: bool = False,
) -> list[str]:
    """Names of the dataset in a file of HDF5 that has the chunks of a shard.

    It may have several names, of which only one is found by a look through the file.

    - `index`: index of the shard: the chunks of the dataset lie where it says. Without it, all
      datasets whose chunks have the right shape are found.
    - `among`: further names, which are looked up. Those that the file has come first.
    - Returns: the names; none if the library cannot read the file, or is not installed.
    """
    if not has_library():
        return []
    import h5py  # slow

    names: list[str] = []

    def visit(name: str, node: object) -> None:
        if is_it(node):
            names.append(name)

    def is_it(node: object) -> bool:
        if not isinstance(node, h5py.Dataset) or node.chunks != grid.chunks:
            return False
        return index is None or _has_places(node, grid, index)

    try:
        with h5py.File(FileStream(source), "r") as file:
            known = [name for name in among if is_it(file.get(name or "/"))]
            if not (known and is_enough):
                file.visititems(visit)
    except StoreError:
        raise
    except _DAMAGE:
        return []  # no program reads it as such a file
    return list(dict.fromkeys([name for name in known if name is not None] + names))


@cache
def has_library() -> bool:
    """Whether the library of HDF5 is installed, which is an extra."""
    return find_spec("h5py") is not None


def _has_places(dataset: Any, grid: ShardGrid, index: ShardIndex) -> bool:
    """Whether the chunks of a dataset lie where the index of a shard says."""
    stored = stored_chunks(dataset)
    if stored is None:
        return False
    at, places = stored[:, :-3], stored[:, -3:-1]
    counts = grid.chunks_per_shard
    if len(at) != index.n_present or (at >= np.array(counts, np.int64)).any():
        return False
    indexed = index.table[np.ravel_multi_index(tuple(at.T), counts)].astype(np.int64)
    # Some versions of the library do not count the user block at the start of the file.
    bases = {0, int(dataset.file.userblock_size)}
    return any(bool((indexed == places + np.array([base, 0])).all()) for base in bases)


def stored_chunks(dataset: Any) -> npt.NDArray[np.int64] | None:
    """Chunks that have a place in a file, as the library of HDF5 tells it.

    Where one axis is unlimited, and it is not the first, all versions of the library up to 2.0 list
    the chunks of an extensible array at wrong positions (`_turned`). The library does not tell
    which index a dataset has. So what it lists is compared with what it reads by position, which is
    right in all of them.

    - Returns: position in the grid of chunks, first byte, size and filter mask of each chunk. They
      are integers in one piece of memory, since a dataset may have millions of chunks. None if the
      library lists chunks that the dataset cannot have, or does not read them where they are.
    """
    listed = array("q")

    def note(info: Any) -> None:
        if info.byte_offset is not None and info.size:
            listed.extend((*info.chunk_offset, info.byte_offset, info.size, info.filter_mask))

    if hasattr(dataset.id, "chunk_iter"):
        dataset.id.chunk_iter(note)
    else:  # HDF5 before 1.12.3
        for number in range(dataset.id.get_num_chunks()):
            note(dataset.id.get_chunk_info(number))
    table = np.asarray(listed, np.int64).reshape(-1, len(dataset.shape) + 3)
    positions, rest = np.divmod(table[:, :-3], np.array(dataset.chunks, np.int64))
    if rest.any() or table[:, -3:-1].sum(axis=1).max(initial=0) > dataset.file.id.get_filesize():
        return None  # it is damaged, and the library might take as much memory as it claims
    counts = chunk_counts(dataset)
    turned, ranks = _turned(dataset, positions), _ranks(positions, counts)
    if turned is not None:
        others = _ranks(turned, counts)
        is_listed = _is_read(dataset, ranks, others)
        if is_listed == _is_read(dataset, others, ranks):
            return None
        if not is_listed:
            positions, ranks = turned, others
    table[:, :-3] = positions
    return None if ranks is None else table


def chunk_counts(dataset: Any) -> Shape:
    """Number of chunks of a dataset along each axis."""
    return counts_of(dataset.shape, dataset.chunks)


def _turned(dataset: Any, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Positions of the chunks of an extensible array, from those that the library lists.

    Elements of this index have numbers, in which the unlimited axis is the slowest, wherever it
    stands. When the library lists them, it counts as if the first axis were the slowest. So it
    never gets beyond the unlimited axis, and all positions along the axes before that one are 0.

    - `positions`: int64, shape (n, ndim). Positions in the grid of chunks, as the library lists
      them.
    - Returns: the positions, if the dataset has this index. None if it cannot, or they are the
      same.
    """
    most = dataset.maxshape
    axis = most.index(None) if most.count(None) == 1 else 0
    if axis == 0 or not len(positions) or positions[:, :axis].any():
        return None
    counts = counts_of(most[:axis], dataset.chunks[:axis])
    turned = positions.copy()
    turned[:, axis], numbers = np.divmod(positions[:, axis], math.prod(counts))
    turned[:, :axis] = np.stack(np.unravel_index(numbers, counts), axis=1)
    return None if (turned == positions).all() else turned


def _ranks(positions: npt.NDArray[np.int64], counts: Shape) -> npt.NDArray[np.int64] | None:
    """Row-major ranks of positions in a grid; None if some are outside."""
    if (positions >= np.array(counts, np.int64)).any():
        return None
    ranks: npt.NDArray[np.int64] = np.ravel_multi_index(tuple(positions.T), counts)
    return ranks


def _is_read(
    dataset: Any, ranks: npt.NDArray[np.int64] | None, others: npt.NDArray[np.int64] | None
) -> bool:
    """Whether the library reads a chunk at one of these positions that is none of the others.

    The positions that it lists and those that `_turned` makes of them are never the same set.
    """
    if ranks is None:
        return False
    rank = ranks[0] if others is None else np.setdiff1d(ranks, others)[0]
    place = np.unravel_index(int(rank), chunk_counts(dataset))
    position = tuple(int(i) * c for i, c in zip(place, dataset.chunks, strict=True))
    try:
        dataset.id.read_direct_chunk(position)
    except (OSError, RuntimeError):
        return False
    return True


# ---- Framing and checks


_COMPRESSORS = ({"name": "zstd", "configuration": {"level": 0, "checksum": False}},)

_MAX_NAMES = 10


@dataclass(frozen=True, slots=True)
class Hdf5Framing:
    """Frames of the shards that `Hdf5` writes; see `format.frame.Framing`."""

    strategy: Hdf5

    def choose(self, compressors: Any, index_location: str | None) -> tuple[Any, str | None]:
        """See `Framing`: without the checksum crc32c, which HDF5 does not know.

        Nor does a compressor that is given by its name bring that checksum.
        """
        if isinstance(compressors, str) and compressors != "keep":
            compressors = _COMPRESSORS if compressors == "auto" else [compressors]
        return compressors, self.strategy.index if index_location is None else index_location

    def check_library(self) -> None:
        """See `Framing`."""
        require_h5py()

    def check_fits(self, metadata: ArrayMetadata) -> None:
        """See `Framing`."""
        describe(metadata, self.strategy)

    def around_nbytes(self, metadata: ArrayMetadata) -> int:
        """See `Framing`."""
        return 4 * describe(metadata, self.strategy).most_overhead_nbytes

    def frame(self, metadata: ArrayMetadata, index: Shape) -> Frame:
        """See `Framing`; the dataset has the shape of the shard, clipped at the array's end."""
        grid = metadata.grid
        extent = grid.shard_box(index).intersect(grid.whole).shape
        return Hdf5Frame(describe(metadata, self.strategy), extent)

    def may_replace(self, metadata: ArrayMetadata, key: str, old: Ranges) -> None:
        """See `Framing`; the dataset keeps its name."""
        name = self.strategy.name_in_file
        names = names_in(metadata, key, old, [name], is_enough=True)
        if names and name not in names:
            raise self._other_name(names, f"in the shard {key!r}")

    def for_update(self, shards: OldShards, indices: Iterable[Shape], *, drops: bool) -> Strategy:
        """See `Framing`; the dataset gets the name that it has in the files."""
        strategy = self.strategy
        if not fits_hdf5(shards.metadata) or (strategy.dataset is not None and drops):
            return strategy
        noted, chosen, where = next(iter(_noted(shards)), None), None, ""
        for index in indices:
            names = names_at(shards, index, strategy.dataset)
            key = shards.metadata.shard_key(index)
            here = f"in the shard {key!r}"
            if names is None:
                names, here = names_told(shards, index), "in the shards of the array"
            if not names:
                continue
            if strategy.dataset is not None:
                if strategy.dataset not in names:
                    raise self._other_name(names, here)
                continue
            if len(names) > 1 and noted not in names:
                raise SpecError(
                    f"the shard {key!r} has several datasets: {', '.join(map(repr, names))}",
                    field="strategy.dataset",
                    value=None,
                    remedy="give the name of the array's dataset, as in strategy="
                    f'"hdf5:{names[0]}"',
                )
            name = noted if noted in names else names[0]
            if chosen not in (None, name):
                raise SpecError(
                    f"the dataset is {chosen!r} {where}, and {name!r} {here}",
                    field="strategy.dataset",
                    value=None,
                    remedy="give one of the names, as in strategy="
                    f'"hdf5:{chosen}", with drop_hdf5=True',
                )
            chosen, where = name, here
        if strategy.dataset is not None:
            return strategy
        return replace(strategy, dataset=chosen or noted or DEFAULT_DATASET)

    def strategy_from_label(self, label: str) -> Strategy:
        """See `Framing`."""
        strategy = self.strategy
        return strategy if strategy.dataset else replace(strategy, dataset=dataset_of(label))

    def _other_name(self, names: Sequence[str], where: str) -> SpecError:
        """The error about a strategy that would give a dataset another name."""
        return SpecError(
            f"the dataset {where} is {' or '.join(map(repr, names))}, and would become "
            f"{self.strategy.name_in_file!r}",
            field="strategy.dataset",
            value=self.strategy.dataset,
            remedy='give strategy="hdf5", which keeps the name. To write files with another name '
            "in place of these, also give drop_hdf5=True to write_region, erase or repair",
        )


@lru_cache(maxsize=32)
def fits_hdf5(metadata: ArrayMetadata) -> bool:
    """Whether shards of an array can be files of HDF5."""
    try:
        describe(metadata, Hdf5())
    except SpecError:
        return False
    return True


def strategy_of(shard: ExistingShard) -> Hdf5 | None:
    """Strategy that writes a shard again as it is; None if HDF5 could not have written it.

    A file that the library cannot read is a plain shard, too.
    """
    metadata = shard.metadata
    if not fits_hdf5(metadata):
        return None
    require_h5py()
    names = dataset_names(shard.reader, metadata.grid, shard.index)
    return Hdf5(dataset=names[0]) if names else None


def names_in(
    metadata: ArrayMetadata,
    key: str,
    source: Ranges,
    among: Iterable[str | None] = (),
    *,
    is_enough: bool = False,
) -> list[str]:
    """Names of the dataset that has the chunks of a shard; see `dataset_names`.

    - `source`: the same, a file of HDF5. If its index is damaged, the chunks of the dataset need
      only have the right shape.
    """
    try:
        index = ShardReader(metadata, key, source).index
    except CorruptShardError:
        index = None
    return dataset_names(source, metadata.grid, index, among, is_enough=is_enough)


def names_at(shards: OldShards, index: Shape, wanted: str | None = None) -> list[str] | None:
    """Names of the dataset in a shard, `wanted` first; empty if it is no file of HDF5.

    None if the shard is not there, or cannot be read as such a file.
    """
    metadata = shards.metadata

    def look(reader: Ranges) -> list[str] | None:
        if magic_at(HDF5, metadata, reader) is None:
            return []
        among = [wanted, *_noted(shards)]
        return names_in(metadata, metadata.shard_key(index), reader, among) or None

    return shards.look(index, look)


def names_told(shards: OldShards, index: Shape) -> list[str]:
    """Names of the dataset that a shard should have; empty if it should be a plain shard.

    The last update of the shard tells, or what made the array. If the receipt tells nothing, it is
    one of the shards beside it.
    """
    label = shards.label_at(index)
    if label is not None:
        name = dataset_of(label)
        return [] if name is None else [name]
    for beside in shards.beside(index):
        names = names_at(shards, beside)
        if names is not None:
            return names
    return []


def _noted(shards: OldShards) -> list[str]:
    """Names of datasets in the receipt, the last one first."""
    names = (name for name in map(dataset_of, shards.labels) if name is not None)
    return list(itertools.islice(dict.fromkeys(names), _MAX_NAMES))


def end_of_file(data: bytes) -> tuple[int, int, int]:
    """Where the end-of-file address stands in a superblock, the address, and the version.

    - `data`: bytes of the file from the signature on.
    - Raises ValueError if the superblock is damaged.
    """
    version = data[len(HDF5.magic)]
    at = END_OF_FILE.get(version)
    if at is None:
        raise ValueError(f"a superblock of version {version}, which is not known here")
    if len(data) < at + ADDRESS.size:
        raise ValueError("there is no whole superblock")
    return at, ADDRESS.unpack_from(data, at)[0], version


def why_unreadable(metadata: ArrayMetadata, source: Ranges, index: ShardIndex) -> str:
    """Why programs of HDF5 would refuse or spoil a shard that is such a file, or read other chunks.

    The end of the file is looked at without the library of HDF5. If the library is installed, it
    opens the file.

    - Returns: empty if nothing is wrong, or if the object is no file of HDF5.
    """
    at = magic_at(HDF5, metadata, source) if fits_hdf5(metadata) else None
    table = index.table[~index.is_empty].astype(np.int64)
    if at is None or ((table[:, 0] <= at) & (at < table.sum(axis=1))).any():
        return ""  # in a plain shard, these may be the values of an inner chunk
    nbytes = min(source.nbytes - at, max(END_OF_FILE.values()) + ADDRESS.size)
    try:
        _, end, _ = end_of_file(bytes(source.read(at, nbytes)))
    except (IndexError, ValueError) as error:
        return f"the file of HDF5 is damaged: {error}"
    if end > source.nbytes:
        return (
            f"the file of HDF5 is cut off: it has {source.nbytes} bytes, and {end} by its "
            "superblock"
        )
    if end < source.nbytes and metadata.index_codec.location == "end":
        return (
            f"the file of HDF5 ends at byte {end} by its superblock, and has {source.nbytes} "
            "bytes: a program that opens it for writing would cut off the index"
        )
    if has_library() and not dataset_names(source, metadata.grid, index):
        return "programs of HDF5 find no dataset in the file whose chunks lie where the index says"
    return ""
