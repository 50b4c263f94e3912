"""Files of HDF5 whose encoded chunks are copied into the shards of a new array, file by file."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardwrite.engines import Engine
from shardwrite.errors import SpecError
from shardwrite.format.hdf5_strategy import Hdf5
from shardwrite.format.joined import Joined, join
from shardwrite.format.metadata import ArrayMetadata
from shardwrite.format.strategies import as_strategy
from shardwrite.operations.adopted import Adopted
from shardwrite.operations.adopting import ELSEWHERE, Call, check_fits, refuse_patterns
from shardwrite.operations.converting import Progress
from shardwrite.place.objects import InStore
from shardwrite.place.target import Target
from shardwrite.plan import PlanOptions
from shardwrite.plan.limits import check_indexes
from shardwrite.read.stored_array import stored_at
from shardwrite.runs.conversion import ConversionOptions, Converting, convert_array
from shardwrite.runs.execute import execute
from shardwrite.runs.job import Job
from shardwrite.runs.options import RunOptions, for_new_array
from shardwrite.runs.progress import reporting
from shardwrite.sources.hdf5_joined import JoinedStore
from shardwrite.sources.hdf5_shard import DECODE, GIVE_FILES, NO_FILE, refusing
from shardwrite.sources.hdf5_store import as_array
from shardwrite.stores import as_store_error


@dataclass(frozen=True, slots=True)
class Copying:
    """How copies are written; see :func:`shardwrite.adopt`."""

    strategy: Any
    durability: str | None
    memory_limit: int | str | None
    progress: Progress
    restart: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """Files that were looked at, and whose chunks can be copied."""

    joined: Joined  # the array that they make
    store: JoinedStore  # their chunks
    dataset: str  # name of the dataset
    n_files: int  # number of the files, and their size in bytes
    nbytes: int

    def told(self, path: str, index_location: str) -> Adopted:
        """The files as a result that says what would be done."""
        grid = self.joined.whole.grid
        return Adopted(
            path=path,
            how="copy",
            dataset=self.dataset,
            shape=grid.shape,
            shards=self.joined.shards,
            chunks=grid.chunks,
            index_location=index_location,
            n_shards=self.n_files,
            nbytes=self.nbytes,
            left_out=self.joined.left_out,
            is_plan=True,
        )

    def converting(
        self, strategy: Any, memory_limit: int | str | None, target: Target, engine: Engine
    ) -> Converting:
        """Plan the copies."""
        if strategy is None:
            check_fits(self.joined.sharded("end"), self.dataset)
        chosen = Hdf5() if strategy is None else as_strategy(strategy)
        if isinstance(chosen, Hdf5) and chosen.dataset is None:
            chosen = replace(chosen, dataset=self.dataset)
        options = PlanOptions(strategy=chosen, memory_limit=memory_limit)
        layout = ConversionOptions(shards=self.joined.chunks_per_part)
        source = stored_at(InStore(self.store))
        return convert_array(source, engine, layout, options, target.store)


def look_for_copies(call: Call) -> Copies:
    """Look at files whose chunks are to be copied."""
    refuse_patterns(call)
    files, names, sizes = [], [], []

    def each() -> Iterator[tuple[str, ArrayMetadata]]:
        for path in call.files:
            with as_store_error(path, "cannot look at"):
                is_file = stat.S_ISREG(os.stat(path).st_mode)
            if not is_file:
                raise _refused(path, NO_FILE, GIVE_FILES)
            files.append(JoinedStore.file_of(path))
            with refusing(path, _refused):
                found = as_array(path, call.dataset or "")
            if found.codecs.why_not:
                raise _refused(path, f"it has {found.codecs.why_not}")
            names.append(found.source.dataset)
            if names[-1] != names[0]:
                raise _refused(
                    path,
                    f"its dataset is {names[-1]!r}, and that of the first is {names[0]!r}",
                    "give the name of the dataset that all files have (--dataset)",
                )
            sizes.append(files[-1][1][1])
            yield path, found.metadata

    joined = join(each(), len(call.files), call.arrangement)
    check_indexes(joined.sharded("end").grid, call.files, sum(sizes))
    store = JoinedStore(files, names[0], joined.counts, joined.chunks_per_part, joined.whole.text)
    return Copies(joined, store, names[0], len(files), sum(sizes))


def copy_files(call: Call, target: Target, how: Copying, engine: Engine) -> Adopted:
    """Write the shards of a new array with the encoded chunks of files."""
    found = look_for_copies(call)
    made = found.converting(how.strategy, how.memory_limit, target, engine)
    run = for_new_array(
        RunOptions(durability=how.durability, restart=how.restart, remedy_if_there=ELSEWHERE)
    )
    with reporting(how.progress, made.plan.raw_nbytes) as on_report:
        (result,) = execute([Job(made.chunks, made.plan, target, run)], engine, on_report)
    is_skipped = not result.seconds  # the run had ended before
    told = found.told(target.label, made.metadata.index_codec.location)
    return replace(told, is_plan=False, is_skipped=is_skipped)


def _refused(path: str, why: str, remedy: str = DECODE) -> SpecError:
    return SpecError(
        f"its chunks cannot be copied: {why}",
        field="files",
        value=path,
        remedy=remedy,
    )
