"""Volumes whose hash scatters the chunks, written in parts: spooled in one round, gathered in
another, or by `finalize`."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import dask
import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner
from forks import python
from helpers import Stop, shards_in, stop

import shardwrite
from shardwrite import IncompleteError, JournalError, PlanError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.sources import as_dask, open_source
from shardwrite.volumes import hashed
from shardwrite.write import copying

VALUES = np.arange(1, 1 + 14 * 21 * 30, dtype="u4").reshape(14, 21, 30)
SHARDING = {
    "preshift_bits": 1,
    "hash": "murmurhash3_x86_128",
    "minishard_bits": 1,
    "shard_bits": 3,
    "data_encoding": "raw",
}
NEW = {
    "axes": "zyx",
    "resolution": (4, 4, 40),
    "chunks": 5,
    "shard_nbytes": 8_000,
    "source_id": "values",
    "sharding": SHARDING,
    "memory_limit": "50kB",
}
KEY, SPOOL, N = "4_4_40", ".4_4_40.spool", 3


def source(values=VALUES):
    """Twelve groups of spooled shards, and eight of gathered ones."""
    return da.from_array(values, chunks=(10, 10, 20))


def plan(**changed):
    return shardwrite.plan_precomputed(source(), **{**NEW, **changed})


def prepare(root, **options):
    made = plan(**{name: options.pop(name) for name in NEW if name in options})
    shardwrite.prepare(source(), root / KEY, made, durability="none", **options)


def part(root, number, count=N, **options):
    return shardwrite.write_part(source(), root / KEY, number, count, source_id="values", **options)


def round_of_parts(root):
    return [part(root, number) for number in range(N)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Files and result of one call."""
    root = tmp_path_factory.mktemp("undisturbed")
    result = shardwrite.to_precomputed(source(), root, durability="none", **NEW)
    return shards_in(root / KEY), result


def check(root, undisturbed, result=None):
    """The scale is that of one call, and nothing else is left."""
    assert shards_in(root / KEY) == undisturbed[0]
    assert {path.name for path in root.iterdir()} == {"info", KEY}
    assert [one["key"] for one in json.loads((root / "info").read_text())["scales"]] == [KEY]
    if result is not None:
        wanted = undisturbed[1]
        for name in ("n_shards", "n_chunks", "n_empty_chunks", "raw_nbytes", "stored_nbytes"):
            assert getattr(result, name) == getattr(wanted, name), name
        assert result.path == str(root / KEY)


@pytest.mark.parametrize("n_rounds", [pytest.param(1, marks=pytest.mark.long), 2])
def test_parts_make_what_one_call_makes(tmp_path, undisturbed, n_rounds):
    root = tmp_path / "v"
    prepare(root)
    spooled = round_of_parts(root)
    assert {done.path for done in spooled} == {str(root / KEY)}
    assert all(done.n_shards for done in spooled)
    assert sum(done.n_shards for done in spooled) == len(shards_in(root / SPOOL)) == 12
    if n_rounds == 2:
        assert sorted(done.n_shards for done in round_of_parts(root)) == [2, 3, 3]
    assert not (root / "info").exists()
    hashed = []
    result = shardwrite.finalize(root / KEY, n_parts=N, progress=hashed.append)
    assert len(hashed) == (8 if n_rounds == 1 else 0)
    assert result.n_resumed_shards == (0 if n_rounds == 1 else 8)
    check(root, undisturbed, result)
    check(root, undisturbed, shardwrite.finalize(root / KEY))
    check(root, undisturbed, part(root, 1))
    assert shardwrite.verify(root / KEY, deep=True, against=source()).is_good


@pytest.mark.long
def test_a_part_that_was_never_written_is_named(tmp_path, undisturbed):
    prepare(tmp_path)
    part(tmp_path, 0)
    part(tmp_path, 2)
    for _ in range(2):
        with pytest.raises(IncompleteError, match="part 1 of 3 must be written again") as caught:
            shardwrite.finalize(tmp_path / KEY, n_parts=N)
        assert caught.value.fields["parts"] == [1]
        part(tmp_path, 2)  # which has nothing to spool, and cannot gather yet
    assert not shards_in(tmp_path / KEY)
    part(tmp_path, 1)
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY, n_parts=N))


