"""Two writers of one target, on one host and on two; leases of the dead; writers that freeze and
thaw."""

from __future__ import annotations

import errno
import functools
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest import mock

import dask
import numpy as np
import pytest
from forks import python

import shardwrite
from shardwrite import IncompleteError, JournalError, RunEndedError, SpecError, StoreError

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams

replay = importlib.import_module(
    "shardwrite.journal.replay"
)  # the package gives the function of that name
SHAPE, KEYWORDS = (
    (32, 32),
    {"shards": 8, "chunks": 4, "memory_limit": "20kB", "max_source_reruns": 100},
)


class Gate:
    """A source that stops at its twelfth block until it is let through; raises if told to."""

    def __init__(self, version=0, *, fail=False):
        self.reached, self.go = threading.Event(), threading.Event()
        self._calls, self._lock, self._fail = 0, threading.Lock(), fail
        self.x = oracle.source(SHAPE, (8, 8), version).map_blocks(
            self._pass, dtype="u4", meta=np.empty((0, 0), "u4")
        )

    def _pass(self, block):
        with self._lock:
            self._calls += 1
            at = self._calls
        if at == 12:
            self.reached.set()
            if self._fail:
                raise InterruptedError("told to")
            assert self.go.wait(30)
        return block


def write(x, path, **more):
    with dask.config.set(scheduler="sync"):
        return x.to_sharded_zarr(path, **KEYWORDS, **more)


def interrupted(path, **more):
    """A run that stopped half way; its source."""
    gate = Gate(fail=True)
    with pytest.raises(InterruptedError):
        write(gate.x, path, source_id="a", **more)


def running(path, version=0, **more):
    """A run in another thread that stands still half way."""
    gate = Gate(version)
    outcome = []

    def work():
        try:
            outcome.append(write(gate.x, path, **more))
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert gate.reached.wait(30)
    return gate, thread, outcome


def end(gate, thread):
    gate.go.set()
    thread.join(30)
    assert not thread.is_alive()


def test_another_plan_is_refused_while_a_lease_lives_and_names_its_holder(tmp_path):
    gate, thread, outcome = running(tmp_path / "x", source_id="a")
    try:
        for more in ({}, {"restart": True}):
            with pytest.raises(JournalError, match="is being written by another plan") as caught:
                write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", **more)
            assert caught.value.holder["pid"] == os.getpid()
            assert caught.value.holder["host"] in str(caught.value)
            assert str(os.getpid()) in str(caught.value)
    finally:
        end(gate, thread)
    assert outcome[0].n_shards == 16
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


def test_the_job_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    gate, thread, _ = running(tmp_path / "x", source_id="a")
    try:
        with pytest.raises(JournalError, match="SLURM_JOB_ID=4711"):
            write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b")
    finally:
        end(gate, thread)


def test_another_plan_is_refused_with_the_difference_and_restart_takes_it_away(tmp_path):
    interrupted(tmp_path / "x")
    with pytest.raises(JournalError, match="--restart") as caught:
        write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", strategy="morton")
    fields = " ".join(caught.value.differences)
    assert "source" in fields
    assert "strategy" in fields
    assert "'b'" in fields or '"b"' in fields
    write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", restart=True)
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE, 2))


