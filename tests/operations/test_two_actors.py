"""zarr-python changes an array between every two of our operations, at random.

What is read is always what the last of the two has written, or a call is refused by an error of this
package. What such an error names as a remedy works, and so does the same call after it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import shardwrite
from shardwrite import AppendOnly, ChangedError, FixedOrder, JournalError, ShardWriter, SpecError
from shardwrite.cli import main

MARK = "attributes were changed"
STRATEGIES = [FixedOrder(), FixedOrder(in_place=True), AppendOnly(), AppendOnly(in_place=True)]
LAYOUT: dict[str, Any] = {"shards": 4, "chunks": 2}
SIZES = st.integers(1, 11)
SEEDS = st.integers(0, 2**32 - 1)


def values_of(shape, seed):
    """Values of which some inner chunks are empty and some are constant, so that sizes differ."""
    random = np.random.default_rng(seed)
    values = random.integers(1, 2**31, shape, dtype="i4")
    values[tuple(slice(0, 2 * random.integers(0, 4)) for _ in shape)] = random.integers(0, 2)
    return values


def names(error, *words):
    """Check that a message has some words, or raise the error."""
    if not all(word in str(error) for word in words):
        raise error


class TwoActors(RuleBasedStateMachine):
    """One array, the values that it should have, and the calls that were made last."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))
        self.path = self.directory / "x"
        self.wanted: np.ndarray | None = None
        self.first: tuple[np.ndarray, str] | None = None  # the write that has made the array
        self.last: tuple[np.ndarray, tuple[slice, ...], str] | None = None  # update
        self.added: tuple[np.ndarray, int, str] | None = None  # append, and where it went
        self.files: dict[str, bytes] = {}
        self.is_blind = False  # another object has the size that the receipt says
        self.n_calls = 0
        self.config = dask.config.set(scheduler="sync")

    def teardown(self) -> None:
        shutil.rmtree(self.directory)
        self.config.__exit__(None, None, None)

    # what both see

    @property
    def exists(self) -> bool:
        return self.wanted is not None

    def stored(self) -> dict[str, bytes]:
        shards = (self.path / "c").rglob("*")
        return {str(f.relative_to(self.path)): f.read_bytes() for f in shards if f.is_file()}

    @invariant()
    def it_is_read_right_by_both(self) -> None:
        if self.wanted is None:
            return
        np.testing.assert_array_equal(zarr.open_array(self.path, mode="r")[...], self.wanted)
        np.testing.assert_array_equal(shardwrite.open_sharded(self.path)[...], self.wanted)

    # our actor

    def ours(self, call: Callable[[], Any], takes_back: bool = False) -> None:
        """Make a call; where it is refused, do what the error says, and make it again."""
        try:
            call()
        except ChangedError as error:
            names(error, "repair", "verify --accept")
            if takes_back:
                shardwrite.repair(self.path, da.from_array(self.wanted))
            else:
                self.accept()
            call()
        except SpecError as error:
            names(error, "store=", "verify --accept")
            self.accept()
            call()
        except JournalError as error:
            names(error, "abandon")
            shardwrite.abandon(self.path)
            call()
        self.files = self.stored()

    def accept(self) -> None:
        assert shardwrite.verify(self.path, deep=True, accept=True).is_good
        report = shardwrite.verify(self.path, deep=True)
        assert report.is_good, report
        assert not report.changed
        self.is_blind = False

    def usable(self, strategy: Any) -> Any:
        """The strategy, or the only one that can change an array without shards."""
        return strategy if zarr.open_array(self.path).shards else FixedOrder()

    def name(self) -> str:
        self.n_calls += 1
        return f"call {self.n_calls}"

    @rule(shape=st.tuples(SIZES, SIZES), seed=SEEDS)
    def write(self, shape, seed) -> None:
        """Write the array, in mode "w" if there is one."""
        values, name = values_of(shape, seed), self.name()
        mode = "w" if self.exists else "w-"
        x = da.from_array(values, chunks=3)
        if self.exists:
            with pytest.raises(SpecError, match="an array exists there"):
                x.to_sharded_zarr(self.path, source_id=name, **LAYOUT)
        self.ours(lambda: x.to_sharded_zarr(self.path, source_id=name, mode=mode, **LAYOUT))
        self.wanted, self.first = values.copy(), (values, name)
        self.last, self.added, self.is_blind = None, None, False

    @precondition(lambda self: self.exists and self.first and not self.is_blind)
    @rule(takes_back=st.booleans())
    def write_the_same_again(self, takes_back) -> None:
        """What is gone is written again, if nothing else has changed; else it stops."""
        assert self.first is not None
        assert self.wanted is not None
        values, name = self.first
        before = self.stored()
        x = da.from_array(values, chunks=3)
        self.ours(lambda: x.to_sharded_zarr(self.path, source_id=name, **LAYOUT), takes_back)
        for index in np.ndindex(*(-(-n // 4) for n in self.wanted.shape)):
            key = "c/" + "/".join(map(str, index))
            if key in self.files and key not in before:
                box = tuple(slice(4 * i, 4 * i + 4) for i in index)
                self.wanted[box] = values[box]

    @precondition(lambda self: self.exists and self.wanted.size)
    @rule(data=st.data(), seed=SEEDS, strategy=st.sampled_from(STRATEGIES), is_named=st.booleans())
    def update(self, data, seed, strategy, is_named) -> None:
        assert self.wanted is not None
        where, strategy = self.somewhere(data), self.usable(strategy)
        values = values_of(self.wanted[where].shape, seed)
        name = self.name() if is_named else None
        x = da.from_array(values, chunks=3)
        self.ours(
            lambda: shardwrite.write_region(x, self.path, where, strategy=strategy, source_id=name)
        )
        self.wanted[where] = values
        if name is not None:
            self.last = values, where, name

    @precondition(lambda self: self.exists and self.last and not self.is_blind)
    @rule(takes_back=st.booleans())
    def update_the_same_again(self, takes_back) -> None:
        """Its values are there afterwards, whatever was written in between."""
        assert self.last is not None
        assert self.wanted is not None
        values, where, name = self.last
        x = da.from_array(values, chunks=3)

        def call() -> None:
            shardwrite.write_region(x, self.path, where, source_id=name)

        if any(s.stop > n for s, n in zip(where, self.wanted.shape, strict=True)):
            with pytest.raises(SpecError):
                call()
            return
        self.ours(call, takes_back)
        self.wanted[where] = values

    @precondition(lambda self: self.exists and self.wanted.size and self.wanted.shape[0] < 20)
    @rule(n=st.integers(1, 5), seed=SEEDS, is_named=st.booleans())
    def append(self, n, seed, is_named) -> None:
        assert self.wanted is not None
        values = values_of((n, self.wanted.shape[1]), seed)
        name = self.name() if is_named else None
        x = da.from_array(values, chunks=3)
        self.ours(lambda: shardwrite.write_region(x, self.path, "append", source_id=name))
        if self.added and self.added[1] + len(self.added[0]) > len(self.wanted):
            self.added = None  # it was cut off, and others stand there now
        if name is not None:
            self.added = values, len(self.wanted), name
        self.wanted = np.concatenate([self.wanted, values])

    @precondition(lambda self: self.exists and self.added and not self.is_blind)
    @rule(takes_back=st.booleans())
    def append_the_same_again(self, takes_back) -> None:
        """It stays where it is, or goes to the end if it was cut off."""
        assert self.added is not None
        assert self.wanted is not None
        values, start, name = self.added
        x = da.from_array(values, chunks=3)

        def call() -> None:
            shardwrite.write_region(x, self.path, "append", source_id=name)

        if values.shape[1] != self.wanted.shape[1]:
            with pytest.raises(SpecError):
                call()
            return
        if start + len(values) > len(self.wanted):
            start = len(self.wanted)
        self.ours(call, takes_back)
        self.wanted = np.concatenate(
            [self.wanted[:start], values, self.wanted[start + len(values) :]]
        )
        self.added = values, start, name

    @precondition(lambda self: self.exists and self.wanted.size)
    @rule(data=st.data(), strategy=st.sampled_from(STRATEGIES))
    def erase(self, data, strategy) -> None:
        assert self.wanted is not None
        where, strategy = self.somewhere(data), self.usable(strategy)
        self.ours(lambda: shardwrite.erase(self.path, where, strategy=strategy))
        self.wanted[where] = 0

    @precondition(lambda self: self.exists)
    @rule()
    def compact(self) -> None:
        self.ours(lambda: shardwrite.compact(self.path, above=0))

    @precondition(lambda self: self.exists and self.wanted.size and self.wanted.shape[0] < 20)
    @rule(n=st.integers(1, 5), seed=SEEDS)
    def stream(self, n, seed) -> None:
        assert self.wanted is not None
        values = values_of((n, self.wanted.shape[1]), seed)

        def call() -> None:
            with ShardWriter(self.path) as writer:
                for row in values:
                    writer.append(row)

        self.ours(call)
        self.wanted = np.concatenate([self.wanted, values])

    @precondition(lambda self: self.exists)
    @rule()
    def look(self) -> None:
        """Commands that look never fail, and call nothing bad that zarr-python has written."""
        report = shardwrite.verify(self.path, deep=True)
        missing = [problem for problem in report.problems if "no object" not in problem.message]
        assert not missing, report
        assert not report.warnings
        shardwrite.census(self.path)
        shardwrite.repair(self.path)
        for command in ("info", "census", "verify"):
            ended = CliRunner().invoke(main, [command, str(self.path)])
            assert ended.exit_code == (command == "verify" and not report.is_good), ended.output

    @precondition(lambda self: self.exists)
    @rule()
    def verify_and_accept(self) -> None:
        self.accept()
        self.files = self.stored()

    @precondition(lambda self: self.exists)
    @rule()
    def repair(self) -> None:
        assert self.wanted is not None
        done = shardwrite.repair(self.path, da.from_array(self.wanted, chunks=3))
        assert done.is_done
        report = shardwrite.verify(self.path, deep=True, against=da.from_array(self.wanted))
        assert report.is_good, report
        assert not report.changed
        self.files = self.stored()

    # zarr-python

    def theirs(self, change: Callable[[Any], Any]) -> None:
        """Let zarr-python change the array. What it reads then is what the array should be."""
        change(zarr.open_array(self.path, mode="r+"))
        self.wanted = zarr.open_array(self.path, mode="r")[...]
        now = self.stored()
        self.is_blind |= any(
            len(now.get(key, b"")) == len(data) and now[key] != data
            for key, data in self.files.items()
        )

    @precondition(lambda self: self.exists)
    @rule(shape=st.tuples(SIZES, SIZES))
    def resize(self, shape) -> None:
        before = self.wanted
        self.theirs(lambda array: array.resize(shape))
        both = tuple(slice(min(pair)) for pair in zip(shape, before.shape, strict=True))
        np.testing.assert_array_equal(self.wanted[both], before[both])

    @precondition(lambda self: self.exists and self.wanted.size)
    @rule(data=st.data(), seed=SEEDS, is_fill=st.booleans())
    def fill_or_empty(self, data, seed, is_fill) -> None:
        assert self.wanted is not None
        where = self.somewhere(data)
        values = 0 if is_fill else values_of(self.wanted[where].shape, seed)
        self.theirs(lambda array: array.__setitem__(where, values))

    @precondition(lambda self: self.exists)
    @rule(seed=SEEDS)
    def set_attributes(self, seed) -> None:
        self.theirs(lambda array: array.attrs.update({MARK: seed}))

    @precondition(lambda self: self.exists and self.stored())
    @rule(data=st.data())
    def lose_a_shard(self, data) -> None:
        key = data.draw(st.sampled_from(sorted(self.stored())))
        self.theirs(lambda _: (self.path / key).unlink())

    @precondition(lambda self: self.exists)
    @rule()
    def delete(self) -> None:
        shutil.rmtree(self.path)
        self.wanted, self.first, self.last, self.added = None, None, None, None

    @rule(shape=st.tuples(SIZES, SIZES), seed=SEEDS, is_sharded=st.booleans())
    def make_anew(self, shape, seed, is_sharded) -> None:
        shards = {"shards": (4, 4)} if is_sharded else {}
        made = zarr.create_array(
            self.path, shape=shape, chunks=(2, 2), dtype="i4", overwrite=True, **shards
        )
        self.wanted = values_of(shape, seed)
        made[...] = self.wanted
        self.first, self.last, self.added = None, None, None
        self.is_blind = False

    def somewhere(self, data) -> tuple[slice, ...]:
        """A box inside the array."""
        assert self.wanted is not None
        edges = [
            sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
            for n in self.wanted.shape
        ]
        return tuple(slice(a, b) for a, b in edges)


def explore(n_arrays, n_steps, **more) -> None:
    limits = settings(
        **more,
        max_examples=n_arrays,
        stateful_step_count=n_steps,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes many minutes
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(TwoActors, settings=limits)


@pytest.mark.long
def test_two_arrays_are_changed_by_two_actors():
    """A sample of the test below, always the same: two arrays, 15 steps each."""
    explore(2, 15, derandomize=True)


@pytest.mark.long
def test_four_arrays_are_changed_by_two_actors():
    explore(4, 50)
