"""Power cuts on real file systems: run, cut, mount again, judge, run again.

The set-up is two file systems, one in the other. The *disk* is a file, ``drive/image``; the file
system under test is mounted from it through a loop device. What the loop device was told to write
lies in the page cache of that file, which so plays the write cache of a drive; a flush, sent by the
file system under test, is an fsync of it. The drive's own file system lies in another image. A cut
is the ioctl ``FS_IOC_SHUTDOWN`` with ``NOLOGFLUSH``, to the drive first, and at once to the file
system under test, so that the writer stops.

What this simulates: everything in the page cache of the machine and everything in the cache of the
drive that was not flushed is gone, at one moment, with system calls, writeback and journal commits
under way; then the file system recovers from its log. In half of the states the drive has, before
the cut, written random parts of its cache in random order, so writes that were not flushed are lost
*or* kept, page by page, later ones without earlier ones. So a missing fsync shows, and a file
system that does not flush as well: a control mounts ext4 with ``barrier=0`` and sees acknowledged
shards vanish.

What it does not simulate: sectors torn inside a page of 4096 bytes, drives that lie about flushes,
bits that rot, memory that is garbage while the power fades; nor workers of another process. The
machine does not in fact restart, so the boot id that a journal compares is replaced by another
after each cut. ext4 and xfs make more durable than they promise: an fsync commits whatever was in
the log before it. A protocol that forgets to sync an ancestor is not caught here.

Run as ``python tests/faults/power_cut.py --states 200 --filesystem ext4 --durability full --seed 0
--json out.json``, as root.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

import shardwrite  # noqa: F401 (gives dask arrays their method)

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import loop_devices
import oracle
import seams
from leftovers import left_over

FILESYSTEMS = ("ext4", "xfs")
_SHUTDOWN = (
    (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
)  # FS_IOC_SHUTDOWN, that is _IOR('X', 125, __u32)
_NO_LOG_FLUSH = struct.pack("I", 2)
_NBYTES = {"ext4": 48 * 2**20, "xfs": 304 * 2**20}  # xfs makes none smaller than 300 MiB
# Nothing is discarded, so that the drive's file keeps its blocks and every write to it is one in
# place.
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
}
_DESTAGED_NBYTES = 2**18
_SYNC_FILE_RANGE_WRITE_AND_WAIT = 7
_N_WORKERS = 4


def missing(filesystem: str) -> str:
    """Why no power can be cut here, or an empty string."""
    if not sys.platform.startswith("linux"):
        return "loop devices are Linux's"
    if os.geteuid() != 0:
        return "only root may mount"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices here (modprobe loop)"
    for name in {"ext4", filesystem}:
        if shutil.which(f"mkfs.{name}") is None:
            return f"mkfs.{name} is not here (Debian's packages e2fsprogs and xfsprogs)"
        if (
            name not in Path("/proc/filesystems").read_text().split()
            and subprocess.run(["modprobe", name]).returncode
        ):
            return f"the kernel has no {name}"
    with tempfile.NamedTemporaryFile() as image:
        image.truncate(2**20)
        try:
            device = loop_devices.attach(Path(image.name))
        except OSError as error:
            return f"no loop device can be made: {error}"
        loop_devices.detach(device, Path(image.name))
    return ""


class Machine:
    """A file system on a drive, both of which lose their power together.

    Parameters
    ----------
    directory : path
        An empty directory for images and mount points.
    filesystem : {"ext4", "xfs"}
        Under test.
    options : str
        For its mount.

    Attributes
    ----------
    root : pathlib.Path
        Where it is mounted.
    leaked : int
        Descriptors that were left open in it when it was unmounted.
    """

    def __init__(self, directory, filesystem: str, options: str = "") -> None:
        self._directory, self._filesystem, self._options = (
            Path(directory).resolve(),
            filesystem,
            options,
        )
        self._drive = self._directory / "drive"
        self._image = self._drive / "image"
        self.root = self._directory / "mnt"
        self.leaked = 0
        self._devices: dict[Path, str] = {}

    def __enter__(self) -> Machine:
        nbytes = _NBYTES[self._filesystem]
        for path in (self._drive, self.root):
            path.mkdir()
        with open(self._directory / "drive.img", "wb") as file:
            file.truncate(nbytes + nbytes // 8 + 32 * 2**20)
        subprocess.run([*MKFS["ext4"], self._directory / "drive.img"], check=True)
        try:
            self._mount(self._directory / "drive.img", self._drive, "ext4")
            with open(self._image, "wb") as file:
                for _ in range(nbytes >> 20):
                    file.write(bytes(2**20))
            subprocess.run([*MKFS[self._filesystem], self._image], check=True)
            fsync(self._image)
            self._mount(self._image, self.root, self._filesystem, self._options)
        except BaseException:
            self.unmount()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.unmount()
        (self._directory / "drive.img").unlink()  # hundreds of megabytes that pytest would keep

    def cut(self, rng: np.random.Generator) -> None:
        """Cut the power, in half of the cases of a drive that has just written some of its cache."""
        descriptors = [os.open(path, os.O_RDONLY) for path in (self._drive, self.root)]
        try:
            if rng.random() < 0.5:
                self._destage(rng)
            for fd in descriptors:
                fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            for fd in descriptors:
                os.close(fd)

    def restart(self) -> None:
        """Mount all of it again, from what the drive has kept."""
        self.unmount()
        self._mount(self._directory / "drive.img", self._drive, "ext4")
        self._mount(self._image, self.root, self._filesystem, self._options)

    def unmount(self) -> None:
        """Take down what is mounted, whatever state it is in."""
        troubles = []
        for path, image in ((self.root, self._image), (self._drive, self._directory / "drive.img")):
            self.leaked += close_all_in(path)
            try:
                trouble = unmount(path, 60)
                troubles += [trouble] if trouble else []
                if device := self._devices.pop(path, ""):
                    loop_devices.detach(device, image)
            except OSError as error:
                troubles.append(str(error))
        if troubles:
            raise OSError("; ".join(troubles))

    def _mount(self, image: Path, path: Path, filesystem: str, options: str = "") -> None:
        self._devices[path] = loop_devices.attach(image)
        done = subprocess.run(
            ["mount", "-t", filesystem, "-o", options or "rw", self._devices[path], str(path)],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise OSError(done.stderr.strip())

    def _destage(self, rng: np.random.Generator) -> None:
        """Have the drive write random parts of its cache, which is not a flush: no later write
        waits for them."""
        libc = ctypes.CDLL(None, use_errno=True)
        parts = rng.permutation(_NBYTES[self._filesystem] // _DESTAGED_NBYTES)
        fd = os.open(self._image, os.O_RDONLY)
        try:
            for part in parts[: int(rng.integers(len(parts)))]:
                offset, nbytes = (
                    ctypes.c_int64(int(part) * _DESTAGED_NBYTES),
                    ctypes.c_int64(_DESTAGED_NBYTES),
                )
                libc.sync_file_range(fd, offset, nbytes, _SYNC_FILE_RANGE_WRITE_AND_WAIT)
        finally:
            os.close(fd)


def is_mounted(path: Path) -> bool:
    """As the system's table has it: after a cut, xfs does not even say what its root is.

    Places of others in the table may be no text.
    """
    return any(
        line.split()[4] == os.fsencode(path)
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines()
    )


def unmount(path: Path, seconds: float) -> str:
    """Unmount what is mounted at a path, in whatever state it is; what was in the way until time
    was up, or nothing."""
    deadline, trouble = time.monotonic() + seconds, ""
    while is_mounted(path):
        done = subprocess.run(["umount", path], capture_output=True, text=True)
        if done.returncode and time.monotonic() > deadline:
            subprocess.run(["umount", "--lazy", path], check=False)
            trouble = done.stderr.strip()
        elif done.returncode:  # a loop device lets go of the drive a moment after its own unmount
            time.sleep(0.005)
    return trouble


def fsync(path: Path) -> None:
    """Make a file or a directory durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def close_all_in(path: Path) -> int:
    """Close descriptors that this process has left open below a path; how many there were."""
    n = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.readlink(entry).startswith(f"{path}/"):
                os.close(int(entry.name))
                n += 1
    return n


