"""A kill before every effect of an operation: the same call again succeeds, and nothing is left
beside the array."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from forks import python
from tiers import some

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
from all_operations import ARRAYS

SCRIPT = Path(__file__).with_name("all_faults.py")
OPERATIONS = (
    *("write", "write into a group", "finalize", "compaction", "salvage", "stream", "shard"),
    *("shard and consume", "recovery", "replacement of several, or give up"),
    "shard in place, or give up",
)


def run(tmp_path, *arguments):
    """Kill operations in a process of its own, which has no threads when it forks."""
    out = tmp_path / "out.json"
    subprocess.run(
        [*python(), SCRIPT, *arguments, "--json", out],
        capture_output=True,
        timeout=1500,
        check=False,
    )
    found = [case for case in json.loads(out.read_text())["cases"] if case["effect"]]
    troubles = [
        f"{case['operation']}, killed at {case['at']}: {case['trouble']}"
        for case in found
        if case["trouble"]
    ]
    assert not troubles, "\n".join(troubles[:5])
    return found


@pytest.mark.long
@pytest.mark.parametrize("operation", some(OPERATIONS, "shard and consume"))
def test_the_same_call_again_leaves_nothing(tmp_path, operation):
    """Before some effects in the middle, and before each of the last ones."""
    every = "7" if operation == "write" else "13"  # a short call, one of which falls into its begin
    found = run(tmp_path, "--operations", operation, "--every", every, "--last", "5")
    assert len(found) >= 6


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("half", range(2))
def test_every_operation(tmp_path, half):
    """A kill somewhere amid each operation and one before its last effect, of one call and of two:
    ``python tests/faults/all_faults.py`` kills before every effect."""
    names = [*ARRAYS][half::2]
    found = run(tmp_path, "--operations", *names, *["--amid", "--last", "1", "--twice", "97"])
    assert {case["operation"] for case in found} == set(names)
    assert len(found) > 3 * len(names)


X = da.from_array(np.arange(64, dtype="u4").reshape(8, 8) + 1, chunks=4)


def draft_of(path, process, run="0123456789ab"):
    """A run that a process was about to begin."""
    draft = seams.state_beside(path) / f"draft-{run},{process}"
    draft.mkdir(parents=True)
    (draft / "zarr.json").write_text("{}")
    return draft


def write(path):
    X.to_sharded_zarr(path, shards=4, chunks=2, source_id="x")


def test_a_draft_stays_as_long_as_its_process_may_live(tmp_path):
    says = "import sys, seams; print(seams.signature(), flush=True); sys.stdin.read()"
    other = subprocess.Popen(
        [*python(), "-c", says], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    draft = draft_of(tmp_path / "x", other.stdout.readline().strip())
    write(tmp_path / "x")
    assert draft.exists(), "its process lives"
    other.communicate()
    write(tmp_path / "x")
    oracle.check_tidy(tmp_path / "x")


@pytest.mark.parametrize("name", ["draft-0123456789ab,elsewhere,boot,1,2,3", "run-0123456789ab"])
def test_a_draft_of_which_nobody_knows_is_removed_when_it_is_old(tmp_path, name):
    draft = draft_of(tmp_path / "x", "")
    draft = draft.rename(draft.with_name(name))
    write(tmp_path / "x")
    assert draft.exists()
    os.utime(draft, (time.time() - 1000,) * 2)
    write(tmp_path / "x")
    oracle.check_tidy(tmp_path / "x")


def test_probing_brings_no_run_back_that_has_ended(tmp_path):
    """An empty directory of the run was made anew, and stayed."""
    probe = seams.real("probe a worker")
    assert probe(str(tmp_path / "run-1"), "zarr.json") == (
        f"{tmp_path / 'run-1'} is missing here",
        errno.ENOENT,
    )
    assert not list(tmp_path.iterdir())
    assert "another directory" in probe(str(tmp_path), "zarr.json")[0]
    (tmp_path / "zarr.json").touch()
    assert probe(str(tmp_path), "zarr.json") is None
    assert [p.name for p in tmp_path.iterdir()] == ["zarr.json"]


@pytest.mark.long
def test_a_run_is_no_draft_because_whoever_began_it_is_gone(tmp_path):
    """Others work on a run that a process began which has ended since: parts, resumed jobs."""
    path = tmp_path / "x"
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import shardwrite, test_ends
        shardwrite.prepare(test_ends.X, sys.argv[1], shardwrite.plan(test_ends.X, shards=4, chunks=2, source_id="x"))
    """
    subprocess.run([*python(), "-c", textwrap.dedent(code), path], check=True)
    run = seams.run_directory(path)
    os.utime(run, (time.time() - 1000,) * 2)
    draft_of(path, "elsewhere,boot,1,2,3")
    assert shardwrite.write_part(X, path, 0, 1, source_id="x").n_shards == 4
    assert run.exists()
    assert shardwrite.finalize(path).n_shards == 4
