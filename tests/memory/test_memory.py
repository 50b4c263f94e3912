"""Peak anonymous memory of worker processes follows the plan's estimate, whatever is written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.usefixtures("children_as_users_start_them"),
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not Path("/proc/self/status").exists(), reason="RssAnon is read from Linux's /proc"
    ),
]
SLACK_NBYTES = 64 * 2**20  # what allocators keep, and the scheduler's own messages


def measure(case: str, target: Path, memory_limit: str = "512MiB") -> dict:
    script = Path(__file__).with_name("measure.py")
    ended = subprocess.run(
        [sys.executable, str(script), case, str(target), memory_limit],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    measured = json.loads(ended.stdout.strip().splitlines()[-1])
    print(case, measured)
    return measured


@pytest.mark.parametrize("case", ["compressible", "incompressible", "slabs"])
def test_peak_memory_stays_within_the_estimate(case, tmp_path):
    measured = measure(case, tmp_path)
    assert not measured["restarted"], "a worker went over its limit and was restarted"
    assert max(measured["peaks"]) <= measured["estimate"] + SLACK_NBYTES
    assert measured["estimate"] <= measured["limit"]
    assert measured["reported"], "processes that commit shards tell their peaks"
    for told in measured["reported"]:
        nearest = min(measured["peaks"], key=lambda seen: abs(seen - told))
        assert told == pytest.approx(nearest, rel=0.15)
    # a test of the bound needs data that would break it
    assert measured["raw_nbytes"] >= 2 * measured["limit"]
    if case == "incompressible":
        assert measured["stored_nbytes"] > 0.99 * measured["raw_nbytes"]
        assert measured["spool_ratio"] < 1, (
            "incompressible units of this shard have to go to part files"
        )
    if case == "compressible":
        assert measured["raw_nbytes"] > 7.5 * measured["stored_nbytes"]
