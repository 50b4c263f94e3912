"""What tests do that users cannot: forge, tear, hold, kill and look behind. Some forty verbs.

Tests of faults ask for a verb, and import no private name, so that what a run keeps can change under
unchanged tests. How a verb does it, only this module knows: where state lies and what its files are
called, who counts as alive, and in which function a step of the work happens.

Verbs take the path of an array, or a store with the name of the array in it. Those that take a
*place* work on a directory of state, which `run_directory` and `work_of` find.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

import dask
import numpy as np

import shardwrite
from shardwrite.engines import LocalEngine, active_engine
from shardwrite.format.metadata import ArrayMetadata, parse_metadata
from shardwrite.grid import Box
from shardwrite.host.stopping import before_leaving, request_drain, reset_drain
from shardwrite.journal import lease, lock
from shardwrite.journal.begin import Request, _create, begin_runs, find_run
from shardwrite.journal.ledger import Ledger
from shardwrite.journal.lines import (
    Beginning,
    Entry,
    JournalWriter,
    admit,
    encode_line,
    parse_lines,
)
from shardwrite.journal.plan_record import RunRecord, sealed
from shardwrite.journal.receipt import Receipt, read_receipt
from shardwrite.journal.replay import journals, replay
from shardwrite.journal.rundir import RunDirectory
from shardwrite.journal.takeover import cancel_begin, discard_run
from shardwrite.journal.undo import Change
from shardwrite.place.base import RECEIPT_NAME
from shardwrite.place.directory import Directory
from shardwrite.place.target import Target, resolve_target
from shardwrite.read.array import ShardedArray
from shardwrite.read.stored_shard import open_shard
from shardwrite.runs import session
from shardwrite.runs.array_plan import ArrayChunks
from shardwrite.runs.begun import plan_begun
from shardwrite.runs.execute import execute
from shardwrite.runs.job import GroupGraph, Job, RunOptions, intent_of
from shardwrite.runs.session import Session
from shardwrite.stores.posix import PosixStore, PosixTransaction
from shardwrite.write import commit
from shardwrite.write.tasks import SourcePieces, commit_group, write_group

# ---- what is there


def state_beside(path: Any, name: str | None = None, run_dir: Any = None) -> Path:
    """The directory in which runs on an array keep their state; it is gone when all have ended."""
    is_plain = isinstance(path, str | os.PathLike) and "://" not in str(path)
    if is_plain and name is None and run_dir is None:
        return Directory(Path(path).absolute()).beside
    return resolve_target(path, name, run_dir).beside


def conversion_beside(path: Path) -> Path:
    """The directory in which a conversion in place, or one that consumes, keeps its state."""
    return path.with_name(f"{path.name}.conversion.shardwrite")


def work_of(path: Path) -> Path:
    """The directory of the one conversion that was begun there."""
    (found,) = conversion_beside(path).glob("work-*")
    return found


def run_directory(path: Any, name: str | None = None) -> Path:
    """The directory of the one run that has not ended: one that makes the array, or an update."""
    beside = state_beside(path, name)
    (found,) = [*beside.glob("run-*"), *beside.glob("updates/*/run-*")]
    return found


def plan_file(path: Any, name: str | None = None) -> Path:
    """The record of that run, from which any process can open it again."""
    return run_directory(path, name).parent / "plan.json"


def plan_files(path: Any) -> list[Path]:
    """Those of all runs that were begun there, updates among them."""
    beside = state_beside(path)
    return sorted([*beside.glob("plan.json"), *beside.glob("updates/*/plan.json")])


def logs_of(path: Any, name: str | None = None) -> list[Path]:
    """The logs of that run, one for each process that took part."""
    return sorted(run_directory(path, name).rglob("journal-*"))


def part_directory(path: Any, index: int, count: int) -> Path:
    """Where the processes work that write one part of that run."""
    return run_directory(path) / lease.part_name(index, count)


def leases_in(place: Path) -> list[Path]:
    """Leases below a directory of state."""
    return sorted(place.rglob("lease-*"))


def receipt_of(path: str | os.PathLike[str]) -> Path:
    """The file in an array that tells how it was written."""
    return Path(path) / RECEIPT_NAME


def change_receipt(
    path: str | os.PathLike[str], change: Callable[[dict[str, Any]], object]
) -> None:
    """Change that file as earlier versions wrote it, without a checksum."""
    found = json.loads(receipt_of(path).read_text())
    del found["crc32c"]
    change(found)
    receipt_of(path).write_text(json.dumps(found))


def receipt_in(path: Any, name: str | None = None) -> Receipt | None:
    """What that file says, or None where there is none."""
    return read_receipt(resolve_target(path, name))


def metadata_of(path: str | os.PathLike[str]) -> ArrayMetadata:
    """The metadata of an array, published or not."""
    document = Path(path) / "zarr.json"
    if not document.exists():
        found = sorted(state_beside(path).glob("run-*/zarr.json"))
        run = None if found else find_run(resolve_target(path, None))
        document = found[0] if run is None else run.document_path
    return parse_metadata(document.read_text())


def array_at(path: Path, metadata: ArrayMetadata | None = None) -> ShardedArray:
    """An array, published or not, to read what its shards hold."""
    return ShardedArray(metadata or metadata_of(path), PosixStore(path))


def table_of(path: Path, index: tuple[int, ...]) -> np.ndarray:
    """Offsets and sizes of the inner chunks of one shard, as its index says."""
    with open_shard(metadata_of(path), PosixStore(path), index) as shard:
        return np.array(shard.index.table, dtype=np.int64)


def encoded_chunks(path: Path, index: tuple[int, ...]) -> dict[int, bytes]:
    """Bytes of the inner chunks of one shard by their rank, as they are stored."""
    with open_shard(metadata_of(path), PosixStore(path), index) as shard:
        table, there = shard.index.table.astype(np.int64), ~shard.index.is_empty
        return {
            int(rank): shard.reader.read(*map(int, table[rank])) for rank in np.flatnonzero(there)
        }


def chunks_of(array: Any) -> dict[tuple[int, ...], bytes]:
    """Bytes of all inner chunks of an array, as they are stored, by their positions in it."""
    grid, found = array.metadata.grid, {}
    for index in grid.shards_in(grid.whole):
        shard = open_shard(array.metadata, array.store, index)
        if shard is None:
            continue
        with shard:
            for rank in shard.present():
                inside = np.unravel_index(rank, grid.chunks_per_shard)
                corner = np.multiply(index, grid.chunks_per_shard)
                place = tuple(int(n) for n in np.add(corner, inside))
                found[place] = bytes(shard.reader.read(*map(int, shard.index.table[rank])))
    return found


# ---- runs: what is known of one


def has_run(path: Any, name: str | None = None) -> bool:
    """Whether a run was begun there that makes the array, and has not ended."""
    return find_run(resolve_target(path, name)) is not None


def record_of(path: Any, name: str | None = None) -> Any:
    """The record of that run, parsed."""
    return run_of(path, name).record


def run_of(path: Any, name: str | None = None) -> Any:
    """The run itself, for the few tests of what it can do."""
    found = find_run(resolve_target(path, name))
    assert found is not None, "no run was begun"
    return found


def built_at(path: Path) -> Path:
    """Directory in which a run writes the shards of an array: aside, if it replaces one, or the
    array's own. What lies beside the array may be torn."""
    for new in state_beside(path).glob("run-*/array-*"):
        text = receipt_of(path).read_text() if receipt_of(path).exists() else ""
        if f'"run": "{new.parent.name.removeprefix("run-")}"' not in text:
            return new
    return path


