"""One round of the crash test: clients work on a tree, a fault strikes, and everything is judged.

The driver never starts a thread, so it forks a process for each client, each recovery and each look
at the tree. What is expected is kept outside the tree, in `Campaign.states`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import checker
import dask
import numpy as np
import operations
import power_cut
import zarr
from checker import Change, State
from operations import ARRAYS, IDS, Client, Log, Operation, SkippedError
from worlds import World

import shardwrite

TIMEOUT = 300.0
HEARTBEAT, TTL = 0.2, 1.0  # of processes that are frozen
SLOW_TTL = 4.0  # of those that are slow, which must not starve where a machine is busy
NEW = {"write", "copy", "consume", "pair"}
GIVEN_UP_BY = {"append": {"append", "stream"}}
"""Operations that are not called again once one of these, or of `NEW`, was begun on their array."""
COMES_FIRST = {"write", "copy", "consume", "pair", "in place", "repair", "ids", "remove ids"}
"""Operations that only the same call ends."""
REFUSALS = (
    shardwrite.JournalError,
    shardwrite.SpecError,
    shardwrite.PlanError,
    shardwrite.ConflictError,
)
_PR_SET_PDEATHSIG = 1


@dataclass
class Outcome:
    """What came of a round."""

    fired: bool = False
    operations: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    readings: int = 0
    troubles: list[str] = field(default_factory=list)

    def enter(self, kind: str, texts) -> None:
        self.troubles += [f"{kind}: {text}" for text in texts]


def fork(action: Callable[[], None], failed: Path) -> int:
    """Run something in a process of its own; its pid. What it raises is written to a file."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        action()
        status = 0
    except BaseException:
        failed.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def wait(pids: list[int], seconds: float = TIMEOUT) -> bool:
    """Wait until processes have ended; those that do not are killed, which is false."""
    deadline, waiting = time.monotonic() + seconds, set(pids)
    while waiting and time.monotonic() < deadline:
        waiting -= {pid for pid in waiting if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.002)
    for pid in waiting:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return not waiting


def shim() -> Any:
    library = ctypes.CDLL(os.environ["SHIM"])
    text, number = ctypes.c_char_p, ctypes.c_int
    library.shim_watch.argtypes = [text, text, number, number, number, number]
    library.shim_arm.argtypes = [text, text, ctypes.c_long, number, number]
    library.shim_fired.restype = ctypes.c_long
    return library


def run_client(world: World, log: Log, ops: list[Operation], fault: dict[str, Any]) -> None:
    """What a client does: its operations one by one, under the fault that is meant for it."""
    client, library, root = Client(world, log), shim(), world.root
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, operation in enumerate(ops):
        strikes = fault.get("op") == number
        is_armed = [False]

        def arm(strikes: bool = strikes, is_armed: list[bool] = is_armed) -> None:
            if is_armed[0]:
                return
            is_armed[0] = True
            if strikes and fault["kind"] == "fail":
                where = str(root).encode(), fault["call"].encode()
                library.shim_arm(*where, fault["k"], fault["error"], fault["lasts"])
            elif strikes and fault["kind"] in ("kill at", "freeze"):
                strike = signal.SIGKILL if fault["kind"] == "kill at" else signal.SIGSTOP
                of = fault["of"].encode()
                library.shim_watch(str(root).encode(), of, fault["k"], strike, nowhere, -1)
            else:
                library.shim_watch(str(root).encode(), b"*", 0, 0, nowhere, -1)

        log.on_change = arm
        log.note(event="start", operation=operation)
        attempt(client, operation, library, strikes=strikes)


def attempt(
    client: Client, operation: Operation, library: Any = None, *, strikes: bool = False
) -> None:
    """Perform an operation and note what it came to."""
    text = ""
    try:
        client.perform(operation)
        outcome = "done"
    except SkippedError:
        outcome = "skipped"
    except shardwrite.ShardwriteError as error:
        is_refused = isinstance(error, REFUSALS) and not isinstance(error, shardwrite.RunEndedError)
        outcome, text = "refused" if is_refused else "failed", f"{type(error).__name__}: {error}"
    except Exception:
        outcome, text = "bare", traceback.format_exc()
    finally:
        fired = effects = 0
        if library is not None:
            fired, effects = library.shim_fired() if strikes else 0, library.shim_effects()
            library.shim_disarm()
            library.shim_unwatch()
    open_files = [p for p in _descriptors() if p.startswith(f"{client.root}/")]
    client.log.note(
        event="end", outcome=outcome, text=text[-1500:], fired=fired, effects=effects,
        open_files=open_files,
    )  # fmt: skip


