"""Fault family 1: any system call of a run fails, once or from then on; see `failing_calls` and
`failing_updates`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import failing_updates
import preloaded

LOOKS = ["stat", "opendir", "read"]
pytestmark = pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    return preloaded.build(tmp_path_factory.mktemp("shim"))


def run(shim, tmp_path, script, *arguments):
    summary = preloaded.outcome(tmp_path, script, *arguments, shim=shim)["summary"]
    troubles = list(summary["troubles"])  # a difference of two dicts would be sought for minutes
    assert not troubles, "\n".join(troubles[:5])
    return summary


@pytest.mark.long
def test_a_sample_of_failing_calls(shim, tmp_path):
    few = ["--share", "0.05", "--every", "36"]
    summary = run(shim, tmp_path, "failing_calls.py", *few, "--seed", "3")
    assert summary["lost"] == 0
    assert summary["fired"] > 6
    assert summary["raised"] > 3
    assert summary["survived"] > 0, "what passes is tried again"


@pytest.mark.long
def test_a_failed_sync_is_not_called_again(shim, tmp_path):
    few = ["--calls", "fsync", "--errors", "EIO", "--durabilities", "full", "--share", "0.7"]
    summary = run(shim, tmp_path, "failing_calls.py", *few, "--seed", "1")
    assert summary["fired"] > 10
    assert summary["survived"] > 5


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "calls",
    [
        ["write", "fsync"],
        *(
            pytest.param(calls, marks=pytest.mark.campaign)
            for calls in (
                ["open", "fsync-directory"],
                ["close", "rename", "link", "mkdir"],
                ["unlink", "rmdir"],
                LOOKS,
            )
        ),
    ],
    ids=" ".join,
)
def test_every_failing_call(shim, tmp_path, calls):
    """Of half of the kinds, every 14th call fails with EIO, and every 28th one with another error,
    in turn. Of runs that sync less it is a third, and of calls that only look every 37th; the
    campaign has all."""
    step = ["--every", "37"] if calls == LOOKS else ["--turns", "2", "--every", "14"]
    step += ["--share", "0.5", "--seed", "5"]
    summary = run(shim, tmp_path, "failing_calls.py", "--calls", *calls, *step)
    assert summary["lost"] == 0
    assert summary["fired"] > 12


@pytest.mark.long
def test_a_sample_of_failing_calls_under_updates(shim, tmp_path):
    few = ["--share", "0.04", "--every", "40"]
    summary = run(shim, tmp_path, "failing_updates.py", *few, "--seed", "1")
    assert summary["fired"] > 10
    assert summary["raised"] > 6
    assert summary["survived"] > 0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "operation",
    [
        pytest.param(name, marks=[] if name in failing_updates.STREAMS else pytest.mark.campaign)
        for name in (*failing_updates.UPDATES, *failing_updates.STREAMS)
        if name not in failing_updates.WITHOUT_SHARDS
    ],
)
def test_every_failing_call_under_updates(shim, tmp_path, operation):
    """Arrays without shards are replaced as shards are; the sample and the campaign have them."""
    summary = run(
        shim,
        tmp_path,
        "failing_updates.py",
        *("--operations", operation, "--errors", "EIO", "--every", "21"),
        *("--share", "0.6", "--seed", "5"),
    )
    assert summary["fired"] > 14
    assert summary["raised"] > 4


@pytest.mark.long
def test_a_sample_of_failing_calls_under_conversions(shim, tmp_path):
    few = ["--share", "0.08", "--every", "40", "--errors", "EIO", "ENOSPC"]
    names = ["--operations", *failing_updates.CONVERSIONS]
    summary = run(shim, tmp_path, "failing_updates.py", *names, *few, "--seed", "2")
    assert summary["fired"] > 15
    assert summary["raised"] > 9


@pytest.mark.long
def test_a_sample_of_failing_calls_while_an_array_is_consumed(shim, tmp_path):
    few = ["--share", "0.25", "--every", "90", "--errors", "EIO", "ENOSPC"]
    names = ["--operations", *failing_updates.CONSUMING]
    summary = run(shim, tmp_path, "failing_updates.py", *names, *few, "--seed", "2")
    assert summary["fired"] > 5
    assert summary["raised"] > 3


@pytest.mark.long
@pytest.mark.campaign
def test_a_sample_of_failing_calls_under_other_operations(shim, tmp_path):
    few = ["--share", "0.03", "--every", "60", "--errors", "EIO"]
    names = ["--operations", *failing_updates.OTHERS]
    summary = run(shim, tmp_path, "failing_updates.py", *names, *few, "--seed", "4")
    assert summary["fired"] > 10
    assert summary["raised"] > 6
    assert summary["left"] == 0
