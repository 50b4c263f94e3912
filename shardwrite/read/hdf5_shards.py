"""Shards that are files of HDF5: which dataset is the array's, and what programs make of them."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from shardwrite.encode.reader import Ranges, ShardReader
from shardwrite.errors import CorruptShardError, SpecError
from shardwrite.format.frame import Frame, OldShard, OldShards
from shardwrite.format.hdf5_file import END_OF_FILE, describe
from shardwrite.format.hdf5_strategy import DEFAULT_DATASET, Hdf5, dataset_of
from shardwrite.format.index import ShardIndex
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.signatures import HDF5
from shardwrite.format.strategy import Strategy
from shardwrite.grid import Shape
from shardwrite.hdf5.layout import Hdf5Frame, require_h5py
from shardwrite.read.hdf5_names import dataset_names, has_library
from shardwrite.read.signatures import magic_at
from shardwrite.read.stored_shard import ExistingShard

_COMPRESSORS = ({"name": "zstd", "configuration": {"level": 0, "checksum": False}},)
_MAX_NAMES = 10
_ADDRESS = struct.Struct("<Q")


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

    def may_replace(self, metadata: ArrayMetadata, key: str, old: OldShard) -> None:
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

    def labelled(self, label: str) -> Strategy:
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

    def look(reader: OldShard) -> list[str] | None:
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
    if len(data) < at + _ADDRESS.size:
        raise ValueError("there is no whole superblock")
    return at, _ADDRESS.unpack_from(data, at)[0], version


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
    nbytes = min(source.nbytes - at, max(END_OF_FILE.values()) + _ADDRESS.size)
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