def status_of(path: Any, name: str | None = None) -> Any:
    """What ``shardwrite status`` tells."""
    from shardwrite.journal.state_work import fetched
    from shardwrite.slurm.status import status

    return status(fetched(resolve_target(path, name)))


@dataclass(frozen=True)
class Logged:
    """What the logs of a run say together."""

    done: set[int]  # ranks of shards that were committed
    unended: list[str]  # attempts of dead processes that did not end
    n_unended: list[int]  # how many each process has begun and not ended
    n_redone: int  # how often a shard was committed again
    n_bad_lines: int


def logged(path: Any, name: str | None = None) -> Logged:
    """What the logs say of the run that makes an array."""
    return _logged(run_of(path, name))


def done_shards(path: Any, name: str | None = None) -> set[int]:
    """Ranks of the shards that the logs call committed."""
    return logged(path, name).done


def all_logged(path: Any) -> Iterator[set[int]]:
    """The same for each run there that has not ended, updates among them: ranks in the array."""
    target = resolve_target(path, None)
    for each in (target, *target.others):
        run = find_run(each)
        if run is not None:
            yield _logged(run).done


def _logged(run: Any) -> Logged:
    metadata = parse_metadata(json.dumps(run.document))
    if run.record.shards_from:
        first, counts = run.record.shards_from
        shards, shape = metadata.grid.shards, metadata.grid.shape
        start = tuple(a * s for a, s in zip(first, shards, strict=True))
        stop = (
            min((a + k) * s, n) for a, k, s, n in zip(first, counts, shards, shape, strict=True)
        )
        metadata, _ = metadata.window_of(Box(start, tuple(stop)))
    found = replay(run, metadata)
    return Logged(
        set(np.flatnonzero(found.ledger.is_done).tolist()),
        [beginning.attempt for beginning in found.unended],
        [
            sum(begun.output == run.number for begun in file.unended)
            for file in journals(run, metadata.grid.n_shards)
        ],
        found.n_redone,
        found.n_bad_lines,
    )


