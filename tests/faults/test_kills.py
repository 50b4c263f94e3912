"""SIGKILL at any moment: acknowledged shards are there, the same call makes the rest, and little is written twice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kills.py")


def run(tmp_path, *arguments):
    out = tmp_path / "out.json"
    ended = subprocess.run([sys.executable, SCRIPT, *arguments, "--json", out], capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(out.read_text())
    print(json.dumps(found["summary"]))
    return found["summary"], found["kills"]


def check_kills(summary, kills, *, most_vacuous):
    assert summary["troubles"] == []
    assert summary["lost"] == 0
    assert summary["vacuous"] <= most_vacuous, "most kills must interrupt something"
    for kill in kills:
        assert kill["redone_acked"] == 0, kill
        assert kill["redone"] <= kill["in_flight"], kill


def test_a_killed_run_goes_on(tmp_path):
    check_kills(*run(tmp_path, "--kills", "10", "--seed", "7"), most_vacuous=7)


@pytest.mark.long
@pytest.mark.parametrize("seed", ["0", "1"])
def test_two_hundred_kills(tmp_path, seed):
    check_kills(*run(tmp_path, "--kills", "160", "--seed", seed), most_vacuous=60)


@pytest.mark.long
def test_ten_thousand_shards_killed_twenty_times(tmp_path):
    summary, kills = run(tmp_path, "--one-array", "--shards", "10000", "--kills", "20")
    check_kills(summary, kills, most_vacuous=1)
    assert summary["kills"] == 21
    assert sum(not kill["finished"] for kill in kills) >= 20
