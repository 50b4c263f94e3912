"""Failed write-back under every operation: what was acknowledged is there after an unmount and a mount.

Each case makes an array on the disk of `lossy_device.py`, has one, two or all writes fail while an operation runs, heals the
disk, lets the kernel forget some of the pages, does what a user may do next, unmounts, mounts, and judges what the disk has.

Values are a hash of coordinate and version, and every inner chunk begins with a mark, which the disk looks for. They do not
compress, so zstd stores them as they are, mark included. Documents (plans, records, journals, receipts, ``zarr.json``) are
found by the way that JSON is spaced. Metadata of the file system itself never fails.

Acknowledged is: a flush that returned, a shard that was reported, an entry of a journal, and all of a call that returned.

Run as ``python tests/faults/lossy_disk.py --cases 500 --seed 0 --filesystem ext4 --json out.json``, as root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest import mock

import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, commit
from shardwrite.journal import neighbours, replay
from shardwrite.metadata import parse_metadata
from shardwrite.target import resolve_target

sys.path.insert(0, str(Path(__file__).parent))
import lossy_device
import oracle
import power_cut

SHAPE, SHARDS, CHUNKS = (256, 512), (128, 256), (32, 32)
FRAMES, FRAME_SHARDS, FRAME_CHUNKS = (20, 64, 64), (8, 64, 64), (1, 32, 32)
MARK = b"\x91LOSSY!\x92"
WHERE = {"data": [MARK], "documents": [b'": '], "both": [MARK, b'": ']}
STRATEGIES = {
    "replace": FixedOrder("C"),
    "clone": AppendOnly(),
    "in place": FixedOrder("C", in_place=True, max_unused=1.0),
    "append in place": AppendOnly(in_place=True),
}
OPERATIONS = {  # name: strategies
    "stream": tuple(STRATEGIES),
    "update": tuple(STRATEGIES),
    "erase": tuple(STRATEGIES),
    "fresh": ("replace",),
    "replacement": ("replace",),
    "compact": ("replace",),
    "repair": ("replace",),
    "parts": ("replace",),
}
KINDS = [(operation, strategy) for operation, strategies in OPERATIONS.items() for strategy in strategies]
FOLLOW_UPS = ("same", "abandon", "other", "writer", "nothing")
TIMES = (1, 2, -1)
_MEMORY = "1.4MB"


def values(shape, version: int, chunks=CHUNKS) -> np.ndarray:
    """A hash of coordinate and version, never the fill value; the mark at the beginning of each inner chunk."""
    x = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape) + np.uint64(version << 40)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    found = np.maximum((x >> np.uint64(32)).astype(np.uint32), 1)
    corner = tuple(slice(None, None, c) for c in chunks[:-1])
    for i, word in enumerate(np.frombuffer(MARK, "<u4")):
        found[(*corner, slice(i, None, chunks[-1]))] = word
    return found


@dataclass
class Case:
    """A fault, and what came of it.

    Attributes
    ----------
    number : int
        Its seed, with the campaign's.
    operation, strategy : str
        What runs while writes fail.
    compressed : bool
        Whether the array has the default codecs, or none.
    location : str
        Of the index.
    durability : str
        Of the operation.
    where : str
        What the writes that fail carry: see `WHERE`.
    skip, times : int
        Such writes that pass before, and that fail then; -1 for all.
    keep : float
        Share of the files whose pages stay in memory.
    follow_up : str
        What is done once the disk is well again.
    again : bool
        Whether one more write fails under the follow-up, which is then done again.
    matched, failed : int
        Writes that carried the pattern, and that failed.
    error : str
        What the operation raised.
    acked : int
        Shards or frames that were acknowledged.
    lost, torn : list of str
        Acknowledged, but some reader does not find them as they were acknowledged; no state that they ever had.
    is_good : bool
        Whether ``verify --deep`` found nothing.
    false : str
        Where ``verify --deep`` said other than the readers.
    trouble : str
        What went wrong otherwise.
    left : list of str
        What was left over in the end.
    """

    number: int
    operation: str
    strategy: str
    compressed: bool
    location: str
    durability: str
    where: str
    skip: int
    times: int
    keep: float
    follow_up: str
    again: bool
    matched: int = 0
    failed: int = 0
    error: str = ""
    acked: int = 0
    lost: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    is_good: bool = True
    false: str = ""
    trouble: str = ""
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def in_place(self) -> bool:
        """Whether shards may be torn until they are recovered."""
        return self.strategy.endswith("in place")

    @property
    def is_bad(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.lost or self.torn or self.false or self.trouble or self.left)


def draw(seed: int, number: int, kinds=tuple(KINDS)) -> Case:
    """A case; operations, strategies and follow-ups take turns, all else is drawn."""
    rng = np.random.default_rng([seed, number])
    operation, strategy = kinds[number % len(kinds)]
    return Case(
        number=number,
        operation=operation,
        strategy=strategy,
        compressed=bool(rng.integers(2)),
        location=str(rng.choice(["start", "end"])),
        durability="batch" if rng.random() < 0.2 else "full",
        where=str(rng.choice(list(WHERE), p=[0.7, 0.15, 0.15])),
        skip=int(rng.integers(4) if rng.random() < 0.5 else rng.integers(20)),
        times=TIMES[int(rng.integers(3))],
        keep=float(rng.choice([0.0, 0.5, 1.0])),
        follow_up=FOLLOW_UPS[number // len(kinds) % len(FOLLOW_UPS)],
        again=bool(rng.random() < 0.25),
    )


class Scenario:
    """An operation: what stands before, what it does, and what may stand afterwards.

    Attributes
    ----------
    candidates : list of numpy.ndarray
        Arrays of which each unit is a part, unless it is acknowledged.
    wanted : numpy.ndarray
        What the operation brings about.
    allowed : list of numpy.ndarray
        What acknowledged units may hold; one array, unless another operation was begun on the same shards.
    acked : set of int
        Units that were acknowledged.
    """

    chunks = CHUNKS

    def __init__(self, case: Case, path: Path, rng: np.random.Generator) -> None:
        self.case, self.path, self.rng = case, path, rng
        self.acked: set[int] = set()
        self.candidates: list[np.ndarray] = []
        self.wanted = np.empty(0)
        self.allowed: list[np.ndarray] = []

    @property
    def layout(self) -> dict:
        """Keywords for the array."""
        codecs = {} if self.case.compressed else {"compressors": None}
        return {"shards": SHARDS, "chunks": CHUNKS, "index_location": self.case.location, **codecs}

    def make(self) -> None:
        """What stands before."""

    def act(self) -> None:
        """The operation; the same call again, too."""
        raise NotImplementedError

    def run(self) -> None:
        """The operation, after which all is acknowledged."""
        self.act()
        self.acked, self.allowed = set(self.boxes()), [self.wanted]

    def report(self, report) -> None:
        """Given to operations as `progress`."""
        self.acked.update(self.rank_of(rank) for rank in report.shards)

    def rank_of(self, rank: int) -> int:
        """The unit that a run counts as `rank`."""
        return rank

    def enter_journalled(self) -> None:
        """Have what journals say count as acknowledged."""
        target = resolve_target(self.path, None)
        for run in [found for found in neighbours(target) if found.facts.get("shards_from")]:
            first, counts = run.facts["shards_from"]
            metadata = parse_metadata(json.dumps(run.document))
            box = [slice(a * s, (a + k) * s) for a, k, s in zip(first, counts, metadata.grid.shards, strict=True)]
            stop = [min(s.stop, n) for s, n in zip(box, metadata.grid.shape, strict=True)]
            part, _ = metadata.part(shardwrite.grid.Box(tuple(s.start for s in box), tuple(stop)))
            self.acked.update(self.rank_of(int(rank)) for rank in np.flatnonzero(replay(run, part).ledger.is_done))

    def boxes(self) -> dict[int, tuple[slice, ...]]:
        """Units that are judged."""
        counts = [n // s for n, s in zip(SHAPE, SHARDS, strict=True)]
        return {
            rank: tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, SHARDS, strict=True))
            for rank, at in enumerate(np.ndindex(*counts))
        }

    def other(self) -> None:
        """Another operation on the same shards, which takes the place of one that did not end."""
        region = (slice(40, 200), slice(100, 300))
        new = values(SHAPE, 9)[region]
        strategy = STRATEGIES[str(self.rng.choice(list(STRATEGIES)))]
        with self.overlaid(region, new):
            da.from_array(new, chunks=(80, 100)).to_sharded_zarr(self.path, region=region, strategy=strategy, restart=True)

    @contextlib.contextmanager
    def overlaid(self, region, new) -> Iterator[None]:
        """While a region is written: every unit with and without it; afterwards, with it."""

        def over(arrays: list[np.ndarray]) -> list[np.ndarray]:
            found = [array.copy() for array in arrays]
            for array in found:
                array[region] = new
            return found

        after, before = over(self.candidates), over(self.allowed or [self.wanted])
        self.candidates, self.allowed = self.candidates + after, (self.allowed or [self.wanted]) + before
        yield
        self.candidates, self.allowed = after, before
        self.wanted = self.rerun_over(over([self.wanted])[0])

    def rerun_over(self, array: np.ndarray) -> np.ndarray:
        """What the same call again makes of an array."""
        return array

    def bad_before(self) -> set[int]:
        """Units that may be unreadable as long as they are not acknowledged."""
        return set()


class Update(Scenario):
    """A region is written, after another was written in the same way."""

    def make(self) -> None:
        old = values(SHAPE, 1)
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout)
        start = int(self.rng.integers(1, 100))
        first = (slice(start, start + 130), slice(16, 500))
        old[first] = values(SHAPE, 2)[first]
        self._write(old[first], first)
        start = int(self.rng.integers(1, 128))
        self.region = (slice(start, start + int(self.rng.integers(2, 128))), slice(int(self.rng.integers(1, 250)), 260))
        self.wanted = old.copy()
        self.wanted[self.region] = self.new()[self.region]
        self.candidates = [old]

    def new(self) -> np.ndarray:
        """What is written."""
        return values(SHAPE, 3)

    def rerun_over(self, array: np.ndarray) -> np.ndarray:
        array[self.region] = self.new()[self.region]
        return array

    def _write(self, data, region, **keywords) -> None:
        strategy = STRATEGIES[self.case.strategy]
        source = da.from_array(data, chunks=(64, 100))
        source.to_sharded_zarr(self.path, region=region, strategy=strategy, memory_limit=_MEMORY, **keywords)

    def act(self) -> None:
        keywords = {"durability": self.case.durability, "progress": self.report}
        self._write(self.new()[self.region], self.region, **keywords)

    def rank_of(self, rank: int) -> int:
        first = [s.start // n for s, n in zip(self.region, SHARDS, strict=True)]
        counts = [-(-s.stop // n) - f for s, n, f in zip(self.region, SHARDS, first, strict=True)]
        at = [i + f for i, f in zip(np.unravel_index(rank, counts), first, strict=True)]
        return int(np.ravel_multi_index(at, [n // s for n, s in zip(SHAPE, SHARDS, strict=True)]))


class Erase(Update):
    """A region is erased."""

    def new(self) -> np.ndarray:
        return np.zeros(SHAPE, "u4")

    def act(self) -> None:
        shardwrite.erase(
            self.path,
            self.region,
            strategy=STRATEGIES[self.case.strategy],
            durability=self.case.durability,
            memory_limit=_MEMORY,
            progress=self.report,
        )


class Compact(Scenario):
    """Shards are written anew, and nothing changes."""

    def make(self) -> None:
        old = values(SHAPE, 1)
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout)
        for version in (2, 3):
            region = (slice(30, 240), slice(16 * version, 480))
            old[region] = values(SHAPE, version)[region]
            da.from_array(old[region]).to_sharded_zarr(self.path, region=region, strategy=AppendOnly())
        self.wanted, self.candidates = old.copy(), []
        self.acked = set(self.boxes())

    def act(self) -> None:
        shardwrite.compact(self.path, above=0.05, durability=self.case.durability, progress=self.report)


class Repair(Scenario):
    """One or two shards are bad, and are written again."""

    def make(self) -> None:
        self.wanted = values(SHAPE, 1)
        self.candidates = []
        da.from_array(self.wanted, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout)
        self.bad = {int(rank) for rank in self.rng.choice(len(self.boxes()), 2, replace=False)}
        for rank in self.bad:
            key = "c/" + "/".join(map(str, np.unravel_index(rank, [n // s for n, s in zip(SHAPE, SHARDS, strict=True)])))
            os.truncate(self.path / key, 70_000)
        self.acked = set(self.boxes()) - self.bad

    def act(self) -> None:
        x = da.from_array(self.wanted, chunks=SHARDS)
        found = shardwrite.repair(self.path, x, durability=self.case.durability, progress=self.report)
        assert found.is_done

    def bad_before(self) -> set[int]:
        return self.bad

    def other(self) -> None:
        """Another update would decode the shards that are bad; this one covers all of the first."""
        region = (slice(0, 128), slice(0, 256))
        new = values(SHAPE, 9)[region]
        with self.overlaid(region, new):
            da.from_array(new, chunks=(64, 128)).to_sharded_zarr(self.path, region=region, restart=True)
        self.acked.add(0)


class Fresh(Scenario):
    """An array is made."""

    mode = "w-"

    def make(self) -> None:
        self.wanted = values(SHAPE, 3)
        self.candidates = [np.zeros(SHAPE, "u4")]
        self.keywords = {
            **self.layout,
            "mode": self.mode,
            "publish": str(self.rng.choice(["first", "last"])),
            "durability": self.case.durability,
            "memory_limit": _MEMORY,
            "source_id": "three",
        }

    def act(self) -> None:
        da.from_array(self.wanted, chunks=(64, 512)).to_sharded_zarr(self.path, progress=self.report, **self.keywords)

    def enter_journalled(self) -> None:
        run = shardwrite.journal.find_run(resolve_target(self.path, None))
        if run is not None:
            ledger = replay(run, parse_metadata(json.dumps(run.document))).ledger
            self.acked.update(int(rank) for rank in np.flatnonzero(ledger.is_done))

    def other(self) -> None:
        wanted = values(SHAPE, 9)
        keywords = {**self.keywords, "mode": "w", "source_id": "nine"}
        self.candidates += [self.wanted, wanted]
        self.acked = set()
        da.from_array(wanted, chunks=(64, 512)).to_sharded_zarr(self.path, restart=True, **keywords)
        self.wanted, self.acked, self.allowed, self.keywords = wanted, set(self.boxes()), [wanted], keywords


class Replacement(Fresh):
    """An array is made in the place of another."""

    mode = "w"

    def make(self) -> None:
        old = values(SHAPE, 1)
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout)
        super().make()
        self.candidates.append(old)


class Parts(Fresh):
    """An array is made in three parts."""

    def act(self) -> None:
        x = da.from_array(self.wanted, chunks=(64, 512))
        source_id = self.keywords["source_id"]
        plan = shardwrite.plan(x, **self.layout, source_id=source_id, memory_limit=_MEMORY)
        shardwrite.prepare(x, self.path, plan, mode=self.keywords["mode"], durability=self.case.durability)
        for part in range(3):
            shardwrite.write_part(x, self.path, part, 3, source_id=source_id, progress=self.report)
        shardwrite.finalize(self.path, n_parts=3)


class Stream(Scenario):
    """Frames come, and are flushed; the first ones before anything fails."""

    chunks = FRAME_CHUNKS

    def make(self) -> None:
        self.wanted = values(FRAMES, 1, FRAME_CHUNKS)
        self.candidates = [np.zeros(FRAMES, "u4")]
        self.n_flushed = 0
        self.most = int(self.rng.integers(1, 4))
        layout = {**self.layout, "shards": FRAME_SHARDS, "chunks": FRAME_CHUNKS}
        shardwrite.create(self.path, (0, *FRAMES[1:]), "u4", **layout)
        self._feed(int(self.rng.integers(0, 12)))

    def _feed(self, stop: int) -> None:
        strategy = STRATEGIES[self.case.strategy]
        with ShardWriter(self.path, strategy=strategy, durability=self.case.durability, n_threads=2) as writer:
            for t in range(writer.shape[0], stop):
                writer.append(self.wanted[t])
                if (t + 1) % self.most == 0:
                    writer.flush()
                    self._flushed(t + 1)
        self._flushed(stop)

    def _flushed(self, n: int) -> None:
        self.n_flushed = max(n, self.n_flushed)
        self.acked = set(range(self.n_flushed))

    def act(self) -> None:
        self._feed(FRAMES[0])

    def enter_journalled(self) -> None:
        """What a stream commits counts from the flush on, which says how long the array is."""

    def boxes(self) -> dict[int, tuple[slice, ...]]:
        return {t: (slice(t, t + 1), slice(None), slice(None)) for t in range(FRAMES[0])}

    def other(self) -> None:
        n = shardwrite.open_sharded(self.path).shape[0]
        if n:
            region = (slice(n // 3, max(n // 3 + 1, n - 1)), slice(10, 40), slice(20, 64))
            new = values(FRAMES, 9, FRAME_CHUNKS)[region]
            strategy = STRATEGIES[str(self.rng.choice(list(STRATEGIES)))]
            with self.overlaid(region, new):
                da.from_array(new).to_sharded_zarr(self.path, region=region, strategy=strategy, restart=True)


SCENARIOS: dict[str, Callable[..., Scenario]] = {
    "stream": Stream,
    "update": Update,
    "erase": Erase,
    "fresh": Fresh,
    "replacement": Replacement,
    "compact": Compact,
    "repair": Repair,
    "parts": Parts,
}


def follow(scenario: Scenario, what: str) -> None:
    """What a user may do after the operation has failed, or has not."""
    path = scenario.path
    if what == "same":
        scenario.run()
    elif what == "abandon":
        with contextlib.suppress(shardwrite.SpecError):  # there is no array yet
            shardwrite.abandon(path)
    elif what == "other":
        scenario.other()
    elif what == "writer":
        with contextlib.suppress(shardwrite.SpecError), ShardWriter(path):
            pass


def run_case(disk: lossy_device.Disk, case: Case, seed: int) -> Case:
    """One array, one fault, one follow-up, one judgement."""
    start = time.perf_counter()
    rng = np.random.default_rng([seed, case.number, 1])
    home = disk.root / f"case-{case.number}"
    home.mkdir()
    scenario = SCENARIOS[case.operation](case, home / "x.zarr", rng)
    with power_cut.scheduler("sync"), mock.patch.object(commit, "RETRY_SECONDS", (0.0, 0.0, 0.0)):
        try:
            scenario.make()
            disk.sync()
            fail_under(disk, case, scenario)
            follow_up(disk, case, scenario, rng)
            disk.remount()
            judge_all(case, scenario)
        except Exception as error:
            case.trouble = case.trouble or f"{type(error).__name__}: {error}"
    disk.heal()
    shutil.rmtree(home, ignore_errors=True)
    case.seconds = time.perf_counter() - start
    return case


def fail_under(disk: lossy_device.Disk, case: Case, scenario: Scenario) -> None:
    """Run the operation while writes fail."""
    disk.arm(WHERE[case.where], skip=case.skip, times=case.times)
    try:
        scenario.run()
    except Exception as error:
        case.error = f"{type(error).__name__}: {error}"[:300]
        if not isinstance(error, shardwrite.ShardwriteError):
            case.trouble = f"an error that is not ours: {case.error}"
    finally:
        case.matched, case.failed = disk.heal()
    scenario.enter_journalled()


def follow_up(disk: lossy_device.Disk, case: Case, scenario: Scenario, rng: np.random.Generator) -> None:
    """What comes after it, while nothing fails, or one more write does."""
    lossy_device.evict(scenario.path.parent, case.keep, rng)
    if case.again:
        disk.arm(WHERE[case.where], skip=int(rng.integers(3)), times=1)
        with contextlib.suppress(shardwrite.ShardwriteError):
            follow(scenario, case.follow_up)
        case.failed += disk.heal()[1]
        scenario.enter_journalled()
    follow(scenario, case.follow_up)


def judge_all(case: Case, scenario: Scenario) -> None:
    """After the mount: as it is, unless shards may wait for their recovery; recovered; and finished by the same call."""
    case.acked = len(scenario.acked)
    if not case.in_place:
        judge(case, scenario)
    with contextlib.suppress(shardwrite.SpecError):
        shardwrite.abandon(scenario.path)
    if case.operation not in ("fresh", "replacement", "parts", "repair"):
        judge(case, scenario)
        check_verify(case, scenario)
    if case.lost or case.torn:
        return
    scenario.run()
    judge(case, scenario)
    check_verify(case, scenario)
    left = [p for p in scenario.path.rglob("*") if p.name.endswith(".swtmp")]
    beside = scenario.path.with_name(scenario.path.name + ".shardwrite")
    case.left = [str(p.relative_to(scenario.path.parent)) for p in (*left, *([beside] if beside.exists() else []), *beside.rglob("*"))]


def judge(case: Case, scenario: Scenario) -> None:
    """Every unit by every reader; one version each."""
    try:
        metadata = oracle.metadata_of(scenario.path)
    except IndexError:
        if scenario.acked and case.operation != "repair":
            case.lost = [f"all {len(scenario.acked)}: no metadata"]
        return
    lost, torn = set(case.lost), set(case.torn)
    for unit, at in scenario.boxes().items():
        if at[0].start >= metadata.grid.shape[0] and unit in scenario.acked:
            lost.add(f"{unit} is beyond the end")
    for reader, area, found in readings(scenario.path, metadata):
        for unit, at in scenario.boxes().items():
            if any(a.start is not None and not b.start <= a.start < b.stop for a, b in zip(at, area, strict=True)):
                continue
            what = what_is_wrong(case, scenario, unit, at, None if found is None else found[relative(at, area)])
            if what:
                (lost if unit in scenario.acked else torn).add(f"{unit} by {reader}: {what}")
    case.lost, case.torn = sorted(lost), sorted(torn)


def relative(at, area) -> tuple[slice, ...]:
    """A unit's box in the coordinates of an area."""
    return tuple(a if a.start is None else slice(a.start - b.start, a.stop - b.start) for a, b in zip(at, area, strict=True))


