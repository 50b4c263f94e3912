"""SIGKILL at any moment: acknowledged shards are there, the same call makes the rest, and little is
written twice."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import seams
from forks import python

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import oracle

SCRIPT = Path(__file__).with_name("kills.py")


def run(tmp_path, *arguments):
    out = tmp_path / "out.json"
    ended = subprocess.run(
        [*python(), SCRIPT, *arguments, "--json", out],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(out.read_text())
    print(json.dumps(found["summary"]))
    return found["summary"], found["kills"]


def check_kills(summary, kills, *, most_vacuous):
    assert not summary["troubles"], summary["troubles"][:5]
    assert summary["lost"] == 0
    assert summary["vacuous"] <= most_vacuous, "most kills must interrupt something"
    for kill in kills:
        assert kill["redone_acked"] == 0, kill
        assert kill["redone"] <= kill["in_flight"], kill


def test_a_killed_run_goes_on(tmp_path):
    check_kills(*run(tmp_path, "--kills", "6", "--seed", "7"), most_vacuous=4)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sixteen_kills(tmp_path):
    summary, kills = run(tmp_path, "--kills", "16", "--seed", "1")
    check_kills(summary, kills, most_vacuous=6)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_three_thousand_shards_killed_eight_times(tmp_path):
    summary, kills = run(tmp_path, "--one-array", "--shards", "3000", "--kills", "8")
    check_kills(summary, [], most_vacuous=1)
    # when the kills so far came, and not written again yet: a run may be killed before it comes to
    # all of it
    in_flight = 0
    for kill in kills:
        assert kill["redone_acked"] == 0, kill
        assert kill["redone"] <= in_flight, kill
        in_flight += kill["in_flight"] - kill["redone"]
    assert summary["kills"] == 9
    assert sum(not kill["finished"] for kill in kills) >= 8


@pytest.mark.long
@pytest.mark.timeout(900)
def test_groups_of_many_shards(tmp_path):
    """What is written again is what a second of work and the tasks in flight had written, and no
    group."""
    summary, kills = run(tmp_path, "--groups", "--shards", "2000", "--kills", "3")
    assert not summary["troubles"], summary["troubles"][:5]
    killed = [kill for kill in kills if not kill["finished"]]
    assert len(killed) >= 2
    for kill in killed:
        assert kill["redone"] <= kill["in_flight"], kill
    assert max(kill["acked"] for kill in killed) > 0


WRITER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import dask, oracle
with dask.config.set(scheduler="sync"):
    oracle.source((32, 32), (8, 32)).to_sharded_zarr(sys.argv[1], shards=8, chunks=4, memory_limit="30kB", durability="full",
                                                     progress=oracle.Acks(sys.argv[2]))
"""
CALLS = ("rename", "fsync", "writev", "link,linkat", "mkdir", "unlink", "rmdir,unlinkat")


@pytest.mark.long
@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not here (Debian's package strace)"
)
@pytest.mark.parametrize(
    "call",
    CALLS,
)
def test_killed_at_a_system_call(tmp_path, call):
    """Right before the k-th call of a kind on the array or beside it, for steps of k until there is
    none."""
    n_killed = 0
    for k in (1, 9):
        path, acks = tmp_path / f"x{k}", oracle.Acks(tmp_path / f"acks{k}")
        command = [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={call}",
            "-e",
            f"inject={call}:signal=KILL:when={k}",
        ]
        ended = subprocess.run(
            [*command, sys.executable, "-c", WRITER, path, acks.path],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if "ptrace" in ended.stderr:
            pytest.skip(f"strace may not trace here: {ended.stderr.splitlines()[0]}")
        if ended.returncode == 0:
            break
        n_killed += 1
        if path.exists() and seams.plan_files(path):
            oracle.check_partial(path, acks.ranks(), oracle.values((32, 32)))
        subprocess.run([*python(), "-c", WRITER, path, tmp_path / "more"], check=True, timeout=120)
        found = shardwrite.open_sharded(path)[:, :]
        np.testing.assert_array_equal(found, oracle.values((32, 32)))
        assert not list(path.rglob("*.swtmp"))
    assert n_killed
