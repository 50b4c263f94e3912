"""What the versions of two commits leave on disk where they are killed: made by these versions, and
stored in two archives. That of f91bbb9 is ``states.tar.xz``. That of 3e6cb07, the tree before the
rebuild, is ``states-3e6cb07.tar.xz``.

A process that is killed before one of its effects on the file system leaves what lies there at that
moment. So each operation of `operations.py` runs once, and what lies there is copied before every
so many effects, while no thread has another. Host, user, boot and process that it names are made
up, and so are times, so that a state tells nothing of the machine that it was made on. With
checkouts of these commits beside this repository, the archives are made anew by::

    git worktree add --detach ../f91bbb9 f91bbb9
    (cd ../f91bbb9 && PYTHONPATH=. python "$OLDPWD/tests/upgrade/make_states.py"
    "$OLDPWD/tests/upgrade/states.tar.xz" 2)
    git worktree add --detach ../3e6cb07 3e6cb07
    (cd ../3e6cb07 && PYTHONPATH=. python "$OLDPWD/tests/upgrade/make_states.py"
    "$OLDPWD/tests/upgrade/states-3e6cb07.tar.xz" 23)

The threads of a stream take turns as they like, so two archives may differ a little.
"""

from __future__ import annotations

import getpass
import io
import json
import os
import random
import shutil
import socket
import sys
import tarfile
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import dask

import shardwrite
from shardwrite import commit, job  # of the old version; the present one has them in other folders
from shardwrite.journal import lease, rundir, takeover

sys.path.insert(0, str(Path(__file__).parent))
from operations import NAME, OPERATIONS

EFFECTS = (
    "write",
    "writev",
    "pwrite",
    "fsync",
    "rename",
    "link",
    "unlink",
    "mkdir",
    "rmdir",
    "ftruncate",
    "copy_file_range",
)
LONG_AGO = 978_307_200  # the first of January 2001
HOST, USER, PID, BOOT = "node17", "somebody", 4242, "01234567-89ab-cdef-0123-456789abcdef"
PLACE = b"/data"


class Calendar(datetime):
    """A calendar that has stopped."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return datetime.fromtimestamp(LONG_AGO, UTC)


def disguise() -> None:
    """Have the old version name another machine, and another time."""
    socket.gethostname = lambda: HOST
    getpass.getuser = lambda: USER
    lease.boot_id = lambda: BOOT
    lease._pid_namespace = lambda: "pid:[4026539999]"
    lease._started = lambda pid: "1"
    job.datetime = Calendar
    os.getpid = lambda: PID
    commit._peak_nbytes = lambda: 2**26
    time.time = time.perf_counter = lambda: float(LONG_AGO)
    if hasattr(os, "sched_getaffinity"):
        os.sched_getaffinity = lambda pid: {0, 1}
    os.cpu_count = lambda: 2


def name_by(label: str) -> None:
    """Make random names depend on nothing but a label."""
    numbers = random.Random(label)
    uuid.uuid4 = lambda: uuid.UUID(int=numbers.getrandbits(128), version=4)


@dataclass
class Watch:
    """Calls something before every so many effects, as long as it is on."""

    every: int
    look: Callable[[int], None] | None = None
    n: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def install(self) -> None:
        """Have the system's calls tell of themselves."""
        for name in EFFECTS:
            setattr(os, name, self.watched(getattr(os, name)))
        open_file = os.open
        making = self.watched(open_file)

        def open_watched(path: object, flags: int, *rest: object, **keywords: object) -> int:
            return (making if flags & os.O_CREAT else open_file)(path, flags, *rest, **keywords)

        os.open = open_watched

    def watched(self, call: Callable) -> Callable:
        def perform(*arguments: object, **keywords: object) -> object:
            with self.lock:
                if self.look is not None:
                    self.n += 1
                    if self.n % self.every == 1:
                        look, self.look = self.look, None
                        look(self.n)
                        self.look = look
                return call(*arguments, **keywords)

        return perform


watch = Watch(int(sys.argv[2]))
ended: list[list[int]] = []


def note_ends() -> None:
    """Have each run that ends noted, before its end begins: all that it writes was acknowledged by
    then."""
    is_method = hasattr(rundir.RunDirectory, "end")  # of f91bbb9
    end = rundir.RunDirectory.end if is_method else takeover.end_run

    def noted(run: rundir.RunDirectory, *rest: object) -> None:
        ended.extend(shards_of(run.facts, range(1000)))
        end(run, *rest)

    if is_method:
        rundir.RunDirectory.end = noted
    else:
        for module in list(sys.modules.values()):
            if getattr(module, "end_run", None) is end:
                module.end_run = noted