@pytest.mark.long
def test_parts_that_were_interrupted_go_on(tmp_path, undisturbed):
    """In either round, what was written is kept. So it is by another number of parts."""
    prepare(tmp_path)
    with dask.config.set(num_workers=1):
        with pytest.raises(Stop):
            part(tmp_path, 0, 2, progress=stop)
        before = len(shards_in(tmp_path / SPOOL))
        assert 1 <= before < 6
        assert part(tmp_path, 0, 2).n_resumed_shards == before
        round_of_parts(tmp_path)
        with pytest.raises(Stop):
            part(tmp_path, 1, 2, progress=stop)
        assert 1 <= len(shards_in(tmp_path / KEY)) < 4
        assert part(tmp_path, 1, 2).n_resumed_shards == len(shards_in(tmp_path / KEY)) - 3
        with pytest.raises(Stop):
            shardwrite.finalize(tmp_path / KEY, progress=stop)
    assert not (tmp_path / "info").exists()
    prepare(tmp_path)
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY))
    prepare(tmp_path)
    check(tmp_path, undisturbed)


@pytest.mark.long
def test_a_stop_on_request(tmp_path, undisturbed):
    prepare(tmp_path)
    round_of_parts(tmp_path)
    try:
        with pytest.raises(IncompleteError, match=r"run the same command again to go on"):
            shardwrite.finalize(tmp_path / KEY, progress=lambda _: seams.request_stop())
    finally:
        seams.forget_stop()
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY))


@pytest.mark.long
def test_one_call_and_parts_finish_each_other(tmp_path, undisturbed):
    one = {**NEW, "durability": "none"}
    prepare(tmp_path / "v")
    part(tmp_path / "v", 1)
    result = shardwrite.to_precomputed(source(), tmp_path / "v", **one)
    check(tmp_path / "v", undisturbed, result)
    with pytest.raises(Stop):
        shardwrite.to_precomputed(source(), tmp_path / "w", progress=stop, **one)
    with pytest.raises(IncompleteError, match="nothing was begun"):
        part(tmp_path / "w", 0)
    prepare(tmp_path / "w")
    round_of_parts(tmp_path / "w")
    check(tmp_path / "w", undisturbed, shardwrite.finalize(tmp_path / "w" / KEY))


@pytest.mark.long
def test_an_interrupted_call_that_gathers_is_finished_as_its_error_says(
    tmp_path, undisturbed, monkeypatch
):
    with monkeypatch.context() as patched:
        patched.setattr(copying, "_copy_shard", stop)
        with pytest.raises(Stop):
            shardwrite.to_precomputed(source(), tmp_path, durability="none", **NEW)
    with pytest.raises(SpecError, match=r"spooled.*same call again.*parts.*call finalize"):
        shardwrite.compact(tmp_path / KEY)
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY))


@pytest.mark.parametrize("n_rounds", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_parts_are_given_up(tmp_path, n_rounds):
    prepare(tmp_path / "v")
    for _ in range(n_rounds):
        round_of_parts(tmp_path / "v")
    told = CliRunner().invoke(main, ["abandon", str(tmp_path / "v" / KEY)])
    assert "what was not finished of the scale was given up" in told.output
    assert not list((tmp_path / "v").iterdir())
    with pytest.raises(IncompleteError, match="call prepare first"):
        part(tmp_path / "v", 0)


@pytest.mark.long
def test_a_damaged_spool_is_written_again(tmp_path, undisturbed):
    """Whoever finds the damage names the part, which mends it."""
    prepare(tmp_path)
    round_of_parts(tmp_path)
    for damaged in sorted((tmp_path / SPOOL).glob("*.shard"))[::6]:
        os.truncate(damaged, 30)
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(tmp_path / KEY, n_parts=N)
    bad = caught.value.fields["parts"]
    good = next(number for number in range(N) if number not in bad)
    with pytest.raises(IncompleteError) as caught:
        part(tmp_path, good)
    assert caught.value.fields["parts"] == bad
    assert not shards_in(tmp_path / KEY)
    for number in bad:
        part(tmp_path, number)
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY, n_parts=N))


