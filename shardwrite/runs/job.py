"""Jobs: what to write, where, and how to run it.

What a run writes comes from a source. It makes the tasks that write groups or encode blocks,
because only the source knows where their input comes from. There are three:

- :class:`shardwrite.runs.array_plan.ArrayChunks` has the values of a dask array.
- :class:`shardwrite.runs.stored_chunks.StoredChunks` has encoded inner chunks of an array that
  exists.
- :class:`NoChunks` has nothing, for jobs that only look at a run or finish it.

Another source implements `ChunkSource`. If it has values, its tasks call `write_group` and
`encode_block` of :mod:`shardwrite.write.tasks`. These take any arrays, each with the box that it
fills.

:class:`GroupGraph` makes graphs of these tasks. That of a fused plan has one task for each group,
which takes the source's chunks. That of any other plan has one encode task for each block, and one
commit task for each group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np
from dask.highlevelgraph import HighLevelGraph
from dask.task_spec import List, Task, TaskRef

from shardwrite._dataclass import dataclass
from shardwrite.checks import choice
from shardwrite.codecs.documents import Document
from shardwrite.grid import Box, Shape
from shardwrite.journal import rundir
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.plan_record import Intent
from shardwrite.options import DURABILITIES, RunKeywords
from shardwrite.place.directory import Directory
from shardwrite.place.target import REPLACE, Target
from shardwrite.plan.identity import Identity, ShardWindow
from shardwrite.plan.plan import Part, Plan
from shardwrite.seams import Ref, needed
from shardwrite.write.context import WriteSpec
from shardwrite.write.tasks import SourcePieces, commit_group

if TYPE_CHECKING:
    from shardwrite.journal.receipt import Receipt, UpdateEntry
    from shardwrite.journal.rundir import RunDirectory
    from shardwrite.read.array import ShardedArray

__all__ = ["ChunkSource", "GroupGraph", "Job", "RunOptions", "TaskBox", "target_of_update"]


_CHOICES: dict[str, tuple[object, ...]] = {
    "mode": ("w-", "w", "r+"),  # the last one is for internal use
    "publish": ("last", "first"),
    "durability": (*DURABILITIES, None),
    **dict.fromkeys(("restart", "recheck", "keep_report", "drop_hdf5"), (False, True)),
}


@dataclass(frozen=True, kw_only=True)
class RunOptions(RunKeywords):
    """How a run goes; none of this changes what is written."""

    # ``"w-"`` refuses to overwrite, ``"w"`` replaces an existing array, and ``"r+"`` writes into
    # one. An unfinished run goes on in the same way with ``"w-"`` and ``"w"``.
    mode: str = "w-"
    # Whether ``zarr.json`` appears when the array is whole, or at the start of the run
    publish: str = "last"
    drop_hdf5: bool = False  # shards that are files of another format may become plain shards
    # Whether an array that is replaced stays until the new one is whole, where that is possible
    keeps_old: bool = True
    # Whether updates of several arrays of a hierarchy are one run: they are published one after the
    # other when all are whole, then listed by groups at once, and only given up together
    together: bool = False
    # What a user can do where an array exists. Not every operation can replace it.
    remedy_if_there: str = REPLACE

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            choice(name, getattr(self, name), allowed, untold=["r+"])
        if self.keep_report:  # rather than when all is written
            needed("report", "run", "a report", field="keep_report", value=True)


def for_new_array(options: RunOptions) -> RunOptions:
    """Check the options of a run that makes an array."""
    choice("mode", options.mode, ("w-", "w"))
    return options


_NOT_FIGURES = ("format", "identity", "gathering")


@dataclass(frozen=True, slots=True)
class Job:
    """One array to write: what, how, and where."""

    source: ChunkSource  # such as `ArrayChunks`; `NoChunks` if a run is only finished
    plan: Plan
    target: Target  # as `resolve_target` makes it; for an update, see `target_of_update`
    options: RunOptions
    # Documents of groups that are made if they are missing, by their paths in the store. Others
    # have no attributes.
    groups: Mapping[str, Document] = field(default_factory=dict)
    # The run that another process has begun, if this one joins it, and the part that it writes
    begun: RunDirectory | None = None
    part: Part | None = None

    def __post_init__(self) -> None:
        if self.source.region != self.plan.region:
            raise ValueError(
                f"the source covers {self.source.region}, and the plan {self.plan.region}"
            )

    @classmethod
    def of_run(
        cls,
        run: RunDirectory,
        source: ChunkSource,
        plan: Plan,
        part: Part | None = None,
        *,
        keep_report: bool = False,
        groups: Mapping[str, Document] | None = None,
    ) -> Job:
        """What a process does in a run that another one has begun.

        - `plan`: the plan of the run, such as `plan_begun` reads back.
        """
        record = run.record
        options = RunOptions(
            mode=record.mode, durability=record.durability, keep_report=keep_report
        )
        return cls(source, plan, run.target, options, groups or {}, run, part)

    @property
    def is_staged(self) -> bool:
        """Whether all units go to part files before shards are committed."""
        return self.plan.is_staged and not self.source.is_encoded

    @property
    def is_update(self) -> bool:
        """Whether the job writes into a region of an existing array."""
        return self.plan.region is not None

    @property
    def durability(self) -> str:
        """Durability level of the run."""
        return self.target.durability(self.options.durability)

    @property
    def keeps_old(self) -> bool:
        """Whether readers find the array that was there, or none, until the new one is whole."""
        asked = self.options
        is_directory = isinstance(self.target.place, Directory)
        is_last = asked.publish == "last" and not self.target.recovers
        return asked.mode != "r+" and is_last and asked.keeps_old and is_directory

    @property
    def makes_array(self) -> bool:
        """Whether the job makes an array, rather than updates or repairs an existing one."""
        return self.options.mode != "r+"

    @property
    def is_together(self) -> bool:
        """Whether an update is one run with others; those that keep values have runs apart."""
        return self.options.together and self.plan.staged_with is None


def in_one_state(jobs: Sequence[Job]) -> Sequence[Job]:
    """The same jobs; arrays of one run in a bucket have their run state in one place.

    If a run on several arrays makes some of them, that is where it keeps its state.
    """
    begins = any(job.makes_array for job in jobs)
    targets = [job.target for job in jobs if job.makes_array or job.is_together]
    placed = dict(zip(targets, rundir.in_one_state(targets, begins=begins), strict=True))
    return [replace(job, target=placed.get(job.target, job.target)) for job in jobs]


def digest_of(plan: Plan, mode: str) -> str:
    """Digest of what a run of a plan will write; see `intent_of`."""
    return plan.digest + ("+" if mode == "r+" else "")


def _identity(plan: Plan, mode: str) -> Identity:
    """Identity of what a run of a plan will write; see `intent_of`."""
    return replace(plan.identity, mode="r+") if mode == "r+" else plan.identity


def intent_of(plan: Plan, mode: str) -> Intent:
    """What a run of a plan will write.

    With mode ``"r+"``, its digest and identity differ from those of the run that made the array.
    """
    figures, format_ = plan.to_dict(), plan.metadata.shard_format
    return Intent(
        digest=digest_of(plan, mode),
        mode=mode,
        identity=_identity(plan, mode),
        shards_from=None
        if plan.region is None
        else ShardWindow(plan.first_shard, plan.metadata.grid.counts),
        strategy=Ref("write strategy", plan.strategy.name, dict(plan.strategy.to_dict())),
        shard_format=None
        if format_ is None
        else Ref("shard format", format_.name, format_.to_dict()),
        source=plan.source.ref,
        partition=plan.partition.cuts,
        copies=plan.source.is_encoded,
        figures={name: figures[name] for name in figures if name not in _NOT_FIGURES},
    )


def update_in(receipt: Receipt | None, plan: Plan) -> UpdateEntry | None:
    """The entry of an update in the receipt of its array; None if there is none."""
    if receipt is None:
        return None
    return receipt.update(digest_of(plan, "r+"), _identity(plan, "r+"))


def target_of_update(target: Target, plan: Plan) -> Target:
    """The target of an update, which has a run directory of its own beside the array."""
    digest = hashlib.sha256(digest_of(plan, "r+").encode()).hexdigest()
    return replace(target, update=digest[:16])


# ---- Sources of chunks: what a run writes, as the graph builder sees it


Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBox:
    """Box of whole inner chunks that one task writes or encodes."""

    key: Key  # key of the task
    name: str  # name that is part of every key of the graph, and of no other graph's
    spec: WriteSpec  # facts that every task needs
    box: Box  # the box, in coordinates of the plan's grid
    skip: frozenset[Shape]  # positions of shards in the box that are done already
    plan: Plan  # the plan that the box is of
    shares_memory: bool  # whether tasks take their inputs from this process without a copy


@runtime_checkable
class ReadsPlaces(Protocol):
    """A source that tells which places it reads, so that none of them is changed meanwhile."""

    def places_read(self) -> Iterator[tuple[Any, str, str]]:
        """Places: a path, URL or store, the path of what is read in it, and its kind.

        The kind is ``"array"`` for a Zarr array, ``"objects"`` for what lies below a path of a
        store, and ``"file"`` for anything else.
        """


class ReadsArray(Protocol):
    """A source whose chunks or values come from an array that exists."""

    @property
    def read_from(self) -> ShardedArray | None:
        """The array; None if there is no such array, or the source is the array itself."""


class ChunkSource(Protocol):
    """Protocol of what a run writes."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the values; that of the array if the chunks are encoded."""

    @property
    def region(self) -> Box | None:
        """Region that the source covers, as in the plan: all of the plan's array if None."""

    @property
    def is_encoded(self) -> bool:
        """Whether inner chunks are copied as they are stored, and never decoded.

        One task then commits a whole group; `encode` is not called.
        """

    def write(self, at: TaskBox) -> dict[Key, Any]:
        """Tasks that write the shards of a group.

        The task of key `at.key` returns a `GroupReport`.
        """

    def encode(self, at: TaskBox) -> dict[Key, Any]:
        """Tasks that encode a block.

        The task of key `at.key` returns an `EncodedBlock`.
        """

    def graph(self, name: str, tasks: dict[Key, Any]) -> HighLevelGraph:
        """Graph of a layer of tasks and of everything that they need from the source."""

    def box_of(self, key: Any) -> Box | None:
        """Box of the chunk that one of the source's own tasks makes, as far as its key reveals it.

        Errors of that task name the box.
        """