def what_is_wrong(case: Case, scenario: Scenario, unit: int, at, seen: np.ndarray | None) -> str:
    """Why a unit is not as it may be, or an empty string."""
    if seen is None:
        return "" if unit in scenario.bad_before() - scenario.acked else "unreadable"
    allowed = scenario.allowed or [scenario.wanted]
    versions = allowed if unit in scenario.acked else [*allowed, *scenario.candidates]
    is_split = case.operation == "stream" and unit not in scenario.acked
    return "" if is_one_of(seen, [version[at] for version in versions], is_split) else kind_of_loss(seen, scenario, at)


def is_one_of(seen: np.ndarray, versions: list[np.ndarray], is_split: bool) -> bool:
    """Whether a unit is one version; of a frame that was not flushed, each inner chunk is."""
    if not is_split:
        return any((seen == version).all() for version in versions)
    same = [(seen == version).reshape(-1, 2, 32, 2, 32).all(axis=(2, 4)) for version in versions]
    return bool(np.logical_or.reduce(same).all())


def kind_of_loss(seen: np.ndarray, scenario: Scenario, at) -> str:
    """What is there in its stead."""
    if not seen.any():
        return "the fill value"
    if any((seen == version[at]).all() for version in scenario.candidates):
        return "an old version"
    wrong = seen != scenario.wanted[at]
    return f"{int(wrong.sum())} of {wrong.size} values, {int((seen[wrong] == 0).sum())} of them zero"