@dataclass
class State:
    """What one cut left.

    Attributes
    ----------
    number : int
        Its seed, with the run's.
    keywords : dict
        What the writer was called with.
    acked : int
        Shards acknowledged before the cut.
    there : int
        Shards that hold the new values.
    lost : list of int
        Acknowledged, but some reader does not find them as they were written.
    torn : list of int
        Not acknowledged, and neither whole nor absent.
    orphaned : bool
        Shards were acknowledged, but no whole metadata is left, neither published nor pending.
    finished : bool
        The run was over before the cut.
    error : str
        What the writer raised.
    resumed : bool
        The same command, run again, made the array whole.
    trouble : str
        Why it did not.
    leaked : int
        Descriptors that the writer left open.
    left : list of str, optional
        Names that are left over after the command was run again.
    seconds : float
        For all of it.
    """

    number: int
    keywords: dict
    acked: int = 0
    there: int = 0
    lost: list[int] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    orphaned: bool = False
    finished: bool = False
    error: str = ""
    resumed: bool = False
    trouble: str = ""
    leaked: int = 0
    left: list[str] | None = None
    seconds: float = 0.0

    @property
    def vacuous(self) -> bool:
        """No evidence: nothing was acknowledged, or nothing was under way."""
        return self.finished or not self.acked