def begin_run(x: Any, path: Path, **keywords: Any) -> list[Callable[[], Any]]:
    """Begin a run; its tasks, each of which writes and commits one group of shards when called."""
    plan = shardwrite.plan(x, **keywords)
    job = Job(ArrayChunks(x), plan, resolve_target(path, None), RunOptions())
    intent = intent_of(job.plan, job.options.mode)
    text, level = job.plan.metadata.text, job.durability
    request = Request(job.target, intent, text)
    ((run, _),) = begin_runs([request], restart=False, durability=level)
    session = Session(job, run, "driver", Ledger(plan.metadata.grid))
    session.directory.make_room(set())
    admit(run.path, session.driver)
    graph, keys = session.graph("all", LocalEngine("sync")).fused(range(plan.partition.n_groups))
    layer = next(layer for name, layer in graph.layers.items() if name.startswith("shardwrite"))

    def task(key: Any) -> Callable[[], Any]:
        assert layer[key].func is write_group
        spec, pieces, sources = layer[key].args
        arrays = list(dask.get(dict(x.dask), [source.key for source in sources.args]))
        return lambda: write_group(spec, pieces, arrays)

    return [task(key) for key in keys]


def job_of(x: Any, path: Path, **keywords: Any) -> Job:
    """The job of a new array."""
    return Job(
        ArrayChunks(x), shardwrite.plan(x, **keywords), resolve_target(path, None), RunOptions()
    )


def begin_unseen(job: Job) -> Any:
    """Begin the run of a job as a process does that has looked before the array was there."""
    intent = intent_of(job.plan, job.options.mode)
    made = _create([Request(job.target, intent, job.plan.metadata.text)], "none")
    return None if made is None else made[0]


def run_job(
    source: Any,
    plan: Any,
    path: Path,
    engine: Any = None,
    mode: Any = "w-",
    name: str | None = None,
) -> Any:
    """Run a job to its end, by an engine or that of dask's settings: what users call, without its
    checks of the source."""
    job = Job(source, plan, resolve_target(path, name), RunOptions(mode=mode))
    return execute([job], engine or active_engine(), lambda _: None)[0]


