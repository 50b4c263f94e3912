"""What was acknowledged outlives a power cut, at the levels that say so; where a sync is missing,
the test sees it."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from shardwrite import errors

sys.path.insert(0, str(Path(__file__).parent))
import power_cut
import seams
import stream_cuts
import update_cuts

why_not = functools.cache(power_cut.missing)


@pytest.fixture
def cuts(tmp_path):
    """`power_cut.run`, in a directory of the test's own."""

    def run(filesystem, durability, n_states, **keywords):
        if why := why_not(filesystem):
            pytest.skip(why)
        states = power_cut.run(tmp_path, filesystem, durability, n_states, **keywords)
        n_vacuous = sum(state.vacuous for state in states)
        assert n_vacuous <= n_states // 2, power_cut.summary(states)
        return states

    return run


def is_lost(state):
    """Whether an acknowledged shard is gone: one is enough, where they are to be lost."""
    return state.lost


def is_ours(error):
    """Whether the type that begins a message is one of shardwrite's."""
    return issubclass(getattr(errors, error.split(":")[0], object), errors.ShardwriteError)


def check(states):
    """Nothing that was promised is gone, and the same command makes the rest."""
    for state in states:
        assert not state.lost, state
        assert not state.torn, state
        assert not state.leaked, state
        assert not state.error or is_ours(state.error), state
        assert not state.orphaned or (state.keywords["publish"] == "last" and not state.finished), (
            state
        )
    for state in states:
        assert state.resumed or state.finished, state


def test_no_acknowledged_shard_is_lost(cuts):
    check(cuts("ext4", "full", 6))


@pytest.mark.long
def test_a_cut_takes_what_the_drive_did_not_flush(cuts):
    """A control: without barriers ext4 flushes nothing, so even what was synced is only in the
    drive's cache."""
    states = cuts("ext4", "full", 4, options="barrier=0", resume=False, is_last=is_lost)
    assert any(state.lost for state in states), power_cut.summary(states)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("durability", "n_states"), [("full", 8), ("batch", 6)])
@pytest.mark.parametrize("filesystem", power_cut.FILESYSTEMS)
def test_no_acknowledged_shard_is_lost_in_many_cuts(cuts, filesystem, durability, n_states):
    states = cuts(filesystem, durability, n_states, seed=1)
    check(states)
    assert sum(not state.vacuous for state in states) >= n_states * 2 // 3, power_cut.summary(
        states
    )


def check_updates(directory, filesystem, strategy, n_states):
    if why := why_not(filesystem):
        pytest.skip(why)
    states = update_cuts.run(directory, filesystem, strategy, n_states)
    for state in states:
        assert not state.lost, state
        assert not state.torn, state
        assert not state.trouble, state
        assert not state.error or is_ours(state.error), state
    assert sum(not state.vacuous for state in states) >= n_states // 4, update_cuts.summary(states)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("strategy", sorted(update_cuts.STRATEGIES))
@pytest.mark.parametrize("filesystem", power_cut.FILESYSTEMS)
def test_updates_leave_old_or_new_in_many_cuts(tmp_path, filesystem, strategy):
    check_updates(tmp_path, filesystem, strategy, 5)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("filesystem", power_cut.FILESYSTEMS)
def test_level_none_loses_acknowledged_shards(cuts, filesystem):
    states = cuts(filesystem, "none", 12, is_last=is_lost)
    assert any(state.lost for state in states), power_cut.summary(states)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("step", ["file", "directory"])
@pytest.mark.parametrize("filesystem", power_cut.FILESYSTEMS)
def test_a_missing_sync_is_seen(cuts, monkeypatch, filesystem, step):
    if step == "file":
        seams.skip(monkeypatch, "sync a file")
    else:
        seams.skip(monkeypatch, "sync the directories")
    states = cuts(filesystem, "full", 15, resume=False, is_last=is_lost)
    assert any(state.lost for state in states), power_cut.summary(states)


def check_streams(directory, filesystem, strategy, n_states):
    if why := power_cut.missing(filesystem):
        pytest.skip(why)
    found = stream_cuts.summary(stream_cuts.run(directory, filesystem, strategy, n_states))
    assert found["flushed"] > n_states, found
    assert not found["troubles"], found["troubles"][:5]
    assert (found["lost"], found["torn"]) == (0, 0), found


@pytest.mark.long
@pytest.mark.parametrize("filesystem", power_cut.FILESYSTEMS)
@pytest.mark.parametrize("strategy", sorted(update_cuts.STRATEGIES))
def test_what_a_stream_has_flushed_is_there_after_many_cuts(tmp_path, filesystem, strategy):
    check_streams(tmp_path, filesystem, strategy, 5)


@pytest.mark.long
def test_a_stream_that_does_not_sync_loses_slices(tmp_path):
    if why := power_cut.missing("ext4"):
        pytest.skip(why)
    found = stream_cuts.summary(
        stream_cuts.run(tmp_path, "ext4", "append in place", 12, durability="none", is_last=is_lost)
    )
    assert found["lost"] > 0, found
