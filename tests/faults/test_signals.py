"""USR1 drains, TERM and INT abandon, and the exit code says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from forks import python
from tiers import some

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams

N_SHARDS = 64
SCRIPT = """
    import os, sys, time
    import dask, dask.array as da, numpy as np
    sys.path.insert(0, {here!r})
    import oracle, shardwrite

    def slow(block):
        time.sleep(float(os.environ["PAUSE"]))
        return block

    def main():
        path, acks = sys.argv[1:3]
        if len(sys.argv) > 3:
            from distributed import Client, LocalCluster
            cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
            client = Client(cluster)
        x = oracle.source((64, 64), (8, 8)).map_blocks(slow, dtype="u4", meta=np.empty((0, 0), "u4"))
        x.to_sharded_zarr(path, shards=8, chunks=4, memory_limit="20kB", source_id="test", progress=oracle.Acks(acks),
                          max_source_reruns=100)

    if __name__ == "__main__":
        main()
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT.format(here=str(Path(__file__).parent))))
    started = []

    def begin(*more, pause=0.2):
        command = [
            *python(),
            "-c",
            "from shardwrite.cli import main; main()",
            "exec",
            str(script),
        ]
        process = subprocess.Popen(
            [*command, str(tmp_path / "x"), str(tmp_path / "acks"), *more],
            env={**os.environ, "PAUSE": str(pause), "DASK_NUM_WORKERS": "2"},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def wait_for_acks(tmp_path, n, process):
    acks = oracle.Acks(tmp_path / "acks")
    deadline = time.monotonic() + 60
    while len(acks.ranks()) < n:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def finish(tmp_path, start, n_before):
    """The same again, to the end."""
    process = start(pause=0)
    assert process.wait(60) == 0, process.stderr.read()
    oracle.check_whole(tmp_path / "x", oracle.values((64, 64)))
    result = shardwrite.verify(tmp_path / "x")
    assert result.is_good


@pytest.mark.parametrize("number", some([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_abandon(tmp_path, start, number):
    process = start()
    wait_for_acks(tmp_path, 6, process)
    process.send_signal(number)
    assert process.wait(60) == 85
    assert "run me again" in process.stderr.read()
    acked = oracle.Acks(tmp_path / "acks").ranks()
    assert 6 <= len(acked) < N_SHARDS
    oracle.check_partial(tmp_path / "x", acked, oracle.values((64, 64)))
    assert not list((tmp_path / "x").rglob("*.swtmp"))
    assert not list(seams.state_beside(tmp_path / "x").rglob("lease-*"))
    finish(tmp_path, start, len(acked))


@pytest.mark.parametrize("where", some([[], ["cluster"]], []), ids=["threads", "cluster"])
def test_drain(tmp_path, start, where):
    process = start(*where)
    wait_for_acks(tmp_path, 6, process)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 85
    told = process.stderr.read()
    assert "finishing the shards in flight" in told
    assert "not whole" in told
    acked = oracle.Acks(tmp_path / "acks").ranks()
    assert 6 <= len(acked) < N_SHARDS
    files = [p for p in (tmp_path / "x" / "c").rglob("*") if p.is_file()]
    with pytest.raises(shardwrite.SpecError, match="has not ended"):
        shardwrite.open_sharded(tmp_path / "x")
    report = shardwrite.verify(tmp_path / "x", deep=True)
    assert report.is_good
    assert report.expected_by == "journal"
    assert report.n_shards - report.n_pending == len(files), (
        "what was in flight is finished, and in the journal"
    )
    finish(tmp_path, start, len(acked))


@pytest.mark.long
def test_a_second_request_abandons(tmp_path, start):
    process = start(pause=5)
    while not list(tmp_path.glob("x.shardwrite/run-*/parts-*")):
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(signal.SIGUSR1)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGUSR1)
    assert process.wait(5) == 85


def test_a_request_on_the_way_out_is_too_late_to_kill():
    script = (
        "import os, signal; from shardwrite.runs.outcome import handling_signals\n"
        "with handling_signals(): os.kill(os.getpid(), signal.SIGUSR1)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "raise SystemExit(85)"
    )
    assert (
        subprocess.run([*python(), "-c", script], check=False, capture_output=True).returncode == 85
    )


SCRIPTS = {
    "complete": ("import shardwrite", 0),
    "error": ("1 / 0", 1),
    "usage": (
        "import shardwrite; raise shardwrite.SpecError('no', field='a', value=1, remedy='b')",
        2,
    ),
    "storage": ("raise OSError(28, 'No space left on device')", 75),
    "a code of its own": ("raise SystemExit(7)", 7),
    "incomplete": ("import shardwrite; raise shardwrite.IncompleteError('x', missing=['c/0'])", 85),
    "arguments": (
        "import sys; assert sys.argv[1:] == ['--deep', '-x'], sys.argv; assert __name__ == '__main__'",
        0,
    ),
}


@pytest.mark.compat
@pytest.mark.parametrize("kind", SCRIPTS)
def test_exec_maps_the_outcome(tmp_path, kind):
    from click.testing import CliRunner

    from shardwrite.cli import main

    text, code = SCRIPTS[kind]
    script = tmp_path / "script.py"
    script.write_text(text)
    arguments, path = sys.argv, sys.path
    sys.path = list(path)
    try:
        done = CliRunner().invoke(main, ["exec", str(script), "--deep", "-x"])
    finally:
        sys.argv, sys.path = arguments, path
    assert done.exit_code == code


def test_the_library_installs_no_handler(tmp_path):
    before = [
        signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
    ]
    seen = []

    def look(block):
        seen.append(
            [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)]
        )
        return block

    x = oracle.source((8, 8), (8, 8)).map_blocks(look, dtype="u4", meta=np.empty((0, 0), "u4"))
    x.to_sharded_zarr(tmp_path / "x", shards=8, chunks=4)
    assert seen == [before]