def shards_of(facts: dict, ranks: Iterable[int]) -> list[list[int]]:
    """Positions in the array's shard grid of some shards of a run, by their ranks."""
    if not facts.get("shards_from"):
        document = facts["identity"]["metadata"]
        sizes = zip(
            document["shape"], document["chunk_grid"]["configuration"]["chunk_shape"], strict=True
        )
    first, counts = facts.get("shards_from") or ([0, 0], [-(-n // s) for n, s in sizes])
    return [
        [first[0] + rank // counts[1], first[1] + rank % counts[1]]
        for rank in ranks
        if rank < counts[0] * counts[1]
    ]


def acknowledged(home: Path, source_id: str, state: str = "*") -> list[list[int]]:
    """Shards that the journals of runs tell of, as long as such a run counts."""
    found = []
    for plan in sorted(home.rglob("plan.json")):
        facts = json.loads(plan.read_bytes())
        if facts["mode"] == "r+" or facts["identity"]["source"] == source_id:
            for journal in sorted(plan.parent.glob(f"{state}-*/journal-*.jsonl")):
                for line in journal.read_bytes().split(b"\n")[1:-1]:
                    found += shards_of(facts, json.loads(line[9:]).get("shards", ()))
    return found


def contents(home: Path) -> list[tuple[str, bytes | None]]:
    """All that lies in a directory, by name; None for directories. Receipts say where the array
    lay, and nothing else does."""
    return [
        (
            str(path.relative_to(home)),
            None if path.is_dir() else path.read_bytes().replace(bytes(home), PLACE),
        )
        for path in sorted(home.rglob("*"), key=lambda path: path.relative_to(home).parts)
    ]


def states_of(operation_name: str, home: Path) -> list[tuple[dict, list[tuple[str, bytes | None]]]]:
    """What kills of an operation leave, each once; and last what it leaves that was not killed."""
    operation, found, seen = OPERATIONS[operation_name], [], set()

    def look(effect: int) -> None:
        lies = contents(home)
        if (key := repr(lies)) not in seen or not effect:
            seen.add(key)
            told = {
                "operation": operation_name,
                "kill_at": effect,
                "acknowledged": sorted({(i, j) for i, j in acknowledged(home, "new") + ended}),
                "given_up": sorted({(i, j) for i, j in acknowledged(home, "old", "run")})
                if operation_name == "start over"
                else [],
            }
            found.append((told, lies))

    home.mkdir()
    name_by(f"{operation_name}, before")
    operation.prepare(home / NAME)
    name_by(operation_name)
    ended.clear()
    watch.n, watch.look = 0, look
    operation.perform(home / NAME)
    watch.look = None
    look(0)
    shutil.rmtree(home)
    return found


def add(archive: tarfile.TarFile, name: str, data: bytes | None) -> None:
    """Put a file or directory into an archive, as nobody's and of long ago."""
    entry = tarfile.TarInfo(name)
    entry.mtime = LONG_AGO
    entry.mode = 0o644 if data is not None else 0o755
    entry.type = tarfile.REGTYPE if data is not None else tarfile.DIRTYPE
    entry.size = len(data or b"")
    archive.addfile(entry, io.BytesIO(data or b""))


def main() -> None:
    secrets = {
        socket.gethostname(),
        getpass.getuser(),
        lease.boot_id(),
        lease._pid_namespace(),
        tempfile.gettempdir(),
        "/dev/shm",
    }
    disguise()
    note_ends()
    watch.install()
    top = Path(
        tempfile.mkdtemp(
            prefix="states-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        )
    )
    found = []
    try:
        with dask.config.set(scheduler="sync"):
            for name in sys.argv[3:] or OPERATIONS:
                of_this = states_of(name, top / "home")
                print(f"{name}: {len(of_this)}", flush=True)
                found += of_this
    finally:
        shutil.rmtree(top)
    leaks = {
        s
        for s in secrets
        for _, lies in found
        for name, data in lies
        if s and s.encode() in name.encode() + (data or b"")
    }
    assert not leaks, f"the archive would tell {leaks}"
    with tarfile.open(sys.argv[1], "w:xz", preset=9) as archive:
        add(archive, "states.json", json.dumps([told for told, _ in found]).encode())
        for number, (_, lies) in enumerate(found):
            for name, data in lies:
                add(archive, f"{number:04d}/{name}", data)
    print(
        f"{len(found)} states of {shardwrite.__name__} {shardwrite.__version__}, "
        f"{os.path.getsize(sys.argv[1])} bytes"
    )


if __name__ == "__main__":
    main()
