"""Kills of calls that write whole hierarchies by one run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import hierarchies
from tiers import some


@pytest.mark.long
@pytest.mark.parametrize("kind", some(hierarchies.KINDS, "tree"))
def test_kills_of_a_hierarchy(kind):
    found = hierarchies.kill_many(kind, n_arrays=6, n_kills=3, seed=1)
    assert not found.troubles
    assert found.kills == 3


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize("kind", hierarchies.KINDS)
def test_many_kills_of_a_hierarchy(kind):
    found = hierarchies.kill_many(kind, n_arrays=9, n_kills=9, seed=2)
    assert not found.troubles
    assert found.kills == 9
