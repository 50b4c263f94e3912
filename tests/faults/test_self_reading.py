"""Updates that read what they change are as if made once, wherever they are killed; see
`self_reading.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiers import some

sys.path.insert(0, str(Path(__file__).parent))
from harness import summary_of


def check(tmp_path, where, n_cases, seed, begin=0):
    words = ["--where", where, "--cases", str(n_cases)]
    words += ["--seed", str(seed), "--begin", str(begin)]
    found = summary_of(tmp_path, "self_reading.py", *words, seconds=900)
    assert not found["troubles"], found["troubles"][:3]
    assert (found["lost"], found["left"]) == (0, 0)
    assert found["vacuous"] < n_cases, "something must be interrupted"


@pytest.mark.long
@pytest.mark.parametrize("begin", some([8, 13], 8))
def test_killed_before_some_effects(tmp_path, begin):
    """Two calls each, among them both swaps."""
    check(tmp_path, "threads", 2, 4, begin)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_call_with_every_strategy(tmp_path):
    check(tmp_path, "threads", 12, 5)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("where", ["workers", pytest.param("moto", marks=pytest.mark.campaign)])
def test_killed_on_workers_and_in_a_bucket(tmp_path, where):
    if where == "moto":
        pytest.importorskip("moto.server", reason="moto is not installed")
    check(tmp_path, where, 4, 6)
