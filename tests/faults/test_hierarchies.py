"""Kills of calls that write whole hierarchies by one run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import struck
from hierarchies import HIERARCHIES
from tiers import some


@pytest.mark.long
@pytest.mark.parametrize("name", some(HIERARCHIES, "tree of 6 arrays"))
def test_kills_of_a_hierarchy(tmp_path, name):
    words = name, "--kills", "3", "--seed", "1"
    assert struck(tmp_path, "kill at any moment", *words)["kills"] >= 3


@pytest.mark.long
@pytest.mark.campaign
@pytest.mark.parametrize("name", HIERARCHIES)
def test_many_kills_of_a_hierarchy(tmp_path, name):
    words = name, "--kills", "9", "--seed", "2"
    assert struck(tmp_path, "kill at any moment", *words)["kills"] >= 9