class Recorder:
    """Acknowledges, keeps the metadata, and says when it is time.

    Parameters
    ----------
    path : path
        The array.
    acks : oracle.Acks
        Outside the file system under test.
    n_acks : int
        How many shards to wait for.
    """

    hold = 0.0
    """Seconds for which the program waits at that time, so that it has not ended before the cut."""

    def __init__(self, path: Path, acks: oracle.Acks, n_acks: int) -> None:
        self._path, self._acks, self._n_acks = path, acks, n_acks
        self.metadata = None
        self.is_time = threading.Event()

    def __call__(self, report) -> None:
        """Given to `to_sharded_zarr` as `progress`."""
        if self.metadata is None:
            with contextlib.suppress(
                OSError, IndexError
            ):  # the cut may be quicker; then nothing was acknowledged
                self.metadata = oracle.metadata_of(self._path)
        self._acks(report)
        self._n_acks -= len(report.shards)
        if self._n_acks <= 0 and not self.is_time.is_set():
            self.is_time.set()
            time.sleep(self.hold)


@contextlib.contextmanager
def scheduler(name: str) -> Iterator[None]:
    """A dask scheduler whose tasks have all ended at the end, those too that an error has made
    useless."""
    with (
        ThreadPoolExecutor(_N_WORKERS) as pool,
        dask.config.set(scheduler=name, pool=pool, num_workers=_N_WORKERS),
    ):
        yield


def judge(
    path: Path, metadata, acked: set[int], wanted: np.ndarray
) -> tuple[int, list[int], list[int]]:
    """How many shards are there, which of the acknowledged are lost, and which of the others are
    torn; by all readers."""
    boxes = oracle.shard_boxes(metadata)
    whole, absent = set(boxes), set(boxes)
    for ranks, found in _readings(path, metadata, boxes):
        for rank in ranks:
            shard = found[boxes[rank].slices] if found is not None else None
            if shard is None or (shard != wanted[boxes[rank].slices]).any():
                whole.discard(rank)
            if shard is None or shard.any():
                absent.discard(rank)
    return len(whole), sorted(acked - whole), sorted(set(boxes) - acked - whole - absent)


def _readings(path, metadata, boxes) -> Iterator[tuple[set[int], np.ndarray | None]]:
    """Shards and the array as a reader sees it; alone, shard by shard, where some shard is
    unreadable."""
    try:
        yield from (
            (set(boxes), found) for found in oracle.read_everywhere(path, metadata).values()
        )
    except Exception:
        for rank, index in enumerate(metadata.grid.shards_in(metadata.grid.whole)):
            key = metadata.shard_key(index)
            with tempfile.TemporaryDirectory() as scratch:
                if (path / key).exists():
                    (Path(scratch) / key).parent.mkdir(parents=True)
                    shutil.copyfile(path / key, Path(scratch) / key)
                try:
                    yield from (
                        ({rank}, found)
                        for found in oracle.read_everywhere(scratch, metadata).values()
                    )
                except Exception:
                    yield {rank}, None


