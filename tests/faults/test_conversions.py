"""A conversion that is killed goes on, and every encoded chunk that passes is the same to the byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from conversions import BESIDE, IN_THEIR_PLACE, OF_HDF5
from harness import struck


@pytest.mark.long
@pytest.mark.parametrize(
    ("names", "n_kills"),
    [(BESIDE, 10), (OF_HDF5, 8), (IN_THEIR_PLACE, 8)],
    ids=["beside", "hdf5", "in place"],
)
def test_a_killed_conversion_goes_on(tmp_path, names, n_kills):
    """A sample: the campaign has hundreds of each."""
    words = "--kills", str(n_kills), "--seed", "3"
    found = struck(tmp_path, "kill at any moment", *names, *words)
    assert found["kills"] >= n_kills
    assert found["vacuous"] < found["cases"], "some kills must interrupt something"