def tasks_of(x: Any, plan: Any, path: Path) -> dict[Any, Box]:
    """The box of shards that each task of a plan commits, by the key of the task."""
    ledger = Ledger(plan.metadata.grid)
    record = RunRecord(
        digest=plan.digest,
        mode="w-",
        identity=plan.identity,
        run="one",
        replaces=False,
        durability="full",
        document_crc32c=0,
        array="x",
    )
    target = resolve_target(path, None)
    job = Job(ArrayChunks(x), plan, target, RunOptions())
    session = Session(job, RunDirectory(target, record), "driver", ledger)
    builder = GroupGraph(plan, session.spec(), ArrayChunks(x), ledger, "run", shares_memory=False)
    is_fused, groups = plan.partition.is_fused, range(plan.partition.n_groups)
    graph, keys = builder.fused(groups) if is_fused else builder.direct(groups)
    name = "shardwrite-tasks-run" if is_fused else "shardwrite-commit-run"
    boxes = {}
    for key, task in graph.layers[name].items() if name in graph.layers else []:
        if task.func in (write_group, commit_group):
            boxes[key] = next(part.box for part in task.args if isinstance(part, SourcePieces))
    assert set(boxes) == set(keys)
    return boxes


def restored_plan(path: Any, resources: Any) -> Any:
    """The plan as any process reads it back from the record of a run."""
    return plan_begun(run_of(path), resources)


def cancel(run: Any) -> None:
    """Take a run back that has changed nothing, as whoever has begun it does after an error."""
    cancel_begin(run, is_claimed=True)


def give_up(run: Any) -> None:
    """Give a run up that makes an array; one that it was to replace is back."""
    discard_run(run)


# ---- processes: who writes, who holds, who counts as alive


def this_process(**changes: Any) -> dict[str, Any]:
    """The identity of this process as a lease tells it, with changes."""
    return {**lease.this_process().to_dict(), **changes}


def parent_process() -> dict[str, Any]:
    """What distinguishes a process of this machine that lives, and is not this one."""
    return {"pid": os.getppid(), "started": lease._started(os.getppid())}


DEAD = {"pid": 2**22 - 1, "started": "1"}
"""What distinguishes a process of this machine that is gone."""

ELSEWHERE = {"host": "elsewhere"}
"""What distinguishes a process of another machine, which lives as long as its lease."""


def forge_lease(place: Path, name: str = "other", *, age: float = 0.0, **changes: Any) -> Path:
    """A lease of another process, by default of this one; `age` is in seconds."""
    file = place / f"lease-{name}.json"
    file.write_text(json.dumps(this_process(**changes)))
    os.utime(file, (time.time() - age,) * 2)
    return file


def forge_log(
    place: Path, name: str, process: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]
) -> Path:
    """A log that another process has left in a run."""
    head = {"writer": dict(process), "driver": name, "durability": "full"}
    file = place / f"journal-{name}-elsewhere-1-a.jsonl"
    write_lines(file, [head, *lines])
    return file


def log_of(place: Path, name: str) -> JournalWriter:
    """A log of this process in a run; `append` takes lines, and `close` ends it."""
    return JournalWriter(str(place), name, "full")


def begins(attempt: str, start: Iterable[int], stop: Iterable[int]) -> dict[str, Any]:
    """The line by which a task says that it is about to commit a box of shards."""
    return Beginning(attempt, (tuple(start), tuple(stop))).to_dict()


def commits(attempt: str, *shards: int, **more: Any) -> dict[str, Any]:
    """The line by which a task says that it has committed shards."""
    n = len(shards)
    return Entry(attempt, shards, (10,) * n, (1,) * n, (1,) * n, 0.5, 1000).to_dict() | more