@pytest.mark.long
def test_the_same_plan_in_two_processes_at_once(tmp_path):
    gate, thread, outcome = running(tmp_path / "x", source_id="a")
    result = write(oracle.source(SHAPE, (8, 8)), tmp_path / "x", source_id="a")
    assert result.n_resumed_shards > 0
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))
    end(gate, thread)
    assert not isinstance(outcome[0], BaseException), outcome
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.long
def test_many_processes_write_one_plan(tmp_path):
    """All begin within milliseconds of each other, a few times: nobody takes a writer that has just
    come for a dead one."""
    script = (
        f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r}); import oracle, shardwrite\n"
        "print('ready', flush=True); start = float(sys.stdin.readline())\n"
        "for number, array in enumerate(sys.argv[1:]):\n"
        "    time.sleep(max(0, start + 0.7 * number - time.time()))\n"
        "    oracle.source((64, 64), (8, 64)).to_sharded_zarr(array, shards=8, chunks=4, memory_limit='60kB')\n"
    )
    arrays = [str(tmp_path / f"x{number}") for number in range(5)]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    writers = [subprocess.Popen([*python(), "-c", script, *arrays], **pipes) for _ in range(4)]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    now = time.time()
    for number, writer in enumerate(writers):
        writer.stdin.write(f"{now + 0.1 + 0.02 * number}\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    for array in arrays:
        oracle.check_whole(array, oracle.values((64, 64)))


@pytest.mark.parametrize("step", ["look for a run", "look for a run to join"])
def test_shards_of_a_run_that_has_just_begun_are_not_taken_for_other_files(
    tmp_path, monkeypatch, step
):
    """A process looks for a run and is held up; another one begins it and writes shards."""
    interrupted(tmp_path / "x")
    looks = iter([None])
    real = seams.real(step)
    monkeypatch.setattr(*seams.step(step), lambda target: next(looks, real(target)))
    result = write(oracle.source(SHAPE, (8, 8)), tmp_path / "x", source_id="a")
    assert next(looks, "looked") == "looked"
    assert result.n_resumed_shards > 0
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.parametrize("n_arrays", [1, 3])
def test_a_run_that_ends_right_after_it_was_found_is_done(tmp_path, monkeypatch, n_arrays):
    """A process finds the run of another one, which then finishes it."""
    names = [f"{number}" for number in range(n_arrays)]
    arrays = [str(tmp_path / "tree" / name) for name in names]

    def write_all(fail=False):
        gate = Gate(fail=fail)
        gate.go.set()
        sources = [gate.x, *(oracle.source(SHAPE, (8, 8)) for _ in names[1:])]
        with dask.config.set(scheduler="sync"):
            return shardwrite.store(sources, arrays, **KEYWORDS, source_id="a")

    with pytest.raises(InterruptedError):
        write_all(fail=True)
    seams.before(monkeypatch, "claim the rest of a run", lambda _: write_all(), once=True)
    assert [result.n_shards for result in write_all()] == [16] * n_arrays
    for array in arrays:
        oracle.check_whole(array, oracle.values(SHAPE))


def test_who_comes_while_journals_are_read_is_not_taken_for_dead(tmp_path, monkeypatch):
    """The lease of a writer is older than the first line of its journal; so leases are looked at
    after journals."""
    interrupted(tmp_path / "x")
    run = seams.run_directory(tmp_path / "x")
    elsewhere = seams.this_process(**seams.ELSEWHERE)
    seams.forge_log(run, "late", elsewhere, [seams.begins("late.1", (0, 0), (1, 1))])
    assert "late.1" in seams.logged(tmp_path / "x").unended  # it has no lease

    def come(*_):
        seams.forge_lease(run, "late", **seams.ELSEWHERE)

    seams.before(monkeypatch, "read a log", come)
    assert "late.1" not in seams.logged(tmp_path / "x").unended


@pytest.mark.parametrize("step", ["begin runs", "make the directory of a run"])
def test_another_process_writes_it_all_between_two_looks(tmp_path, monkeypatch, step):
    """Each look at the place is over before the run begins."""
    x = oracle.source(SHAPE, (8, 8))
    other = functools.partial(write, x, tmp_path / "x", source_id="a")
    seams.before(monkeypatch, step, lambda *_: other(), once=True)
    result = other()
    assert result.n_resumed_shards == result.n_shards
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))
    with pytest.raises(SpecError, match="an array exists there"):
        write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b")


@pytest.mark.long
def test_what_a_process_that_only_seems_to_live_has_left_is_gone_in_the_end(tmp_path):
    """It died on another host, a moment ago."""
    interrupted(tmp_path / "x")
    run = seams.run_directory(tmp_path / "x")
    seams.forge_lease(run, "late", **seams.ELSEWHERE)
    elsewhere = seams.this_process(**seams.ELSEWHERE)
    seams.forge_log(run, "late", elsewhere, [seams.begins("late.1", (0, 0), (1, 1))])
    torn = tmp_path / "x" / "c" / "0" / ".0.late.1.swtmp"
    torn.parent.mkdir(parents=True, exist_ok=True)
    torn.write_bytes(b"torn")
    write(oracle.source(SHAPE, (8, 8)), tmp_path / "x", source_id="a")
    assert not torn.exists()
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


