"""Fault family 10 for updates: regions, growth, erasing, compaction, by every strategy, killed at
any step, against a numpy model.

A kill here is the first effect on the file system that does not happen; nothing that would come
after it happens either.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import shardwrite
from shardwrite import AppendOnly, FixedOrder

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from effects import EFFECTS
from helpers import Killed, scratch

STRATEGIES = [
    FixedOrder("C"),
    FixedOrder("morton"),
    AppendOnly(),
    FixedOrder("F", in_place=True, max_unused=0.5),
    FixedOrder("C", in_place=True, max_unused=0.0),
    AppendOnly(in_place=True),
]
MAX_EXTENT = 30


@contextlib.contextmanager
def killed_at(at):
    """The `at`-th effect on the file system does not happen, and none after it."""
    n = 0

    def mortal(real):
        def call(*arguments, **keywords):
            nonlocal n
            n += 1
            if n >= at:
                raise Killed
            return real(*arguments, **keywords)

        return call

    open_file = os.open

    def open_or_die(path, flags, *rest, **keywords):
        return (mortal(open_file) if flags & os.O_CREAT else open_file)(
            path, flags, *rest, **keywords
        )

    with contextlib.ExitStack() as stack:
        stack.enter_context(oracle.collecting_later())
        for name in EFFECTS:
            stack.enter_context(mock.patch.object(os, name, mortal(getattr(os, name))))
        stack.enter_context(mock.patch.object(os, "open", open_or_die))
        yield


FRACTION = st.tuples(st.floats(0, 1, width=16), st.floats(0, 1, width=16))


def box_of(fractions, shape):
    """A box of at least one element."""
    found = []
    for (a, b), n in zip(fractions, shape, strict=True):
        start, stop = sorted((min(int(a * n), n - 1), min(int(b * n), n - 1)))
        found.append(slice(start, stop + 1))
    return tuple(found)


class Updates(RuleBasedStateMachine):
    """`model` is what readers see; `pending` an operation that was killed, with what it would have
    made of the model."""

    def __init__(self):
        super().__init__()
        self.home = scratch("machine-")
        self.path = self.home / "x"
        self.model = None
        self.pending = None
        self.n = 0

    def teardown(self):
        shutil.rmtree(self.home)

    @initialize(
        shape=st.tuples(st.integers(1, 14), st.integers(1, 14)),
        per_shard=st.tuples(st.integers(1, 3), st.integers(1, 3)),
        chunks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
        compressed=st.booleans(),
        location=st.sampled_from(["start", "end"]),
        maker=st.sampled_from(["shardwrite", "zarr-python", "tensorstore"]),
    )
    def create(self, shape, per_shard, chunks, compressed, location, maker):
        self.model = self.values(shape)
        self.shards = tuple(n * c for n, c in zip(per_shard, chunks, strict=True))
        if maker == "shardwrite":
            codecs = {} if compressed else {"compressors": None}
            x = da.from_array(self.model, chunks=5)
            x.to_sharded_zarr(
                self.path,
                shards=self.shards,
                chunks=chunks,
                index_location=location,
                durability="none",
                **codecs,
            )
        elif maker == "zarr-python":
            sharding = {"shape": self.shards, "index_location": location}
            compressors = "auto" if compressed else None
            array = zarr.create_array(
                self.path,
                shape=shape,
                dtype="u4",
                chunks=chunks,
                shards=sharding,
                compressors=compressors,
                fill_value=0,
            )
            array[...] = self.model
        else:
            configuration = {
                "chunk_shape": list(chunks),
                "index_location": location,
                "codecs": [{"name": "bytes"}],
            }
            metadata = {
                "shape": list(shape),
                "data_type": "uint32",
                "chunk_grid": {
                    "name": "regular",
                    "configuration": {"chunk_shape": list(self.shards)},
                },
                "codecs": [{"name": "sharding_indexed", "configuration": configuration}],
            }
            spec = {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": str(self.path)},
                "metadata": metadata,
                "create": True,
            }
            ts.open(spec).result().write(self.model).result()
        self.check()

    def values(self, shape):
        """A new version, half of it the fill value in one stretch."""
        self.n += 1
        found = oracle.values(shape, self.n)
        if self.n % 3 == 0:
            found[: shape[0] // 2] = 0
        return found

    def read(self):
        """The array by three readers, who agree."""
        ours, *others = (
            read(self.path, (slice(None), slice(None))) for read in oracle.READERS.values()
        )
        for found in others:
            np.testing.assert_array_equal(found, ours)
        return ours

    def check(self):
        np.testing.assert_array_equal(self.read(), self.model)
        oracle.check_tidy(self.path)

    def perform(self, operation, **more):
        kind, where, strategy, values, chunks = operation
        with dask.config.set(scheduler="sync"):
            if kind == "compact":
                shardwrite.compact(
                    self.path, above=where, order=strategy, durability="none", **more
                )
                return
            keywords = {"strategy": STRATEGIES[strategy], "durability": "none", **more}
            if kind == "erase":
                shardwrite.erase(self.path, where, **keywords)
                return
            x = da.from_array(values, chunks=chunks)
            place = {"region": "append", "axis": where} if kind == "append" else {"region": where}
            x.to_sharded_zarr(self.path, memory_limit="200kB", **place, **keywords)

    def outcome(self, operation):
        kind, where, _, values, _ = operation
        if kind == "append":
            return np.concatenate([self.model, values], axis=where)
        after = self.model.copy()
        if kind != "compact":
            after[where] = 0 if kind == "erase" else values
        return after

    def done(self, operation):
        self.model, self.pending = self.outcome(operation), None
        assert shardwrite.verify(self.path, deep=True).is_good
        self.check()

    @precondition(lambda self: self.pending is None)
    @rule(
        data=st.data(),
        kind=st.sampled_from(["write", "write", "append", "erase", "compact"]),
        kill=st.one_of(st.none(), st.integers(1, 60)),
        strategy=st.integers(0, len(STRATEGIES) - 1),
    )
    def operate(self, data, kind, kill, strategy):
        chunks = data.draw(st.integers(1, 6))
        if kind == "compact":
            operation = (
                kind,
                data.draw(st.sampled_from([0.0, 0.3])),
                data.draw(st.sampled_from(["C", "F", "morton"])),
                None,
                None,
            )
        elif kind == "append":
            axis, n = data.draw(st.integers(0, 1)), data.draw(st.integers(1, 5))
            if self.model.shape[axis] + n > MAX_EXTENT:
                return
            operation = (
                kind,
                axis,
                strategy,
                self.values(tuple(n if i == axis else m for i, m in enumerate(self.model.shape))),
                chunks,
            )
        else:
            where = box_of(data.draw(st.tuples(FRACTION, FRACTION)), self.model.shape)
            operation = (
                kind,
                where,
                strategy,
                self.values(self.model[where].shape) if kind == "write" else None,
                chunks,
            )
        try:
            with killed_at(kill) if kill else contextlib.nullcontext():
                self.perform(operation)
        except Killed:
            self.pending = operation
            self.after_a_kill()
        else:
            self.done(operation)

    def after_a_kill(self):
        """Where shards are replaced whole, every reader sees each of them old or new, and the array
        whole."""
        kind, _, strategy, _, _ = self.pending
        if kind == "compact" or not STRATEGIES[strategy].in_place:
            self.old_or_new(self.read())

    def old_or_new(self, seen):
        new = self.outcome(self.pending)
        assert seen.shape in (self.model.shape, new.shape)
        if seen.shape != self.model.shape:  # the shape comes last
            np.testing.assert_array_equal(seen, new)
            return
        new = new[tuple(slice(n) for n in seen.shape)]
        for at in np.ndindex(*(-(-n // s) for n, s in zip(seen.shape, self.shards, strict=True))):
            shard = tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, self.shards, strict=True))
            assert any((seen[shard] == version[shard]).all() for version in (self.model, new)), (
                f"shard {at} is neither old nor new"
            )

    @precondition(lambda self: self.pending is not None)
    @rule()
    def resume(self):
        """The same call again finishes it; an append that came as far as its new shape is not done
        twice."""
        operation = self.pending
        grown = shardwrite.open_sharded(self.path).shape != self.model.shape
        is_begun = bool(seams.plan_files(self.path))
        if grown and not is_begun:  # it had ended, but for directories that are empty
            assert shardwrite.abandon(self.path) == []
            self.done(operation)
            return
        self.perform(operation)
        self.done(operation)

    @precondition(lambda self: self.pending is not None)
    @rule()
    def give_up(self):
        """What was begun is left old or new, shard by shard, also where it was amid a change."""
        shardwrite.abandon(self.path)
        seen = self.read()
        self.old_or_new(seen)
        self.model, self.pending = seen.copy(), None
        assert shardwrite.verify(self.path, deep=True).is_good
        self.check()


def run(machine, n_runs, n_steps):
    with (
        # what a kill left is stale at once
        seams.stale_at_once(),
        seams.log_every(1e9),
    ):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=n_runs,
                stateful_step_count=n_steps,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],  # shrinking takes minutes, and the sequence is told anyway
            ),
        )


@pytest.mark.long
def test_any_sequence_of_updates():
    run(Updates, 2, 15)


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(2))
def test_many_sequences_of_updates(part):
    run(seed(part)(type("MoreUpdates", (Updates,), {})), 3, 40)


REGION = (slice(1, 7), slice(2, 9))
CASES = [
    (strategy, location, compressed)
    for strategy in STRATEGIES
    for location in ("end", "start")
    for compressed in (True, False)
]
N_BETWEEN_READERS = 3
"""After one kill of so many, also the readers of others look. Ours does after each."""
QUICK = [(STRATEGIES[5], "end", True)]


@pytest.mark.parametrize(
    ("strategy", "location", "compressed", "first", "every"),
    [
        *(
            pytest.param(*case, 1, 7, id=f"{case[0]}-{case[1]}-{case[2]}, every seventh")
            for case in QUICK
        ),
        *(
            pytest.param(
                *case,
                1 + number % 6,
                6,
                marks=pytest.mark.long,
                id=f"{case[0]}-{case[1]}-{case[2]}",
            )
            for number, case in enumerate(CASES)
        ),
    ],
)
@seams.stale_at_once()
def test_killed_at_a_step(strategy, location, compressed, first, every):
    """Given up, each shard is old or new; called again, all is new: for a kill before an effect on
    the file system. Each sixth is met; cases that differ in little meet others."""
    old, new = oracle.values((10, 12), 1), oracle.values((10, 12), 2)
    after = old.copy()
    after[REGION] = new[REGION]
    layout = {} if compressed else {"compressors": None}
    top = scratch("kills-")
    made = top / "made"
    da.from_array(old, chunks=12).to_sharded_zarr(
        made, shards=8, chunks=2, index_location=location, durability="none", **layout
    )
    source = da.from_array(new[REGION], chunks=4)
    n_new = {}  # shards that a kill has left new, by its step

    def is_killed(at):
        """Whether the update has so many effects; if so, it is killed there, and made again."""
        home = top / str(at)
        shutil.copytree(made, home / "x")
        try:
            with killed_at(at), dask.config.set(scheduler="sync"):
                source.to_sharded_zarr(
                    home / "x", region=REGION, strategy=strategy, durability="none"
                )
        except Killed:
            pass
        else:
            return False
        shutil.copytree(home, home / "given-up")
        shardwrite.abandon(home / "given-up" / "x")
        seen = {"ours": shardwrite.open_sharded(home / "given-up" / "x")[:, :]}
        if at // every % N_BETWEEN_READERS == 0:
            metadata = oracle.metadata_of(home / "given-up" / "x")
            seen |= oracle.read_everywhere(home / "given-up" / "x", metadata)
        for found in seen.values():
            shards = [(slice(a, a + 8), slice(b, b + 8)) for a in (0, 8) for b in (0, 8)]
            assert all(
                (found[s] == old[s]).all() or (found[s] == after[s]).all() for s in shards
            ), f"torn by a kill at {at}"
        n_new[at] = sum(bool((found[s] == after[s]).all()) for s in shards)
        assert shardwrite.verify(home / "given-up" / "x", deep=True).is_good
        oracle.check_tidy(home / "given-up" / "x")
        with dask.config.set(scheduler="sync"):
            source.to_sharded_zarr(home / "x", region=REGION, strategy=strategy, durability="none")
        np.testing.assert_array_equal(shardwrite.open_sharded(home / "x")[:, :], after)
        shutil.rmtree(home)
        return True

    next(at for at in range(first, 1000, every) if not is_killed(at))
    if len(set(n_new.values())) < 3:  # the steps between two shards lie between two of these kills
        none = max(at for at, n in n_new.items() if n == min(n_new.values()))
        next(
            at for at in range(none + 1, none + every) if is_killed(at) and n_new[at] > n_new[none]
        )
    shutil.rmtree(top)
    assert len(set(n_new.values())) == 3, "no kill came between two shards"