def write_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write a log anew, each line with its checksum."""
    file.write_bytes(b"".join(map(encode_line, lines)))


def read_lines(file: Path) -> list[dict[str, Any] | None]:
    """The lines of a log; None for each that is torn."""
    return list(parse_lines([file.read_bytes()]))


def hold(place: Path, name: str = "another") -> lease.Lease:
    """A lease of this process on a run or a conversion, while it is entered."""
    return lease.Lease(place, name)


def is_held(place: Path) -> bool:
    """Whether a process that may live holds a run or a conversion."""
    return bool(lease.live_holders(place))


def hold_claim(claim: Path, place: Path) -> Any:
    """The right to change one thing alone, while it is entered; `place` is where drafts lie."""
    return lock.exclusive(claim, place)


def dead_process() -> Any:
    """A process of this machine that is gone."""
    return replace(lease.this_process(), **DEAD)


def leave() -> None:
    """Do what this process does before a signal ends it: leases are given back."""
    for action in before_leaving():
        action()


def signature() -> str:
    """What this process signs drafts of its state with."""
    return lease.signature()


def asking_who_this_is(patch: Any) -> list[Any]:
    """A list that grows each time that this process is asked for its identity."""
    asked: list[Any] = []
    original = lease.this_process

    def this_process() -> Any:
        asked.append(original())
        return asked[-1]

    for module in [m for m in sys.modules.values() if vars(m).get("this_process") is original]:
        patch.setattr(module, "this_process", this_process)
    return asked


def stale_at_once() -> Any:
    """Have every lease that is not this process's count as run out: what a kill left is free."""
    return _giving("lease_times", (15.0, -1.0))


def after_restart(boot: object) -> Any:
    """Have this machine count as started anew, as after a power cut."""
    return _giving("boot_id", f"boot {boot}")


def on_machine(name: str) -> Any:
    """Have this machine count as another one, which may have the same host name."""
    return _giving("machine_id", name)


def _giving(name: str, value: object) -> Any:
    """Have a function give a value; a decorator of a test, too."""
    return mock.patch.object(lease, name, lambda: value)  # noqa: PT008 (it would be an argument)


@contextlib.contextmanager
def leases_run_out() -> Iterator[None]:
    """Take the holders of all runs and conversions for dead, though they are not."""
    with contextlib.ExitStack() as stack:
        for module in ("journal.takeover", "journal.neighbours", "journal.rundir", "convert.swap"):
            module = importlib.import_module(f"shardwrite.{module}")
            stack.enter_context(mock.patch.object(module, "live_holders", return_value=[]))
        yield


def claims_run_out() -> Any:
    """Take the holders of all claims for dead, though they are not."""
    return mock.patch.object(lock, "_is_held", return_value=False)


@contextlib.contextmanager
def dying_by(kind: type[BaseException]) -> Iterator[None]:
    """Have an exception end this process's work as a kill would: nothing is tidied, nothing given
    back. Leases stop being renewed, as those of a dead process."""
    leave_transaction, give_back = PosixTransaction.__exit__, lease.Lease.__exit__
    discard = Session.discard_parts

    def transaction_exit(self: Any, error: Any, *rest: Any) -> Any:
        return None if error is kind else leave_transaction(self, error, *rest)

    def lease_exit(self: Any, error: Any, *rest: Any) -> None:
        if error is not kind:
            give_back(self, error, *rest)
            return
        self._stop.set()
        lease._held.discard(self.path)

    def discard_parts(self: Any) -> None:
        if not isinstance(sys.exc_info()[1], kind):
            discard(self)

    with (
        mock.patch.object(PosixTransaction, "__exit__", transaction_exit),
        mock.patch.object(lease.Lease, "__exit__", lease_exit),
        mock.patch.object(Session, "discard_parts", discard_parts),
    ):
        yield


lease_times = lease.lease_times
"""How often a lease is renewed, and at which age it counts as dead: seconds, as settings say."""

request_stop = request_drain
"""Ask this process to stop soon, as a signal of SLURM does."""

forget_stop = reset_drain
"""Take that back."""


# ---- records: made up, or changed with a checksum that is right