@pytest.mark.long
def test_a_spool_that_is_gone(tmp_path, undisturbed):
    prepare(tmp_path)
    round_of_parts(tmp_path)
    hashed.remove_spool(seams.target_of(tmp_path / SPOOL))
    for call in (lambda: part(tmp_path, 0), lambda: shardwrite.finalize(tmp_path / KEY)):
        with pytest.raises(JournalError, match=r"spool of .* is gone.*prepare with restart=True"):
            call()
    prepare(tmp_path, restart=True)
    round_of_parts(tmp_path)
    check(tmp_path, undisturbed, shardwrite.finalize(tmp_path / KEY))


@pytest.mark.long
def test_what_is_in_the_way_is_refused_before_anything_is_begun(tmp_path, undisturbed):
    prepare(tmp_path)
    part(tmp_path, 0)
    there = shards_in(tmp_path / SPOOL)
    for changed in ({"chunks": 6, "memory_limit": "1MB"}, {"source_id": "other"}):
        with pytest.raises(JournalError, match="another plan was begun"):
            prepare(tmp_path, **changed)
    with pytest.raises(JournalError, match="another plan was begun"):
        shardwrite.write_part(source(), tmp_path / KEY, 0, N, source_id="other")
    with pytest.raises(SpecError, match="no such part"):
        part(tmp_path, 3)
    for call in (
        lambda: shardwrite.write_part(source(), tmp_path / SPOOL, 0, N, source_id="values"),
        lambda: shardwrite.finalize(tmp_path / SPOOL),
    ):
        with pytest.raises(SpecError, match=r"spool of a scale.*path of the scale"):
            call()
    assert shards_in(tmp_path / SPOOL) == there
    round_of_parts(tmp_path)
    shardwrite.finalize(tmp_path / KEY)
    with pytest.raises(SpecError, match="an array exists there"):
        prepare(tmp_path, source_id="other")
    check(tmp_path, undisturbed)


@pytest.mark.long
def test_a_process_that_is_late_takes_the_spool_away(tmp_path, undisturbed):
    """Another one has finished the scale while it gathered."""
    prepare(tmp_path)
    round_of_parts(tmp_path)
    results = []

    def finish(_):
        if not results:
            results.append(shardwrite.finalize(tmp_path / KEY))
            assert (tmp_path / SPOOL).exists()

    with dask.config.set(num_workers=1):
        done = part(tmp_path, 0, progress=finish)
    assert done.n_shards == 8, "the result of all, from the receipt"
    check(tmp_path, undisturbed, results[0])


@pytest.mark.long
@pytest.mark.parametrize("is_finished", [True, False])
def test_a_spool_that_goes_while_a_process_is_late(tmp_path, undisturbed, monkeypatch, is_finished):
    """It is no error if another process has finished the scale."""
    prepare(tmp_path)
    round_of_parts(tmp_path)

    def lose(*_):
        monkeypatch.undo()
        if is_finished:
            shardwrite.finalize(tmp_path / KEY)
        raise StoreError("gone", key="0.shard", errno=2)

    monkeypatch.setattr(copying, "_copy_shard", lose)
    with dask.config.set(num_workers=1):
        if is_finished:
            part(tmp_path, 0)
        else:
            with pytest.raises(StoreError, match="gone"):
                part(tmp_path, 0)
            shardwrite.finalize(tmp_path / KEY)
    check(tmp_path, undisturbed)