def test_a_writer_that_thaws_after_its_run_was_taken_away_commits_nothing(tmp_path):
    gate, thread, outcome = running(tmp_path / "x", source_id="a")
    with seams.leases_run_out():  # meanwhile
        write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", restart=True)
    end(gate, thread)
    assert isinstance(outcome[0], RunEndedError), outcome
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE, 2))


def lease_of(path, age=0.0, **changes):
    """A lease beside an interrupted run, as another process would hold it; and the run."""
    run = seams.run_directory(path)
    return seams.forge_lease(run, age=age, **changes), run


@pytest.mark.parametrize(
    ("changes", "age", "lives"),
    [
        ({}, 0, False),  # this process, which knows that it does not hold it
        (seams.parent_process(), 0, True),
        ({"pid": 2**22 + 1}, 0, False),
        ({"started": "1"}, 0, False),
        ({"boot": "another", "machine": "m"}, 0, False),
        # another machine of the same host name, as clones and containers have it
        ({"boot": "another", "machine": "another"}, 0, True),
        ({"boot": "another", "machine": "another"}, 125, False),
        ({"boot": "another", "machine": ""}, 0, True),
        ({"boot": "another", "machine": None}, 0, True),  # an older version
        ({"host": "elsewhere"}, 0, True),
        ({"host": "elsewhere"}, 125, False),
        ({"pids": "another namespace"}, 0, True),
        ({"pids": "another namespace"}, 125, False),
        (seams.parent_process(), 125, False),
    ],
)
@seams.on_machine("m")
def test_who_lives(tmp_path, changes, age, lives):
    interrupted(tmp_path / "x")
    _, run = lease_of(tmp_path / "x", age, **changes)
    assert seams.is_held(run) == lives
    assert not list(run.glob("clock-*"))
    if lives:
        with pytest.raises(JournalError, match="is being written"):
            write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", restart=True)
    else:
        write(oracle.source(SHAPE, (8, 8), 2), tmp_path / "x", source_id="b", restart=True)
        oracle.check_whole(tmp_path / "x", oracle.values(SHAPE, 2))


AHEAD = 30 * 86400


@pytest.mark.parametrize("touched", [False, True])
def test_a_lease_from_the_future_is_watched(tmp_path, touched):
    """A clock was wrong by 30 days. A holder that lives shows it within the lifetime of a lease."""
    with dask.config.set({"shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": 1.0}):
        interrupted(tmp_path / "x")
        file, _ = lease_of(tmp_path / "x", -AHEAD, host="elsewhere", ttl=1.0)
        ended = threading.Event()

        def beat():
            while touched and not ended.wait(0.2):
                os.utime(file, (time.time() + AHEAD,) * 2)

        thread = threading.Thread(target=beat)
        thread.start()
        new, keywords = oracle.source(SHAPE, (8, 8), 2), {"source_id": "b", "restart": True}
        try:
            if touched:
                with pytest.raises(JournalError, match="is being written"):
                    write(new, tmp_path / "x", **keywords)
            else:
                write(new, tmp_path / "x", **keywords)
                oracle.check_whole(tmp_path / "x", oracle.values(SHAPE, 2))
        finally:
            ended.set()
            thread.join()


def test_a_lease_from_the_future_is_watched_once(tmp_path):
    """A call looks at the leases of a run several times."""
    with dask.config.set({"shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": 1.0}):
        interrupted(tmp_path / "x")
        lease_of(tmp_path / "x", -AHEAD, host="elsewhere", ttl=1.0)
        seconds, sleep = [], time.sleep

        def note(each):
            seconds.append(each)
            sleep(each)

        with mock.patch.object(time, "sleep", note):
            write(oracle.source(SHAPE, (8, 8)), tmp_path / "x", source_id="a")
    assert sum(seconds) < 2
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


