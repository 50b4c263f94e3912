"""Fault family 10: write, crash, resume, start over, replace, damage, repair, in any sequence,
against a model in memory.

A crash here is an error at a random step of the commit path after which nothing is cleaned up, as
if the process had been killed.
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
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

import shardwrite
from shardwrite import JournalError, SpecError

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from helpers import Killed, scratch

SHAPE = (24, 24)
EMPTY = (slice(0, 8), slice(8, 16))


@contextlib.contextmanager
def crashing(step, at):
    """The `at`-th call of a step does not happen, nor does anything that would be done after it."""
    real, calls = getattr(os, step), []

    def fail(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) >= at:
            raise Killed
        return real(*arguments, **keywords)

    with (
        oracle.collecting_later(),
        seams.dying_by(Killed),
        mock.patch.object(os, step, fail),
    ):
        yield


def version(number):
    return oracle.values(SHAPE, number, EMPTY)


class Runs(RuleBasedStateMachine):
    """`finished` is the version that readers see, `begun` the call that did not end."""

    def __init__(self):
        super().__init__()
        self.home = scratch("machine-")
        self.path = self.home / "x"
        self.finished = None
        self.begun = None
        self.n = 0

    def teardown(self):
        shutil.rmtree(self.home)

    @initialize()
    def nothing_is_there(self):
        assert not self.path.exists()

    def call(self, plan, **more):
        number, chunks, strategy, durability, replaces = plan
        x = da.from_array(version(number), chunks=chunks)
        keywords = {
            "shards": 8,
            "chunks": 4,
            "memory_limit": "40kB",
            "source_id": f"version {number}",
            "max_source_reruns": 100,
        }
        with dask.config.set(scheduler="sync"):
            return x.to_sharded_zarr(
                self.path,
                strategy=strategy,
                durability=durability,
                mode="w" if replaces else "w-",
                **keywords,
                **more,
            )

    PLANS = st.tuples(
        st.sampled_from([(6, 24), (24, 5), (24, 24), (7, 7)]),
        st.sampled_from(["C", "F", "morton"]),
        st.sampled_from(["full", "batch", "none"]),
    )

    def new(self, plan):
        self.n += 1
        return (self.n, *plan, self.finished is not None)

    def ended(self, number):
        self.finished, self.begun = number, None
        self.check()

    def check(self):
        """Three readers see the version that was finished, or no array."""
        if self.finished is None:
            assert not (self.path / "zarr.json").exists()
            return
        wanted = version(self.finished)
        for read in oracle.READERS.values():
            found = read(self.path, (slice(None), slice(None)))
            np.testing.assert_array_equal(found, wanted)
        if self.begun is None:
            oracle.check_tidy(self.path)

    @precondition(lambda self: self.begun is None)
    @rule(plan=PLANS)
    def write(self, plan):
        plan = self.new(plan)
        self.call(plan)
        self.ended(plan[0])

    @rule(
        plan=PLANS,
        step=st.sampled_from(["rename", "open", "writev", "write", "fsync", "link", "unlink"]),
        at=st.integers(1, 40),
    )
    def crash(self, plan, step, at):
        plan = self.begun or self.new(plan)
        try:
            with crashing(step, at):
                self.call(plan)
        except Killed:
            self.begun = plan
            begun = bool(seams.plan_files(self.path))
            if not begun and (self.path / "zarr.json").exists() and self.seen() == plan[0]:
                self.finished, self.begun = plan[0], None
            elif not begun:
                self.begun = None
            return
        self.ended(plan[0])

    def seen(self):
        found = shardwrite.open_sharded(self.path)[:, :]
        return next((n for n in range(self.n + 1) if (found == version(n)).all()), None)

    @precondition(lambda self: self.begun is not None)
    @rule()
    def resume(self):
        number = self.begun[0]
        self.call(self.begun)
        self.ended(number)

    @precondition(lambda self: self.begun is not None)
    @rule(plan=PLANS)
    def another_plan(self, plan):
        """Refused while the first is unfinished; unless that had come as far as its end."""
        before = self.begun
        plan = (*self.new(plan)[:-1], before[-1])
        told = None
        try:
            self.call(plan)
        except JournalError as error:
            told = error.differences
        except SpecError:
            assert self.seen() == before[0], "the first had ended but for tidying up"
            self.finished, self.begun = before[0], None
        else:
            self.ended(plan[0])
        assert told is None or told, "what differs is told"

    @precondition(lambda self: self.begun is not None)
    @rule(plan=PLANS)
    def start_over(self, plan):
        plan = (*self.new(plan)[:-1], True)
        self.call(plan, restart=True)
        self.ended(plan[0])

    @precondition(lambda self: self.finished is not None and self.begun is None)
    @rule(which=st.integers(0, 7), how=st.sampled_from(["lost", "torn"]))
    def damage_and_repair(self, which, how):
        files = sorted(p for p in (self.path / "c").rglob("*") if p.is_file())
        file = files[which % len(files)]
        if how == "lost":
            file.unlink()
        else:
            file.write_bytes(file.read_bytes()[:-3])
        assert [p.key for p in shardwrite.verify(self.path).problems] == [
            str(file.relative_to(self.path))
        ]
        x = da.from_array(version(self.finished), chunks=24)
        with dask.config.set(scheduler="sync"):
            assert shardwrite.repair(self.path, x).is_done
        self.check()


def run(n_runs, n_steps):
    with (
        # what a crash left is stale at once
        seams.stale_at_once(),
        seams.log_every(1e9),
    ):
        run_state_machine_as_test(
            Runs,
            settings=settings(
                max_examples=n_runs,
                stateful_step_count=n_steps,
                suppress_health_check=list(HealthCheck),
            ),
        )


@pytest.mark.long
def test_any_sequence():
    run(2, 20)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_sequences():
    run(5, 40)