def _descriptors() -> Iterator[str]:
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            yield os.readlink(f"/proc/self/fd/{entry}")


_NOTHING = {"fired": 0, "effects": 0, "open_files": [], "text": ""}


class Campaign:
    """A tree through many rounds, and what it must hold.

    Attributes
    ----------
    world : World
        Where the tree lies.
    root : Path
        The tree.
    outside : Path
        Where everything else lies.
    states : dict
        What each array held when its history was last settled.
    history : list of Change
        What was done since.
    faults : set of str
        Kinds of the faults since then.
    pending, returned : list
        Operations that have begun, and neither returned nor been refused; and, where a power
        cut can bring back what they have removed, those that have returned, the last first.
    """

    def __init__(self, world: World, outside: Path) -> None:
        self.world, self.root, self.outside = world, world.root, outside
        self.outside.mkdir(exist_ok=True)
        self.history: list[Change] = []
        self.faults: set[str] = set()
        self.pending: list[Operation] = []
        self.returned: list[Operation] = []
        self.states = {name: State(None, name) for name in ARRAYS}
        self.states[IDS] = State(np.zeros(operations.SHAPES[1][0], np.int32), IDS)
        self.effects: Counter[str] = Counter()
        self.n_logs = 0

    def begin(self, *, consolidated: bool) -> None:
        """Make the group."""

        def make() -> None:
            group = zarr.create_group(self.world.store())
            if consolidated:
                zarr.consolidate_metadata(group.store)
            for path in (self.root / "zarr.json", self.root, self.root.parent):
                if path.exists():
                    power_cut.fsync(path)

        self.in_child(make)

    def in_child(self, action: Callable[[], None]) -> str:
        """Run something in a process of its own; what it raised."""
        failed = self.outside / "failed"
        failed.unlink(missing_ok=True)
        is_over = wait([fork(action, failed)])
        return failed.read_text() if failed.exists() else "" if is_over else "hang"

    def log(self) -> Path:
        self.n_logs += 1
        return self.outside / f"log-{self.n_logs}.jsonl"

    def run(self, plan: dict[str, Any]) -> Outcome:
        """A round."""
        outcome = Outcome()
        self.faults.add(plan["fault"]["kind"])
        self._work(plan, outcome)
        self.check(outcome, "right after the fault", recovered=False)
        if plan["fault"]["kind"] == "full":
            if plan["fault"]["recovers"]:
                self._try_recovery(plan["settle"], outcome)
                self.check(outcome, "after a recovery on a full disk", recovered=False)
            self.world.free()
        if outcome.troubles or plan["settle"] == "nothing":
            return outcome
        if plan["settle"] == "abandon":
            self._abandon(outcome)
            self.check(outcome, "after abandon", recovered=not self.pending)
        self._call_again(outcome)
        self.check(outcome, "after the same calls", recovered=True)
        for path in self.world.tree().glob("*.quarantine"):  # is for the user, who needs it no more
            shutil.rmtree(path)
        if self.faults & {"fail", "full", "cut", "request"} and self._left_over():
            # What a call that returned had removed could not be removed, or was there again.
            self._abandon(outcome)
            self._call_again(outcome)
            self.check(outcome, "after they were abandoned", recovered=True)
        if not outcome.troubles:
            self._verify(outcome)
            outcome.enter("left over", self._left_over())
        self.faults.clear()
        return outcome

    # What clients do, and the fault.

    def _work(self, plan: dict[str, Any], outcome: Outcome) -> None:
        fault, logs, pids = plan["fault"], [], []
        config = {"shardwrite.retry-pauses": [0, 0, 0]}
        if fault["kind"] in ("freeze", "slow"):
            ttl = TTL if fault["kind"] == "freeze" else SLOW_TTL
            config |= {"shardwrite.lease.heartbeat": HEARTBEAT, "shardwrite.lease.ttl": ttl}
        for number, ops in enumerate(plan["clients"]):
            logs.append(self.log())
            own = fault if fault.get("client") == number else {}

            def work(ops=ops, own=own, path=logs[-1], number=number) -> None:
                with dask.config.set(config):
                    run_client(self.world, Log(path, f"client-{number}"), ops, own)

            pids.append(fork(work, self.outside / f"failed-{number}"))
        reader = fork(self._read, self.outside / "failed-reader") if plan["reads"] else 0
        started, frozen = time.monotonic(), 0
        if fault["kind"] == "request":
            self.world.ask("begin", {**fault, "pids": pids})
        if fault["kind"] == "kill":
            time.sleep(fault["seconds"])
            for pid in pids if fault["client"] is None else [pids[fault["client"]]]:
                os.kill(pid, signal.SIGKILL)
        elif fault["kind"] == "slow":
            time.sleep(2 * SLOW_TTL)
            outcome.fired = (
                os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
            )
            self._take_over(plan, outcome)
        elif fault["kind"] == "full":
            time.sleep(fault["seconds"])
            self.world.fill(fault["left"])
            outcome.fired = True
        elif fault["kind"] == "cut":
            time.sleep(fault["seconds"])
            self.world.cut(fault["seed"])
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        elif fault["kind"] == "freeze":
            frozen = self._freeze(pids[fault["client"]], plan, outcome)
        if not wait(pids, TIMEOUT - (time.monotonic() - started)):
            outcome.enter("hang", ["a client did not end"])
        if fault["kind"] == "request":
            outcome.fired = self.world.ask("end") > 0
        if reader:
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
        if fault["kind"] == "cut":
            self.world.restart()
        self._enter(logs, outcome, fault, frozen)
        self._judge_readings(outcome)
        for path in self.outside.glob("failed-*"):  # what a client or a reader did not expect
            outcome.enter("bare", [path.read_text()[-1500:]])
            path.unlink()

    def _read(self) -> None:
        """Read arrays, one after the other, until the end of this process."""
        store, directory = self.world.store(), self.outside / "readings"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        for number in range(200):
            name = [*operations.PLAIN, *operations.STREAMED][number % 3]
            with contextlib.suppress(OSError, ValueError):  # what is there is not whole
                document = self.world.document(name)
                is_checked = document is not None and checker.is_checked(document)
                begin = time.monotonic_ns()
                seen, blind, _ = checker.look(store, name)
                if seen is not None and is_checked:
                    fields = {"name": name, "times": [begin, time.monotonic_ns()]}
                    np.savez(directory / "unfinished.npz", seen=seen, blind=blind, **fields)
                    (directory / "unfinished.npz").rename(directory / f"{number}.npz")
            time.sleep(0.02)

    def _judge_readings(self, outcome: Outcome) -> None:
        for path in (self.outside / "readings").glob("[0-9]*.npz"):
            reading = np.load(path)
            name, seen, blind = str(reading["name"]), reading["seen"], reading["blind"]
            history = [c for c in self.history if c.array == name]
            texts = checker.judge_reading(
                self.states[name], seen, blind, history, *reading["times"].tolist()
            )
            outcome.enter("read", [f"{name}: {text}" for text in texts])
            outcome.readings += 1
            path.unlink()

    def _freeze(self, pid: int, plan: dict[str, Any], outcome: Outcome) -> int:
        """Wait until a client stands still, take over from it, and let it go on; when it stood."""
        deadline, state = time.monotonic() + TIMEOUT, ""
        while state not in ("T", "Z") and time.monotonic() < deadline:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            time.sleep(0.005)
        if state != "T":
            return 0
        frozen = time.monotonic_ns()
        outcome.fired = True
        time.sleep(TTL + 0.2)
        self._take_over(plan, outcome)
        os.kill(pid, signal.SIGCONT)
        return frozen

    def _take_over(self, plan: dict[str, Any], outcome: Outcome) -> None:
        path = self.log()
        self.in_child(lambda: run_client(self.world, Log(path, "takeover"), plan["takeover"], {}))
        self._enter([path], outcome, {"kind": "none"}, 0)

    def _enter(
        self, logs: list[Path], outcome: Outcome, fault: dict[str, Any], frozen: int
    ) -> None:
        """Enter what clients have noted into the history."""
        ends: list[tuple[int, Operation, Any]] = []
        for number, path in enumerate(logs):
            if not path.exists():
                continue
            changes = checker.load([path], time.monotonic_ns())
            if frozen and fault["client"] == number:
                for change in changes:
                    if not change.acked and change.begin < frozen:
                        change.end = min(change.end, frozen)
            self.history += changes
            outcome.acked += sum(change.acked for change in changes)
            last: Operation | None = None
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                if entry["event"] == "start":
                    last = entry["operation"]
                elif entry["event"] == "end" and last is not None:
                    ends.append((entry["time"], last, entry))
                    last = None
            if last is not None:
                ends.append((2**63, last, {"outcome": "killed", **_NOTHING}))
        is_alone = len(logs) == 1
        for _, operation, entry in sorted(ends, key=lambda end: end[0]):
            self._end(operation, entry, outcome, fault, is_alone=is_alone)

    def _end(
        self,
        operation: Operation,
        entry: dict[str, Any],
        outcome: Outcome,
        fault: dict[str, Any],
        *,
        is_alone: bool,
    ) -> None:
        kind = operation["kind"]
        outcome.operations[kind] += 1
        outcome.ends[entry["outcome"]] += 1
        is_struck = entry["outcome"] == "killed" and fault.get("kind") in ("kill", "kill at", "cut")
        outcome.fired |= entry["fired"] > 0 or is_struck
        if entry["effects"]:
            self.effects[kind] = (self.effects[kind] + entry["effects"]) // 2
        if entry["open_files"]:
            outcome.enter("left open", [f"{kind}: {entry['open_files'][:3]}"])
        if entry["outcome"] == "bare":
            outcome.enter("bare", [f"{kind}: {entry['text']}"])
        text = entry["text"]  # of an error from the beginning:
        was_wrong = text.startswith(("SpecError", "PlanError")) or "has not ended" in text
        is_ended = entry["outcome"] not in ("done", "skipped")
        if fault.get("kind") == "slow" and is_ended and not was_wrong:
            outcome.enter("taken over", [f"{kind} of a process that lives: {text}"])
        is_readable = not any("torn" in p for p in self.pending)
        if entry["outcome"] == "failed" and fault == {"kind": "none"} and is_readable and is_alone:
            outcome.enter("failed", [f"{kind}: {entry['text']}"])
        # A repair has to be made, and the other of two arrays may have been begun.
        is_torn = ("torn" in operation or kind == "pair") and entry["outcome"] == "refused"
        if entry["outcome"] in ("failed", "killed") or is_torn:
            self._await(operation)
        elif entry["outcome"] == "done":
            self._return(operation)
            self.pending = [p for p in self.pending if p["version"] != operation["version"]]
            self._give_up(operation)

    def _await(self, operation: Operation) -> None:
        self.pending = [p for p in self.pending if p["version"] != operation["version"]]
        self.pending.append(operation)

    def _give_up(self, operation: Operation, *, is_again: bool = False) -> None:
        """Wait no more for what an operation that has returned gives up; for nothing that was begun
        after it, if its call was made again."""
        arrays = operations.changed_by(operation)
        self.pending = [
            p
            for p in self.pending
            if operation["kind"] not in GIVEN_UP_BY.get(p["kind"], set()) | NEW
            or not arrays & operations.changed_by(p)
            or (is_again and p["version"] > operation["version"])
        ]

    # What follows.

    def _abandon(self, outcome: Outcome) -> None:
        path, there = self.outside / "abandoned", self._arrays()

        def abandon() -> None:
            refusals = {}
            for name in there:
                try:
                    shardwrite.abandon(self.world.place(name))
                except (shardwrite.SpecError, shardwrite.JournalError) as error:
                    refusals[name] = str(error)
            path.write_text(json.dumps(refusals))

        if trouble := self.in_child(abandon):
            outcome.enter("abandon", [trouble])
            return
        # A power cut may bring back what a call had removed that returned; so that is made again.
        self.pending = [p for p in self.pending if p["kind"] in COMES_FIRST]
        for name, refusal in json.loads(path.read_text()).items():
            calls = [*self.pending, *self.returned]
            if call := next((p for p in calls if name in operations.changed_by(p)), None):
                self.pending += [call] if call not in self.pending else []
            else:
                outcome.enter("abandon", [f"{name}: {refusal}"])

    def _try_recovery(self, how: str, outcome: Outcome) -> None:
        """Have one call again, or none, made while there is no room; it may fail, and nothing else."""

        def recover() -> None:
            try:
                if how == "same" and self.pending:
                    log = Log(self.outside / "recovery", "recovery")
                    Client(self.world, log).perform(self.pending[0])
                else:
                    for name in self._arrays():
                        shardwrite.abandon(self.world.place(name))
            except (shardwrite.ShardwriteError, SkippedError):
                return

        log = self.outside / "recovery"
        log.unlink(missing_ok=True)
        if trouble := self.in_child(recover):
            outcome.enter("bare", [f"recovery: {trouble[-1500:]}"])
        if log.exists():
            self.history += checker.load([log], time.monotonic_ns())

    def _call_again(self, outcome: Outcome) -> None:
        """Make the calls again that were interrupted; those that others refuse wait for these."""
        waiting, remedies = list(self.pending), {"revive", "restart", "abandon"}
        while waiting and not outcome.troubles:
            refusals = [  # one that returns may give up those after it
                self._call(o, outcome) if o in self.pending else "" for o in waiting
            ]
            refused = [o for o, text in zip(waiting, refusals, strict=True) if text]
            texts = [f"{o['kind']}: {t}" for o, t in zip(waiting, refusals, strict=True) if t]
            is_stuck, copies = (
                len(refused) == len(waiting),
                [o for o in waiting if o["kind"] == "copy"],
            )
            if is_stuck and self.returned and "revive" in remedies:
                remedies.remove("revive")  # a power cut may have brought back what had ended
                for array in set().union(*map(operations.changed_by, refused)):
                    calls = [o for o in self.returned if array in operations.changed_by(o)]
                    if calls:
                        self._call(calls[0], outcome, is_revived=True)
            elif is_stuck and copies and "restart" in remedies:
                remedies.remove("restart")  # what is copied is no longer what it was
                for operation in copies:
                    operation["restart"] = True
            elif (
                is_stuck
                and "abandon" in remedies
                and (
                    any("torn" in o for o in waiting) or all("SpecError" in text for text in texts)
                )
            ):
                remedies.remove("abandon")  # what stands in the way of a repair, or has never begun
                self._abandon(outcome)
            elif is_stuck:
                outcome.enter("stuck", texts)
            waiting = [o for o in refused if o in self.pending]

    def _call(self, operation: Operation, outcome: Outcome, *, is_revived: bool = False) -> str:
        """Make a call again; why it is refused, or an empty string."""
        path, kind = self.log(), operation["kind"]

        def call() -> None:
            log = Log(path, "again")
            log.note(event="start", operation=operation)
            attempt(Client(self.world, log), operation)

        trouble = self.in_child(call)
        entries = [json.loads(line) for line in path.read_text().splitlines()]
        for entry in entries:
            operation.update(entry.get("operation", {}))  # what stays as it is from now on
        last = entries[-1]
        ended = last.get("outcome", "hang" if trouble else "nothing")
        text = last.get("text", trouble)
        if not is_revived:  # that changes nothing
            self.history += checker.load([path], time.monotonic_ns())
        if last.get("open_files"):
            outcome.enter("left open", [f"{kind}: {last['open_files'][:3]}"])
        can_have_begun = "torn" in operation or self._has_state(operation)
        if ended == "failed" or (ended == "refused" and can_have_begun):
            return text
        if ended not in ("done", "skipped", "refused"):
            outcome.enter("stuck", [f"{kind}: {text}"])
        self.pending = [p for p in self.pending if p is not operation]
        if ended == "done":
            self._return(operation)
            self._give_up(operation, is_again=True)
        return ""

    def _return(self, operation: Operation) -> None:
        if self.world.forgets and operation["kind"] in COMES_FIRST:
            self.returned.insert(0, operation)

    def _arrays(self) -> list[str]:
        """Arrays of which there is anything, be it beside their name."""
        tree = self.world.tree()
        names = {path.name.partition(".")[0] for path in tree.iterdir()}
        return [name for name in ARRAYS if name != IDS and name in names]

    def _has_state(self, operation: Operation) -> bool:
        """Whether an operation can have left anything to be ended."""
        tree, names = self.world.tree(), operations.changed_by(operation)
        places = (p for name in names for p in (f"{name}.*", f"{name}/shardwrite-run*"))
        return any(any(tree.glob(place)) for place in places)

    # What must hold.

    def look(self) -> dict[str, tuple[Any, Any, str]]:
        """Every array as zarr-python reads it."""
        out, tree = self.outside / "seen", self.world.tree()
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()

        def read() -> None:
            store = zarr.storage.LocalStore(tree)
            for name in ARRAYS:
                seen, blind, text = checker.look(store, name)
                if name == IDS:
                    seen = checker.look_at_ids(tree / IDS, *operations.SHAPES[1][0])
                    blind = np.zeros(seen.shape, bool)
                if seen is not None:
                    np.savez(out / f"{name}.npz", seen=seen, blind=blind, text=text)
                elif text:
                    (out / name).write_text(text)

        trouble = self.in_child(read)
        if trouble:
            raise AssertionError(trouble)
        views: dict[str, tuple[Any, Any, str]] = {}
        for name in ARRAYS:
            text = (out / name).read_text() if (out / name).exists() else ""
            views[name] = (None, None, text)
            if (out / f"{name}.npz").exists():
                view = np.load(out / f"{name}.npz")
                views[name] = view["seen"], view["blind"], str(view["text"])
        return views

    def check(self, outcome: Outcome, moment: str, *, recovered: bool) -> None:
        """Judge what every array holds; where it is recovered, that is what it is to hold."""
        views = self.look()
        before = len(outcome.troubles)
        for name, (seen, blind, text) in views.items():
            history = [c for c in self.history if c.array == name]
            if (
                seen is None
                and not recovered
                and any(c.kind == "new" and not c.acked for c in history)
            ):
                continue  # it is missing until the call that replaces it has ended
            mask = None
            if seen is not None:
                mask = blind.copy()
                if not recovered:
                    mask |= checker.torn_by(history, seen.shape)
                    blind = blind & ~checker.torn_by(history, seen.shape)
                if blind.any():
                    outcome.enter("unreadable", [f"{name} {moment}: {text}"])
            for text in checker.judge(self.states[name], seen, history, mask):
                word, _, rest = text.partition(": ")
                outcome.enter(word, [f"{name} {moment}: {rest}"])
        if recovered and len(outcome.troubles) == before and not self.pending:
            for name, (seen, _, _) in views.items():
                self.states[name] = self._settled(name, seen)
            self.history = []

    def _settled(self, name: str, seen) -> State:
        if seen is None:
            return State(None, name)
        for of in [self.states[name].name, name, *ARRAYS]:
            versions = checker.versions_of(seen, of)
            if (versions >= 0).all():
                return State(versions, of)
        raise AssertionError(f"{name} holds elements of no array")

    def _verify(self, outcome: Outcome) -> None:
        path = self.outside / "verified"

        def verify() -> None:
            texts = []
            for name, state in self.states.items():
                if name == IDS:
                    shards = shardwrite.UInt64Shards(self.world.place(IDS), checker.IDS)
                    texts += [] if shards.verify(deep=True).is_good else ["chunks by id"]
                elif state.versions is not None:
                    report = shardwrite.verify(self.world.place(name), deep=True)
                    if not report.is_good:
                        texts.append(f"{name}: {[p.message for p in report.problems][:3]}")
            path.write_text(json.dumps(texts))

        outcome.enter("unlisted", checker.unlisted(self.world.tree()))
        trouble = self.in_child(verify)
        outcome.enter("verify", [trouble] if trouble else json.loads(path.read_text()))

    def _left_over(self) -> list[str]:
        """Names in the tree that are no document, no chunk and no receipt."""
        own = {"zarr.json", "shardwrite-receipt.json"}
        left, tree = [], self.world.tree()
        for directory, names, files in os.walk(tree):
            at = Path(directory).relative_to(tree)
            depth = len(at.parts)
            is_chunk = depth > 1 and at.parts[1] == "c"
            chunks = [f for f in files if is_chunk and f.isdigit()]
            chunks += [f for f in files if str(at) == IDS and f.endswith(".shard") and f[0] != "."]
            left += [str(at / f) for f in files if f not in own and f not in chunks]
            left += [
                str(at / d) for d in names
                if not (d in ARRAYS if depth == 0 else d == "c" if depth == 1 else d.isdigit())
            ]  # fmt: skip
        return [str(left[:5])] if left else []