@pytest.mark.parametrize("kind", ["claim", "conversion"])
def test_a_claim_or_a_conversion_from_the_future(tmp_path, kind):
    """The process died on another host, whose clock was wrong."""
    settings = {"lease.heartbeat": 0.2, "lease.ttl": 1.0, "lease.claim-wait": 5.0}
    path = tmp_path / "x"
    with dask.config.set({f"shardwrite.{name}": value for name, value in settings.items()}):
        write(oracle.source(SHAPE, (8, 8)), path, source_id="a")
        elsewhere = seams.this_process(**seams.ELSEWHERE, token="t")
        if kind == "claim":
            left = seams.state_beside(path) / "claim-end" / "owner-0"
            left.parent.mkdir(parents=True)
        else:
            with pytest.raises(KeyboardInterrupt):
                shardwrite.reshard(path, shards=8, progress=stop)
            work = seams.work_of(path)
            left = work / "lease-other.json"
        left.write_text(json.dumps(elsewhere))
        os.utime(left, (time.time() + AHEAD,) * 2)
        if kind == "claim":
            shardwrite.erase(path, (slice(0, 1), slice(0, 1)))
        else:
            shardwrite.abandon(path)
            oracle.check_whole(path, oracle.values(SHAPE))
    assert not list(tmp_path.glob("x.*"))


def stop(report):
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["run", "conversion"])
def test_no_sign_of_life_is_told_to_lie_ahead(tmp_path, kind):
    """The clock of the other host is ahead of that of the file system."""
    path = tmp_path / "x"
    if kind == "run":
        interrupted(path)
        place = seams.run_directory(path)
        other = {"source_id": "b", "restart": True}
        call = functools.partial(write, oracle.source(SHAPE, (8, 8), 2), path, **other)
    else:
        write(oracle.source(SHAPE, (8, 8)), path, source_id="a")
        with pytest.raises(KeyboardInterrupt):
            shardwrite.reshard(path, shards=16, progress=stop)
        place = seams.work_of(path)
        call = functools.partial(shardwrite.reshard, path, shards=16)
    seams.forge_lease(place, age=-20, **seams.ELSEWHERE)
    with pytest.raises(JournalError, match=r"; last sign of life 0 s ago\. Wait for it"):
        call()


def test_a_torn_lease_counts_by_its_age(tmp_path):
    interrupted(tmp_path / "x")
    file, run = lease_of(tmp_path / "x")
    file.write_bytes(b'{"host": "el')
    assert seams.is_held(run)
    os.utime(file, (0, 0))
    assert not seams.is_held(run)