def readings(path: Path, metadata) -> Iterator[tuple[str, tuple[slice, ...], np.ndarray | None]]:
    """The array as each reader sees it; shard by shard, where it cannot read all of it."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "x.zarr"
        if path.exists():
            shutil.copytree(path, copy)
        copy.mkdir(exist_ok=True)
        (copy / "zarr.json").write_text(metadata.text)
        whole = tuple(slice(0, n) for n in metadata.grid.shape)
        for name, read in oracle.READERS.items():
            try:
                yield name, whole, read(copy, whole)
            except Exception:
                for box in oracle.shard_boxes(metadata).values():
                    area = box.slices[:-1]  # but for the ellipsis
                    try:
                        yield name, area, read(copy, area)
                    except Exception:
                        yield name, area, None


def check_verify(case: Case, scenario: Scenario) -> None:
    """What ``verify --deep`` says is what the readers have found."""
    report = shardwrite.verify(scenario.path, deep=True)
    case.is_good = report.is_good
    is_right = not (case.lost or case.torn)
    if report.is_good != is_right:
        case.false = f"verify says {'good' if report.is_good else [p.message for p in report.problems][:2]}"


def run(directory, filesystem: str, cases: list[Case], seed: int) -> list[Case]:
    """Cases, one after the other, on one disk."""
    with lossy_device.Disk(directory, filesystem) as disk:
        return [run_case(disk, case, seed) for case in cases]


def summary(cases: list[Case]) -> dict:
    """Totals."""
    evidence = [case for case in cases if case.failed]
    return {
        "cases": len(cases),
        "vacuous": len(cases) - len(evidence),
        "failed": sum(case.failed for case in cases),
        "raised": sum(bool(case.error) for case in evidence),
        "acked": sum(case.acked for case in evidence),
        "lost": sum(len(case.lost) for case in cases),
        "torn": sum(len(case.torn) for case in cases),
        "cases with a loss": dict(Counter(f"{case.operation}, {case.strategy}" for case in cases if case.lost or case.torn)),
        "false": sum(bool(case.false) for case in cases),
        "left": sum(bool(case.left) for case in cases),
        "troubles": dict(Counter(f"{case.operation}, {case.follow_up}: {case.trouble}"[:200] for case in cases if case.trouble)),
        "seconds": round(sum(case.seconds for case in cases), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Have write-back fail under every operation, many times.")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--filesystem", choices=lossy_device.FILESYSTEMS, default="ext4")
    parser.add_argument("--operations", nargs="+", choices=sorted(OPERATIONS), default=sorted(OPERATIONS))
    parser.add_argument("--strategies", nargs="+", choices=sorted(STRATEGIES), default=sorted(STRATEGIES))
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of some of these cases")
    parser.add_argument("--json", type=Path, help="write the cases there, too")
    given = parser.parse_args()
    if why := lossy_device.missing(given.filesystem):
        sys.exit(why)
    kinds = [(operation, strategy) for operation, strategy in KINDS if operation in given.operations and strategy in given.strategies]
    cases = [draw(given.seed, number, kinds) for number in given.only or range(given.cases)]
    with tempfile.TemporaryDirectory() as directory:
        cases = run(directory, given.filesystem, cases, given.seed)
    document = {"filesystem": given.filesystem, "seed": given.seed, **summary(cases)}
    print(json.dumps(document, indent=2))
    for case in cases:
        if case.is_bad:
            print(json.dumps(asdict(case)))
    if given.json:
        given.json.write_text(json.dumps({**document, "of": [asdict(case) for case in cases]}, indent=2))


if __name__ == "__main__":
    main()