def seal(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a plan with the checksum that they need."""
    return sealed({name: value for name, value in facts.items() if name != "crc32c"})


def change_plan(
    file: Path, change: Callable[[dict[str, Any]], Any] = lambda _: None, **fields: Any
) -> None:
    """Change the record of a run: by a function of its facts, or by fields."""
    facts = json.loads(file.read_bytes())
    change(facts)
    file.write_text(json.dumps(seal(facts | fields)))


def undo_record(key: str, nbytes: int, saved: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """The record that gives a shard of so many bytes its old bytes back, by their offsets."""
    return b"".join(Change(key, nbytes, (), list(saved)).record())


# ---- steps: where a step of the work happens, to stop, fail or watch it there


STEPS = {
    # a file
    "write a file": "stores.posix:PosixWriter.write",
    "sync a file": "stores.posix:PosixWriter.sync",
    "close a file": "stores.posix:PosixWriter.close",
    "rename a file": "stores.posix:PosixWriter.publish",
    "remove a file": "stores.posix:PosixTransaction.remove",
    "sync the directories": "stores.posix:PosixStore.sync_parents",
    "sync a directory": "stores.posix:fsync_directory",
    "open an object": "stores.posix:PosixStore.open",
    "few shards": "runs.begin:_FEW_SHARDS",
    "change bytes in place": "stores.posix:PosixEditor.write_at",
    # a shard
    "commit shards": "write.tasks:commit_shards",
    "write a shard": "write.emitter:Emitter.put",
    "append to the log": "journal.lines:JournalWriter.append",
    "write the log": "journal.lines:JournalWriter._write",
    "take over a claim": "journal.lock:_succeed",
    "settle a change": "journal.lock:Claim.settle",
    "record a change": "journal.lock:Claim.record",
    "enter shards": "runs.session:Session.enter",
    # a run
    "look for a finished array": "runs.execute:finished",
    "begin runs": "runs.execute:begin",
    "begin a run": "journal.neighbours:begin_runs",
    "make the directory of a run": "journal.begin:_create",
    "look for a run": "journal.begin:tidied_run",
    "claim the arrays of a run": "journal.begin:_claim_all",
    "claim the rest of a run": "journal.begin:_claim_rest",
    "look for a run to join": "runs.begin:tidied_run",
    "check the place": "runs.begin:check_place",
    "may make a directory": "runs.begin:_can_be_made",
    "probe a worker": "write.context:probe",
    "probe a run": "runs.begin:_probe",
    "set the old array aside": "place.directory:Directory.make_room",
    "read a log": "journal.replay:_parse",
    "sweep what is left": "journal.replay:remove_state",
    "look for missing shards": "runs.session:Session.check_whole",
    "publish the array": "runs.session:Session.publish",
    "look whether a run goes on": "journal.rundir:RunDirectory._check_current",
    "write a document": "place.directory:Directory.write",
    "tell the groups above": "journal.rundir:consolidate",
    "list arrays again": "journal.rundir:list_again",
    "leave a receipt": "journal.rundir:RunDirectory.write_receipt",
    "encode a receipt": "journal.receipt:Receipt.encode",
    "end a run": "runs.session:end_run",
    "remove the state of a run": "journal.takeover:remove_state",
    "give the kept room": "journal.takeover:give_room",
    "clear what an append wrote": "journal.edges:clear_beyond",
    "check a compaction": "operations.compact:_compacted",
    # a conversion
    "convert arrays": "convert.arrays:execute",
    "begin in place": "convert.swap:InPlace.begun",
    "take over a conversion": "convert.swap:_take_over",
    "compare the trees": "convert.in_place:_require_equal",
    "check that the old tree is as it was": "convert.in_place:_check_unchanged",
    "check the old tree": "convert.swap:InPlace.check_old",
    "record the exchange": "convert.swap:InPlace._write",
    "exchange the trees": "convert.swap:InPlace.hand_over",
    "remove the old tree": "convert.swap:InPlace.finish",
    "give a new array its name": "journal.handover:rename_new",
    "exchange two names": "journal.handover:exchange",
    "make the new array aside": "journal.handover:make_new",
    "hide the source": "convert.removal:Consumption.hide",
    "record what was compared": "convert.removal:Consumption.enter",
    "compare with the source": "convert.removal:differing",
    "consume an array": "convert.consume:execute_consuming",
    # a bucket
    "put a document": "convert.transferring:put_document",
    "replace the info of a volume": "convert.transferring:replace_info",
    "put the state of a run": "journal.state_work:_Alone._put",
    "make the state of a run again": "journal.state_log:Logs.restore",
    "mark the array as a run's": "place.objects:InStore._put_mark",
    "look for an array that another call wrote": "place.objects:InStore._refuse_published",
}
"""Steps of the work, by the function of the package in which each happens."""


def step(name: str) -> tuple[Any, str]:
    """The owner and the name of the function of a step, as `setattr` and `mock.patch.object` take
    them."""
    module, _, path = STEPS[name].partition(":")
    *owners, last = path.split(".")
    return reduce(getattr, owners, importlib.import_module(f"shardwrite.{module}")), last


def real(name: str) -> Callable[..., Any]:
    """The function of a step, as it is now."""
    return getattr(*step(name))


def replace_step(patch: Any, name: str, function: Callable[..., Any]) -> None:
    """Have another function in the place of a step's. `patch` is pytest's `monkeypatch`, or None in
    a process that ends with its test."""
    put = setattr if patch is None else patch.setattr
    put(*step(name), function)


def before(patch: Any, name: str, action: Callable[..., Any], *, once: bool = False) -> None:
    """Call an action with the arguments of each call of a step, first; what it raises ends that
    call. With `once`, only before the next call."""
    original = real(name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if once:
            replace_step(patch, name, original)
        action(*arguments, **keywords)
        return original(*arguments, **keywords)

    replace_step(patch, name, call)


def after(patch: Any, name: str, action: Callable[..., Any], *, once: bool = False) -> None:
    """The same after each call has returned."""
    original = real(name)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if once:
            replace_step(patch, name, original)
        found = original(*arguments, **keywords)
        action(*arguments, **keywords)
        return found

    replace_step(patch, name, call)


def skip(patch: Any, name: str) -> None:
    """Leave a step out."""
    replace_step(patch, name, lambda *_, **__: None)


def kill_before(patch: Any, name: str, error: BaseException | type[BaseException]) -> None:
    """Have a step raise in place of what it does."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        raise error

    replace_step(patch, name, call)


@contextlib.contextmanager
def once_before(name: str, action: Callable[[], Any]) -> Iterator[None]:
    """Call an action before the next call of a step, as another process does that comes in
    between."""
    original, is_due = real(name), True

    def call(*arguments: Any, **keywords: Any) -> Any:
        nonlocal is_due
        if is_due:
            is_due = False
            action()
        return original(*arguments, **keywords)

    with mock.patch.object(*step(name), call):
        yield


class Joiner:
    """Another process, as it were: it makes the same call, and stands still before a step."""

    def __init__(self, patch: Any, call: Callable[[], Any], step: str) -> None:
        self._patch, self._call, self._step = patch, call, step
        self._arrived, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.results: list[Any] = []

    def _run(self) -> None:
        try:
            self.results += self._call()
        finally:
            self._arrived.set()

    def _stand(self, *_: Any, **__: Any) -> None:
        self._arrived.set()
        assert self._go.wait(30)

    def come(self, *_: Any, **__: Any) -> None:
        """Let it come to that step."""
        before(self._patch, self._step, self._stand, once=True)
        self._thread.start()
        assert self._arrived.wait(30)

    def end(self) -> list[Any]:
        """Let it go on to its end; its results."""
        self._go.set()
        self._thread.join(30)
        return self.results


def log_every(seconds: float) -> Any:
    """Have a task enter its shards into the log when so much time has passed; with 0, each at
    once."""
    return mock.patch.multiple(commit, _FIRST_SECONDS=seconds, _ENTRY_SECONDS=seconds)


def checked_at_a_time(n_shards: int) -> Any:
    """Have the log tell of so many shards at a time that were checked before a run ends."""
    return mock.patch.object(session, "_N_CHECKED", n_shards)


def target_of(path: Any, name: str | None = None, run_dir: Any = None) -> Target:
    """A place as the package resolves it, for tests that hand it on."""
    return resolve_target(path, name, run_dir)