@pytest.mark.parametrize("call", ["write", "fsync", "close", "rename"])
def test_a_lease_that_cannot_be_written_leaves_none(tmp_path, call):
    """An empty one would be a living holder of unknown host and pid, for as long as a lease lives."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with mock.patch(f"os.{call}", fail), pytest.raises(StoreError) as raised, seams.hold(tmp_path):
        pass
    assert raised.value.errno == errno.ENOSPC
    assert f"lease '{tmp_path}/lease-" in str(raised.value)
    assert not seams.is_held(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_log_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    seams.kill_before(monkeypatch, "write the log", OSError(errno.ENOSPC, "No room"))
    with pytest.raises(StoreError, match=rf"cannot write the journal in '{tmp_path}': No room"):
        seams.log_of(tmp_path, "x").append({})


def test_a_run_that_another_process_has_removed_meanwhile_is_told_as_ended(tmp_path):
    with pytest.raises(RunEndedError, match="another process has ended this run"):
        seams.hold(tmp_path / "gone").__enter__()


def test_lease_times_are_a_setting(tmp_path):
    assert seams.lease_times() == (15, 120)
    with (
        dask.config.set({"shardwrite.lease.heartbeat": 0.02, "shardwrite.lease.ttl": 0.5}),
        seams.hold(tmp_path) as held,
    ):
        assert json.loads(held.path.read_text())["ttl"] == 0.5
        os.utime(held.path, (0, 0))
        deadline = time.monotonic() + 10
        while held.path.stat().st_mtime < 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.long
def test_lease_times_can_be_set_in_the_environment():
    script = "import seams; print(seams.lease_times())"
    environment = {
        **os.environ,
        "DASK_SHARDWRITE__LEASE__TTL": "4",
        "DASK_SHARDWRITE__LEASE__HEARTBEAT": "1.5",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env=environment
    )
    assert done.stdout.strip() == "(1.5, 4.0)"


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ({"ttl": 30}, "ttl"),  # twice the default heartbeat
        ({"heartbeat": 60}, "ttl"),
        ({"heartbeat": 0}, "heartbeat"),
        ({"heartbeat": -1}, "heartbeat"),
        ({"ttl": "long"}, "ttl"),
        ({"ttl": True}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"ttl": float("inf")}, "ttl"),
    ],
)
def test_lease_times_that_make_no_sense_are_refused(tmp_path, setting, field):
    with (
        dask.config.set({f"shardwrite.lease.{name}": value for name, value in setting.items()}),
        pytest.raises(SpecError) as caught,
    ):
        write(oracle.source(SHAPE, (8, 8)), tmp_path / "x")
    assert caught.value.field == f"shardwrite.lease.{field}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ttl", "lives"), [(600, True), (5, False), ("torn", False), (-1, False), (None, False)]
)
def test_a_lease_is_judged_by_the_time_that_it_says(tmp_path, ttl, lives):
    interrupted(tmp_path / "x")
    _, run = lease_of(tmp_path / "x", 300, host="elsewhere", ttl=ttl)
    assert seams.is_held(run) == lives


@pytest.mark.long
def test_a_killed_holder_is_taken_over(tmp_path):
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import oracle, os, shardwrite;"
        "seen = []\n"
        "def kill(report):\n"
        "    seen.append(report)\n"
        "    if len(seen) == 3: os.kill(os.getpid(), 9)\n"
        "oracle.source((32, 32), (8, 8)).to_sharded_zarr(sys.argv[1], shards=8, chunks=4, memory_limit='20kB',"
        "max_source_reruns=100, source_id='a', progress=kill)"
    )
    ended = subprocess.run([*python(), "-c", script, str(tmp_path / "x")], check=False)
    assert ended.returncode == -9
    run = seams.run_directory(tmp_path / "x")
    assert seams.leases_in(run), "it could not give it back"
    assert not seams.is_held(run)
    result = write(oracle.source(SHAPE, (8, 8)), tmp_path / "x", source_id="a")
    assert result.n_resumed_shards >= 3
    oracle.check_whole(tmp_path / "x", oracle.values(SHAPE))


def test_parts_of_a_run_that_nobody_began(tmp_path):
    with pytest.raises(IncompleteError, match="prepare"):
        shardwrite.finalize(tmp_path / "x")


def test_storage_that_cannot_tell_does_not_end_a_run(tmp_path, monkeypatch):
    """A dead file system is not a run that somebody else has ended: its own error is what people
    see."""
    interrupted(tmp_path / "x")
    run = seams.run_of(tmp_path / "x")
    real = os.stat

    def stat(path, *args, **keywords):
        if path == run.path:
            raise OSError(errno.EIO, "Input/output error")
        return real(path, *args, **keywords)

    assert not run.has_ended
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", stat)
        assert not run.has_ended
    run.path.rename(tmp_path / "elsewhere")
    assert run.has_ended


def test_a_lease_whose_thread_cannot_start_is_given_back(tmp_path):
    """Else the next call in this process would find a run on which this process works."""
    (tmp_path / "run").mkdir()
    refusal = RuntimeError("can't start new thread")
    with (
        mock.patch.object(threading.Thread, "start", side_effect=refusal),
        pytest.raises(RuntimeError, match="new thread"),
    ):
        seams.hold(tmp_path / "run").__enter__()
    assert not os.listdir(tmp_path / "run")
    with seams.hold(tmp_path / "run"):
        assert seams.is_held(tmp_path / "run")
