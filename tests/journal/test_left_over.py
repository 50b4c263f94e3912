"""Directories of run state that killed processes have left among temporary files."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import seams
from forks import python

from shardwrite.journal.state_work import begin_private

PROGRAM = """
import os, pathlib, sys
from shardwrite.journal.state_work import begin_private
begin_private(pathlib.Path(sys.argv[1]))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def begun(directory):
    """A process that has begun to use a directory, and its number behind the command."""
    process = subprocess.Popen(
        [*python(), "-c", PROGRAM, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, int(process.stdout.readline())


def other(directory, **fields):
    directory.mkdir()
    text = json.dumps(seams.this_process(**fields))
    (directory / "process.json").write_text(text)


def test_what_a_killed_process_has_left_is_removed(tmp_path):
    killed, number = begun(tmp_path / "shardwrite-killed")
    living, _ = begun(tmp_path / "shardwrite-living")
    with killed, living:
        os.kill(number, signal.SIGKILL)
        killed.wait(30)
        other(tmp_path / "shardwrite-elsewhere", boot="another", pid=1)
        other(tmp_path / "others-dead", pid=2**22 + 1)
        (tmp_path / "shardwrite-unknown").mkdir()
        (tmp_path / "shardwrite-torn").mkdir()
        (tmp_path / "shardwrite-torn" / "process.json").write_text("{")
        assert (tmp_path / "shardwrite-killed").exists()
        begin_private(tmp_path / "shardwrite-me")
        begin_private(tmp_path / "shardwrite-me")
        found = sorted(os.listdir(tmp_path))
        living.stdin.close()
    names = ("elsewhere", "living", "me", "torn", "unknown")
    assert found == ["others-dead", *(f"shardwrite-{name}" for name in names)]