def draw(rng: np.random.Generator, durability: str) -> tuple[np.ndarray, da.Array, str, dict]:
    """Values, the source that has them, a scheduler, and keywords for the writer.

    A small memory limit is what makes small tasks, and so many acknowledgements. Shards of 64 KiB
    exceed it, and are encoded in several tasks and committed in another; of smaller ones a task
    takes one or some, of level batch more.
    """
    name = ["sync", "threads"][rng.integers(2)]
    n_threads = _N_WORKERS if name == "threads" else 1
    if rng.random() < 0.3:
        shape, shards, memory = [(768, 512), (700, 500)][rng.integers(2)], 128, 520_000 * n_threads
    else:
        shape, shards = [(512, 512), (500, 480), (512, 256)][rng.integers(3)], 64
        shards_per_task = int(rng.choice([2, 8] if durability == "batch" else [1, 2, 4]))
        memory = max(300_000, 8 * n_threads * shards_per_task * shards**2 * 4)
    chunks = [64, 100, 128, (64, shape[1])][rng.integers(4)]
    keywords = {
        "shards": shards,
        "chunks": 16,
        "durability": durability,
        "publish": ["first", "last"][rng.integers(2)],
        "index_location": ["start", "end"][rng.integers(2)],
        "memory_limit": memory,
        "max_source_reruns": 100,
    }
    values = oracle.values(
        shape,
        int(rng.integers(1000)),
        (slice(0, 64), slice(64, 200)) if rng.random() < 0.25 else None,
    )
    return values, da.from_array(values, chunks=chunks), name, keywords


