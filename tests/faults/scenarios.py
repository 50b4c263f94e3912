"""Operations that are interrupted or fail: what stands before, and what may stand afterwards.

Values are a hash of coordinate and version. They do not compress, so zstd stores them as they are,
and with them the mark that every inner chunk begins with, by which a disk can tell them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import seams
import update_cuts

UNSHARDED = "unsharded"
# strategies for shards, and the only one for arrays without shards
STRATEGIES = {**update_cuts.STRATEGIES, UNSHARDED: FixedOrder("C")}

SHAPE, SHARDS, CHUNKS = (256, 512), (128, 256), (32, 32)
FRAMES, FRAME_SHARDS, FRAME_CHUNKS = (20, 64, 64), (8, 64, 64), (1, 32, 32)
MARK = b"\x91LOSSY!\x92"
_COUNTS = tuple(n // s for n, s in zip(SHAPE, SHARDS, strict=True))
_MEMORY = "1.4MB"


def values(shape, version: int, chunks=CHUNKS) -> np.ndarray:
    """A hash of coordinate and version that is never the fill value, with the marks."""
    x = np.arange(np.prod(shape, dtype=np.int64), dtype=np.uint64).reshape(shape) + np.uint64(
        version << 40
    )
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    found = np.maximum((x >> np.uint64(32)).astype(np.uint32), 1)
    corner = tuple(slice(None, None, c) for c in chunks[:-1])
    for i, word in enumerate(np.frombuffer(MARK, "<u4")):
        found[(*corner, slice(i, None, chunks[-1]))] = word
    return found


class Scenario:
    """An operation: what stands before, what it does, and what may stand afterwards.

    Attributes
    ----------
    candidates : list of numpy.ndarray
        Arrays of which each unit is a part, unless it is acknowledged.
    wanted : numpy.ndarray
        What the operation brings about.
    allowed : list of numpy.ndarray
        What acknowledged units may hold. It is one array, unless another operation was begun on the
        same shards.
    acked : set of int
        Units that were acknowledged.
    told : callable
        Called with them whenever there are more.
    comes_first : bool
        Whether other operations are refused until this one has ended.
    is_once : bool
        Whether it must be finished, and not given up and made anew.
    """

    comes_first = False
    is_once = False

    def __init__(self, case: Any, path: Path, rng: np.random.Generator) -> None:
        self.case, self.path, self.rng = case, path, rng
        self.acked: set[int] = set()
        self.told: Callable[[set[int]], object] = lambda acked: None
        self.candidates: list[np.ndarray] = []
        self.wanted = np.empty(0)
        self.allowed: list[np.ndarray] = []

    def layout(self, shards=SHARDS, chunks=CHUNKS) -> dict:
        """Keywords for the array. Without shards, its chunks are as large as shards would be."""
        codecs = {} if self.case.compressed else {"compressors": None}
        if self.case.strategy == UNSHARDED:
            return {"shards": None, "chunks": shards, **codecs}
        return {"shards": shards, "chunks": chunks, "index_location": self.case.location, **codecs}

    def some_strategy(self) -> Any:
        """One of the strategies by which the array can be updated."""
        if self.case.strategy == UNSHARDED:
            return STRATEGIES[UNSHARDED]
        return STRATEGIES[str(self.rng.choice(list(update_cuts.STRATEGIES)))]

    def make(self) -> None:
        """What stands before."""

    def act(self) -> None:
        """The operation; the same call again, too."""
        raise NotImplementedError

    def run(self) -> None:
        """The operation, after which all is acknowledged."""
        self.act()
        self.acknowledge(self.boxes())
        self.allowed = [self.wanted]

    def acknowledge(self, units: Iterable[int]) -> None:
        """Have units count as acknowledged."""
        self.acked = self.acked.union(units)
        self.told(self.acked)

    def report(self, report) -> None:
        """Given to operations as `progress`."""
        self.acknowledge(self.rank_of(rank) for rank in report.shards)

    def rank_of(self, rank: int) -> int:
        """The unit that a run counts as `rank`."""
        return rank

    def enter_journalled(self) -> None:
        """Have what journals say count as acknowledged."""
        for done in seams.all_logged(self.path):
            self.acknowledge(map(self.rank_of, done))

    def boxes(self) -> dict[int, tuple[slice, ...]]:
        """Units that are judged."""
        return {
            rank: tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, SHARDS, strict=True))
            for rank, at in enumerate(np.ndindex(_COUNTS))
        }

    def other(self) -> None:
        """Run another operation on the same shards, in the place of one that did not end."""
        region = (slice(40, 200), slice(100, 300))
        new = values(SHAPE, 9)[region]
        strategy = self.some_strategy()
        with self.overlaid(region, new):
            da.from_array(new, chunks=(80, 100)).to_sharded_zarr(
                self.path, region=region, strategy=strategy, restart=True
            )

    @contextlib.contextmanager
    def overlaid(self, region, new) -> Iterator[None]:
        """While a region is written: every unit with and without it; afterwards, with it."""

        def over(arrays: list[np.ndarray]) -> list[np.ndarray]:
            found = [array.copy() for array in arrays]
            for array in found:
                array[region] = new
            return found

        after, before = over(self.candidates), over(self.allowed or [self.wanted])
        self.candidates, self.allowed = (
            self.candidates + after,
            (self.allowed or [self.wanted]) + before,
        )
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
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout())
        start = int(self.rng.integers(1, 100))
        first = (slice(start, start + 130), slice(16, 500))
        old[first] = values(SHAPE, 2)[first]
        self._write(old[first], first)
        start = int(self.rng.integers(1, 128))
        self.region = (
            slice(start, start + int(self.rng.integers(2, 128))),
            slice(int(self.rng.integers(1, 250)), 260),
        )
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
        source.to_sharded_zarr(
            self.path, region=region, strategy=strategy, memory_limit=_MEMORY, **keywords
        )

    def act(self) -> None:
        keywords = {"durability": self.case.durability, "progress": self.report}
        self._write(self.new()[self.region], self.region, **keywords)

    def rank_of(self, rank: int) -> int:
        first = [s.start // n for s, n in zip(self.region, SHARDS, strict=True)]
        counts = [-(-s.stop // n) - f for s, n, f in zip(self.region, SHARDS, first, strict=True)]
        at = [i + f for i, f in zip(np.unravel_index(rank, counts), first, strict=True)]
        return int(np.ravel_multi_index(at, _COUNTS))


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


class SelfReading(Update):
    """A region is flipped, which reads what it changes. To do so again would flip it back."""

    is_once = True

    def make(self) -> None:
        super().make()
        (old,) = self.candidates
        self.wanted = old.copy()
        self.wanted[self.region] = old[self.region][::-1, ::-1]

    def act(self) -> None:
        y = shardwrite.from_sharded_zarr(self.path, chunks=(64, 100))[self.region]
        y[::-1, ::-1].to_sharded_zarr(
            self.path,
            region=self.region,
            strategy=STRATEGIES[self.case.strategy],
            durability=self.case.durability,
            memory_limit=_MEMORY,
            progress=self.report,
            source_id="flipped",
        )


class Compact(Scenario):
    """Shards are written anew, and nothing changes."""

    def make(self) -> None:
        old = values(SHAPE, 1)
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout())
        for version in (2, 3):
            region = (slice(30, 240), slice(16 * version, 480))
            old[region] = values(SHAPE, version)[region]
            da.from_array(old[region]).to_sharded_zarr(
                self.path, region=region, strategy=AppendOnly()
            )
        self.wanted, self.candidates = old.copy(), []
        self.acked = set(self.boxes())

    def act(self) -> None:
        shardwrite.compact(
            self.path, above=0.05, durability=self.case.durability, progress=self.report
        )


class Repair(Scenario):
    """Two shards are bad, and are written again."""

    comes_first = True

    def make(self) -> None:
        self.wanted = values(SHAPE, 1)
        self.candidates = []
        da.from_array(self.wanted, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout())
        self.bad = {int(rank) for rank in self.rng.choice(len(self.boxes()), 2, replace=False)}
        for rank in self.bad:
            key = "c/" + "/".join(map(str, np.unravel_index(rank, _COUNTS)))
            os.truncate(self.path / key, 70_000)
        self.acked = set(self.boxes()) - self.bad

    def act(self) -> None:
        x = da.from_array(self.wanted, chunks=SHARDS)
        found = shardwrite.repair(
            self.path, x, durability=self.case.durability, progress=self.report
        )
        assert found.is_done

    def bad_before(self) -> set[int]:
        return self.bad

    def other(self) -> None:
        """Cover all of the first shard, since any other update would decode bad ones."""
        region = (slice(0, 128), slice(0, 256))
        new = values(SHAPE, 9)[region]
        with self.overlaid(region, new):
            da.from_array(new, chunks=(64, 128)).to_sharded_zarr(
                self.path, region=region, restart=True
            )
        self.acknowledge([0])


class Fresh(Scenario):
    """An array is made."""

    comes_first, mode = True, "w-"

    def make(self) -> None:
        self.wanted = values(SHAPE, 3)
        self.candidates = [np.zeros(SHAPE, "u4")]
        self.keywords = {
            **self.layout(),
            "mode": self.mode,
            "publish": str(self.rng.choice(["first", "last"])),
            "durability": self.case.durability,
            "memory_limit": _MEMORY,
            "source_id": "three",
        }

    def act(self) -> None:
        da.from_array(self.wanted, chunks=(64, 512)).to_sharded_zarr(
            self.path, progress=self.report, **self.keywords
        )

    def other(self) -> None:
        wanted = values(SHAPE, 9)
        keywords = {**self.keywords, "mode": "w", "source_id": "nine"}
        self.candidates += [self.wanted, wanted]
        self.acked = set()
        da.from_array(wanted, chunks=(64, 512)).to_sharded_zarr(self.path, restart=True, **keywords)
        self.wanted, self.acked, self.allowed, self.keywords = (
            wanted,
            set(self.boxes()),
            [wanted],
            keywords,
        )


class Several(Fresh):
    """Three arrays are made by one run. The first one is judged, and the others in the end."""

    names = ("x.zarr", "group/second", "group/third")

    def __init__(self, case: Any, path: Path, rng: np.random.Generator) -> None:
        self.root = path.with_name("tree")
        super().__init__(case, self.root / self.names[0], rng)

    def act(self) -> None:
        self._store(self.wanted, self.keywords)

    def _store(self, array: np.ndarray, keywords: dict) -> None:
        x = da.from_array(array, chunks=(64, 512))
        several = [self.root] * len(self.names)
        shardwrite.store([x, x + 1, x + 2], several, names=self.names, **keywords)
        for n, name in enumerate(self.names):
            found = shardwrite.open_sharded(self.root, name)[...]
            np.testing.assert_array_equal(found, array + np.uint32(n))
        left = [p.name for p in self.root.parent.glob("*.shardwrite")]
        assert not left, left

    def other(self) -> None:
        wanted = values(SHAPE, 9)
        keywords = {**self.keywords, "mode": "w", "source_id": "nine"}
        self.candidates += [self.wanted, wanted]
        self.acked = set()
        self._store(wanted, {**keywords, "restart": True})
        self.wanted, self.acked, self.allowed, self.keywords = (
            wanted,
            set(self.boxes()),
            [wanted],
            keywords,
        )


class Replacement(Fresh):
    """An array is made in the place of another."""

    mode = "w"

    def make(self) -> None:
        old = values(SHAPE, 1)
        da.from_array(old, chunks=SHARDS).to_sharded_zarr(self.path, **self.layout())
        super().make()
        self.candidates.append(old)


class Parts(Fresh):
    """An array is made in three parts."""

    def act(self) -> None:
        x = da.from_array(self.wanted, chunks=(64, 512))
        source_id = self.keywords["source_id"]
        plan = shardwrite.plan(x, **self.layout(), source_id=source_id, memory_limit=_MEMORY)
        shardwrite.prepare(
            x, self.path, plan, mode=self.keywords["mode"], durability=self.case.durability
        )
        for part in range(3):
            shardwrite.write_part(x, self.path, part, 3, source_id=source_id, progress=self.report)
        shardwrite.finalize(self.path, n_parts=3)


class Consume(Scenario):
    """An array without shards becomes a sharded one, and is removed meanwhile."""

    comes_first = True

    @property
    def source(self) -> Path:
        """Place of the array that is consumed."""
        return self.path.with_name("source")

    def make(self) -> None:
        self.wanted = values(SHAPE, 3)
        self.candidates = [np.zeros(SHAPE, "u4")]
        codecs = {} if self.case.compressed else {"compressors": None}
        da.from_array(self.wanted, chunks=SHARDS).to_sharded_zarr(
            self.source, shards=None, chunks=CHUNKS, **codecs
        )

    def act(self) -> None:
        shardwrite.reshard(
            self.source,
            self.path,
            tuple(s // c for s, c in zip(SHARDS, CHUNKS, strict=True)),
            index_location=self.case.location,
            durability=self.case.durability,
            memory_limit="300kB",  # so that each task writes one shard
            progress=self.report,
            consume=True,
        )
        left = [p.name for p in self.path.parent.iterdir() if p.name.startswith("source")]
        assert not left, left

    def other(self) -> None:
        """Give the source back, if nothing of it was removed."""
        shardwrite.abandon(self.source)


class Stream(Scenario):
    """Frames come, and are flushed; the first ones before anything fails."""

    def make(self) -> None:
        self.wanted = values(FRAMES, 1, FRAME_CHUNKS)
        self.candidates = [np.zeros(FRAMES, "u4")]
        self.most = int(self.rng.integers(1, 4))
        layout = self.layout(FRAME_SHARDS, FRAME_CHUNKS)
        shardwrite.create(self.path, (0, *FRAMES[1:]), "u4", **layout)
        self._feed(int(self.rng.integers(0, 12)))

    def _feed(self, stop: int) -> None:
        strategy = STRATEGIES[self.case.strategy]
        with ShardWriter(
            self.path, strategy=strategy, durability=self.case.durability, n_threads=2
        ) as writer:
            for t in range(writer.shape[0], stop):
                writer.append(self.wanted[t])
                if (t + 1) % self.most == 0:
                    writer.flush()
                    self.acknowledge(range(t + 1))
        self.acknowledge(range(stop))

    def act(self) -> None:
        self._feed(FRAMES[0])

    def enter_journalled(self) -> None:
        """Enter nothing: the flush says how long the array is."""

    def boxes(self) -> dict[int, tuple[slice, ...]]:
        return {t: (slice(t, t + 1), slice(None), slice(None)) for t in range(FRAMES[0])}

    def other(self) -> None:
        n = shardwrite.open_sharded(self.path).shape[0]
        if n:
            region = (slice(n // 3, max(n // 3 + 1, n - 1)), slice(10, 40), slice(20, 64))
            new = values(FRAMES, 9, FRAME_CHUNKS)[region]
            strategy = self.some_strategy()
            with self.overlaid(region, new):
                da.from_array(new).to_sharded_zarr(
                    self.path, region=region, strategy=strategy, restart=True
                )


class Conversion(Scenario):
    """An array is made of the encoded chunks of another, which has other shards."""

    comes_first = True

    def make(self) -> None:
        self.wanted = values(SHAPE, 3)
        self.candidates = [np.zeros(SHAPE, "u4")]
        self.source, self.keywords = self.path.with_name("source"), {"source_id": "three"}
        self.make_source(self.source, self.wanted)

    def make_source(self, path: Path, data: np.ndarray) -> None:
        """Write the array that is converted: chunks in files, or in shards that are taken apart."""
        sizes = {"shards": SHAPE, "chunks": SHARDS} if self.is_taken_apart else {"shards": None}
        layout = {**self.layout(), "chunks": CHUNKS, **sizes}
        layout.pop("index_location", None)
        da.from_array(data, chunks=SHARDS).to_sharded_zarr(path, durability="none", **layout)

    @property
    def is_taken_apart(self) -> bool:
        """Whether the new array has no shards."""
        return self.case.strategy == UNSHARDED

    @property
    def how(self) -> dict:
        """Keywords of the conversion."""
        if self.is_taken_apart:
            return {"shards": None}
        shards = tuple(s // c for s, c in zip(SHARDS, CHUNKS, strict=True))
        return {"shards": shards, "index_location": self.case.location}

    def act(self) -> None:
        shardwrite.reshard(
            self.source,
            self.path,
            **self.how,
            **self.keywords,
            durability=self.case.durability,
            progress=self.report,
        )

    def other(self) -> None:
        """Convert another array to the same place."""
        wanted, source = values(SHAPE, 9), self.path.with_name("other")
        self.make_source(source, wanted)
        self.candidates += [self.wanted, wanted]
        self.source, self.acked = source, set()
        self.keywords = {"source_id": "nine", "mode": "w"}
        kept, self.keywords = self.keywords, {**self.keywords, "restart": True}
        self.act()
        self.wanted, self.acked, self.allowed, self.keywords = (
            wanted,
            set(self.boxes()),
            [wanted],
            kept,
        )


class InPlace(Conversion):
    """An array gets other shards in its place; at all times, all of it is there."""

    def make(self) -> None:
        self.wanted = values(SHAPE, 3)
        self.candidates = []
        self.make_source(self.path, self.wanted)
        self.acked = set(self.boxes())

    def act(self) -> None:
        shardwrite.reshard(
            self.path, **self.how, durability=self.case.durability, progress=self.report
        )

    def enter_journalled(self) -> None:
        """Enter nothing: everything is acknowledged from the beginning."""

    def other(self) -> None:
        """Update the array; refused until the conversion has ended, so that nothing changes."""
        kept = self.candidates, self.allowed
        try:
            Scenario.other(self)
        except shardwrite.JournalError:
            self.candidates, self.allowed = kept
            raise


SCENARIOS: dict[str, Callable[..., Scenario]] = {
    "stream": Stream,
    "update": Update,
    "erase": Erase,
    "self-reading": SelfReading,
    "fresh": Fresh,
    "several": Several,
    "replacement": Replacement,
    "compact": Compact,
    "repair": Repair,
    "parts": Parts,
    "consume": Consume,
    "conversion": Conversion,
    "in-place": InPlace,
}