@dataclass(frozen=True, slots=True)
class NoChunks:
    """The source of a job that only looks at a run or finishes it, and has no chunks."""

    region: Box | None = None  # the plan's region, if it has one
    # See :class:`ChunkSource`. It is True for a run that is begun now, and will copy chunks.
    is_encoded: bool = False

    @property
    def dtype(self) -> NoReturn:
        """Raise TypeError."""
        raise _nothing_to_write()

    def write(self, at: TaskBox) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def encode(self, at: TaskBox) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def graph(self, name: str, tasks: dict[Key, Any]) -> NoReturn:  # noqa: ARG002 (the protocol's)
        """Raise TypeError."""
        raise _nothing_to_write()

    def box_of(self, key: Any) -> None:
        """Do nothing, because there are no tasks."""


def _nothing_to_write() -> TypeError:
    return TypeError("this job finishes a run or looks at it; it has no chunks to write")


# ---- Graphs of tasks


@dataclass(frozen=True, slots=True)
class GroupGraph:
    """Builder of graphs for groups of a plan, without the shards that are done."""

    plan: Plan
    spec: WriteSpec
    source: ChunkSource  # covers the plan's array, or its region
    ledger: Ledger
    name: str  # part of the keys of all tasks
    shares_memory: bool  # whether tasks take their inputs from this process without a copy

    def committing(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph of all tasks of some groups, and keys of those that return a `GroupReport`."""
        if self.plan.partition.is_fused or self.source.is_encoded:
            return self.fused(groups)
        return self.direct(groups)

    def fused(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph and keys of tasks that encode and commit a group and return a `GroupReport`."""
        layer: dict[Key, Any] = {}
        keys = []
        for rank in groups:
            key = (f"shardwrite-write-{self.name}", rank)
            group = self.plan.partition.group_box(rank)
            layer |= self.source.write(self._at(key, group, self.ledger.done_within(group)))
            keys.append(key)
        return self._graph(layer), keys

    def encode(self, groups: Iterable[int]) -> tuple[HighLevelGraph, dict[int, list[Key]]]:
        """Graph of tasks that return an `EncodedBlock`, and their keys by the rank of the group."""
        layer: dict[Key, Any] = {}
        keys: dict[int, list[Key]] = {}
        for rank in groups:
            keys[rank] = []
            group = self.plan.partition.group_box(rank)
            done = self.ledger.done_within(group)
            for number, block in enumerate(self._blocks(group, done)):
                key = (f"shardwrite-encode-{self.name}", rank, number)
                layer |= self.source.encode(self._at(key, block, done))
                keys[rank].append(key)
        return self._graph(layer), keys

    def _blocks(self, group: Box, done: frozenset[Shape]) -> tuple[Box, ...]:
        """Blocks of a group that touch the region and a shard that is not done."""
        blocks = self.plan.partition.blocks_in(group)
        if self.plan.region is not None:
            blocks = [block for block in blocks if block.intersect(self.plan.region).size]
        if done:
            grid = self.plan.metadata.grid
            blocks = [
                block
                for block in blocks
                if any(index not in done for index in grid.shards_in(block))
            ]
        return tuple(blocks)

    def commit(self, encoded: dict[int, list[Any]]) -> tuple[dict[Key, Any], list[Key]]:
        """Layer and keys of commit tasks, each of which returns a `GroupReport`."""
        layer: dict[Key, Any] = {}
        for rank, blocks in encoded.items():
            group = self.plan.partition.group_box(rank)
            done = self.ledger.done_within(group)
            where = SourcePieces(group, self._blocks(group, done), done)
            key = (f"shardwrite-commit-{self.name}", rank)
            layer[key] = Task(key, commit_group, self.spec, where, List(*blocks))
        return layer, list(layer)

    def direct(self, groups: Iterable[int]) -> tuple[HighLevelGraph, list[Key]]:
        """Graph of encode and commit tasks, and the keys of the commit tasks."""
        graph, keys = self.encode(groups)
        layer, commits = self.commit(
            {rank: [TaskRef(key) for key in blocks] for rank, blocks in keys.items()}
        )
        name = f"shardwrite-commit-{self.name}"
        encode = f"shardwrite-tasks-{self.name}"
        layers: dict[str, Any] = {**graph.layers, name: layer}
        return HighLevelGraph(layers, {**graph.dependencies, name: {encode}}), commits

    def _graph(self, layer: dict[Key, Any]) -> HighLevelGraph:
        return self.source.graph(f"shardwrite-tasks-{self.name}", layer)

    def _at(self, key: Key, box: Box, skip: frozenset[Shape]) -> TaskBox:
        return TaskBox(
            key=key,
            name=self.name,
            spec=self.spec,
            box=box,
            skip=skip,
            plan=self.plan,
            shares_memory=self.shares_memory,
        )