def run_state(
    machine: Machine,
    acks_path: Path,
    seed: int,
    number: int,
    durability: str,
    *,
    resume: bool = True,
) -> State:
    """One array, one cut, one judgement."""
    start = time.perf_counter()
    rng = np.random.default_rng([seed, number])
    wanted, source, scheduler_name, keywords = draw(rng, durability)
    state = State(number, keywords | {"scheduler": scheduler_name})
    home = machine.root / f"state-{seed}-{number}"
    path = home.joinpath(*["new"] * int(rng.integers(3)), "x.zarr")
    n_shards = math.prod(-(-n // keywords["shards"]) for n in wanted.shape)
    acks_path.unlink(missing_ok=True)
    acks = oracle.Acks(acks_path)
    at_the_end = rng.random() < 0.1  # while the metadata is published and the run tidies up
    recorder = Recorder(
        path, acks, n_shards if at_the_end else int(rng.integers(1, 1 + n_shards * 2 // 3))
    )
    delay = rng.uniform(0, 0.0005 if durability == "none" else 0.004)
    recorder.hold = 0.01 if not at_the_end and rng.random() < 0.5 else 0.0
    acked: set[int] = set()

    def cut() -> None:
        recorder.is_time.wait(60)
        time.sleep(delay)
        acked.update(acks.ranks())  # before the cut: after it, no one could have been told
        machine.cut(rng)

    cutter = ThreadPoolExecutor(1)
    cutting = cutter.submit(cut)
    try:
        with (
            scheduler(scheduler_name),
            dask.config.set({"shardwrite.retry-pauses": [0, 0, 0]}),
        ):  # nothing comes back here
            source.to_sharded_zarr(path, progress=recorder, **keywords)
        state.finished = True
    except Exception as error:
        state.error = f"{type(error).__name__}: {error}"
    finally:
        recorder.is_time.set()
        cutter.shutdown()
    cutting.result()

    leaked = machine.leaked
    machine.restart()
    state.leaked, state.acked = machine.leaked - leaked, len(acked)
    if recorder.metadata is None:
        assert not acked, "shards were acknowledged before there was metadata"
    else:
        state.there, state.lost, state.torn = judge(path, recorder.metadata, acked, wanted)
        state.orphaned = bool(acked) and not has_metadata(path)
    if resume:
        try:
            with (
                scheduler(scheduler_name),
                seams.after_restart(f"{seed} {number}"),
            ):
                source.to_sharded_zarr(path, **keywords)
            oracle.check_whole(path, wanted)
            state.resumed = True
            state.left = left_over(home)
        except Exception as error:
            state.trouble = f"{type(error).__name__}: {error}"
    shutil.rmtree(home, ignore_errors=True)
    state.seconds = time.perf_counter() - start
    return state


def has_metadata(path: Path) -> bool:
    """Whether whole metadata of an array is left, published or pending."""
    try:
        oracle.metadata_of(path)
    except Exception:
        return False
    return True


def up_to(cases: Iterable[Any], is_last: Callable[[Any], object] | None) -> list[Any]:
    """Cases, one after the other, up to the first that is the last one, if any is."""
    done = []
    for case in cases:
        done.append(case)
        if is_last is not None and is_last(case):
            break
    return done


def run(
    directory,
    filesystem: str,
    durability: str,
    n_states: int,
    *,
    seed: int = 0,
    resume: bool = True,
    options: str = "",
    is_last: Callable[[State], object] | None = None,
) -> list[State]:
    """Many states on one machine.

    Parameters
    ----------
    directory : path
        Empty; what is mounted in it is unmounted at the end.
    filesystem, options
        See :class:`Machine`.
    durability : {"full", "batch", "none"}
        Of the writer.
    n_states, seed : int
        How many, and which. Moments are drawn with the seed, but where they fall in the run depends
        on the machine.
    resume : bool
        Run the same command again after each judgement, and have that judged.
    is_last : callable, optional
        Whether a state is enough, so that no more follow.
    """
    with Machine(directory, filesystem, options) as machine:
        acks = Path(directory) / "acks"
        states = (
            run_state(machine, acks, seed, number, durability, resume=resume)
            for number in range(n_states)
        )
        return up_to(states, is_last)


def summary(states: list[State]) -> dict:
    """Totals of the states that are evidence, and how many are none."""
    evidence = [state for state in states if not state.vacuous]
    return {
        "states": len(states),
        "vacuous": len(states) - len(evidence),
        "acked": sum(state.acked for state in evidence),
        "lost": sum(len(state.lost) for state in evidence),
        "torn": sum(len(state.torn) for state in states),
        "orphaned": sum(state.orphaned for state in evidence),
        "resumed": sum(state.resumed for state in states),
        "leaked": sum(state.leaked for state in states),
        "left": sum(len(state.left or ()) for state in states),
        "seconds": round(sum(state.seconds for state in states), 1),
        "errors": dict(Counter(state.error.split(":")[0] for state in states if state.error)),
        "troubles": dict(Counter(state.trouble[:200] for state in states if state.trouble)),
    }


def parser(description: str, what: str, n: int) -> argparse.ArgumentParser:
    """The arguments of a harness that mounts a file system of its own, and makes so many states or
    cases by default."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument(f"--{what}", type=int, default=n)
    made.add_argument("--filesystem", choices=FILESYSTEMS, default="ext4")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--json", type=Path, help=f"write the {what} there, too")
    return made


def tell(document: dict, made: Sequence[Any], out: Path | None) -> None:
    """Print a summary, and write it with all that was made to a file if one is named."""
    print(json.dumps(document, indent=2))
    if out:
        of = [asdict(one) for one in made]
        out.write_text(json.dumps({"summary": document, "of": of}, indent=2))


def main() -> None:
    arguments = parser("Cut the power under a writer, many times.", "states", 200)
    arguments.add_argument("--durability", choices=("full", "batch", "none"), default="full")
    arguments.add_argument("--options", default="", help="for the mount")
    arguments.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="run the same command after each cut",
    )
    given = arguments.parse_args()
    if why := missing(given.filesystem):
        sys.exit(why)
    with tempfile.TemporaryDirectory() as directory:
        states = run(
            directory,
            given.filesystem,
            given.durability,
            given.states,
            seed=given.seed,
            resume=given.resume,
            options=given.options,
        )
    document = {
        "filesystem": given.filesystem,
        "durability": given.durability,
        "seed": given.seed,
        **summary(states),
    }
    tell(document, states, given.json)


if __name__ == "__main__":
    main()
