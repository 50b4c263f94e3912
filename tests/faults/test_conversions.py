"""A conversion that is killed goes on, and every encoded chunk that passes is the same to the byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import summary_of


def run(tmp_path, *arguments):
    return summary_of(tmp_path, "conversions.py", *arguments)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "n_kills"),
    [((), 10), (("--hdf5",), 8), (("--in-place",), 6)],
    ids=["beside", "hdf5", "in place"],
)
def test_a_killed_conversion_goes_on(tmp_path, kind, n_kills):
    """A sample: the campaign has hundreds of each."""
    found = run(tmp_path, *kind, "--kills", str(n_kills), "--seed", "3")
    assert not found["troubles"], found["troubles"][:5]
    assert found["vacuous"] <= 2 * n_kills // 3, "some kills must interrupt something"
    assert found["chunks that passed"] > 0