@pytest.mark.long
def test_memory_is_planned(tmp_path, monkeypatch):
    """More shards than a task holds open are gathered through memory."""
    assert plan().gathering is not None
    assert "of memory while it gathers" in str(plan())
    few, many = (hashed.gathering_nbytes(plan().gathering, n) for n in (64, 65))
    n_tasks = min(8, plan().resources.n_threads)
    assert many - few == n_tasks * 18 * 500, "a whole shard of 18 chunks for each thread"
    prepare(tmp_path)
    round_of_parts(tmp_path)
    monkeypatch.setattr(copying, "_MAX_OPEN", 1)
    with pytest.raises(PlanError, match=r"gathers chunks.*raise memory_limit"):
        part(tmp_path, 0, memory_limit="50kB")
    with pytest.raises(PlanError, match="gathers chunks out of the spool"):
        plan(sharding={**SHARDING, "shard_bits": 0})
    assert shards_in(tmp_path / KEY) == {}
    assert shardwrite.finalize(tmp_path / KEY).n_shards == 8


@pytest.mark.long
def test_progress_is_told(tmp_path):
    """By status and by a dry run, for either round."""
    np.save(tmp_path / "x.npy", VALUES)
    command = [*("write-part", str(tmp_path / "x.npy"), str(tmp_path / KEY), "1/3", "--dry-run")]
    command += ["--source-chunks", "10,10,20"]
    opened = open_source(str(tmp_path / "x.npy"))
    x, identity = as_dask(opened, (10, 10, 20)), opened.identity
    made = shardwrite.plan_precomputed(x, **{**NEW, "source_id": identity})
    shardwrite.prepare(x, tmp_path / KEY, made, durability="none")

    def groups():
        return CliRunner().invoke(main, command).output.split(":")[1].split(" groups")[0].strip()

    def done():
        found = seams.status_of(tmp_path / KEY)
        return found.n_done_shards, found.n_shards, found.raw_nbytes > VALUES.nbytes

    assert (groups(), done()) == (str(len(made.part(1, N).groups)), (0, 20, True))
    for number in range(N):
        shardwrite.write_part(x, tmp_path / KEY, number, N, source_id=identity)
    n_gathered = len(made.gathering.part(1, N).groups)
    assert (groups(), done()) == (str(n_gathered), (12, 20, True))
    shardwrite.write_part(x, tmp_path / KEY, 1, N, source_id=identity)
    assert done() == (12 + n_gathered, 20, True)
    ended = CliRunner().invoke(main, ["finalize", str(tmp_path / KEY), "--parts", "3", "--json"])
    assert json.loads(ended.output)["n_chunks"] == 90
    assert seams.status_of(tmp_path / KEY).is_whole


PROGRAM = """
import os, signal, sys
import dask, dask.array as da, numpy as np
import shardwrite
dask.config.set(num_workers=1)
path, values, number, after = sys.argv[1:]
left = [int(after)]
def die(report):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
x = da.from_array(np.load(values), chunks=(10, 10, 20))
shardwrite.write_part(x, path, int(number), 3, source_id="values", progress=die)
"""


@pytest.mark.long
def test_processes_at_once_and_one_of_them_killed(tmp_path, undisturbed):
    np.save(tmp_path / "values.npy", VALUES)
    root = tmp_path / "v"
    prepare(root)

    def run(*kills):
        """Exit codes of a process for each part, of which some are killed after a report."""
        words = [*python(), "-c", PROGRAM, str(root / KEY), str(tmp_path / "values.npy")]
        begun = [
            subprocess.Popen([*words, str(number), "1" if number in kills else "-1"])
            for number in range(N)
        ]
        return [process.wait(120) for process in begun]

    assert run(1) == [0, -signal.SIGKILL, 0]
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(root / KEY, n_parts=N)
    assert caught.value.fields["parts"] == [1]
    assert run() == [0, 0, 0]
    codes = run(0)
    assert codes[1:] == [0, 0]
    check(root, undisturbed, shardwrite.finalize(root / KEY, n_parts=N))
