"""What one reads to add something: the map names it, it is little, and the toys need no more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import reading

TOYS = {
    "a write strategy": "largest_first",
    "another store": "database",
    "a format of shards": "sealed",
    "another source of files": "hexes",
    "another operation": "more_operations",
    "a wing: a package that adds commands, formats and operations": "negatives",
}
WAS = {  # in lines, before core and wings were parted, when one read whole files
    "a write strategy": 378,
    "another store": 423,
    "a format of shards": 576,
    "another source of files": 300,
    "another operation": 597,
    "a fault, or what faults strike": 920,
}


@pytest.mark.parametrize("what", TOYS)
def test_the_map_names_what_a_toy_takes(what):
    reading.check_toy(reading.HERE / f"{TOYS[what]}.py", reading.parts_to_read(what))


def test_one_reads_two_thirds_of_what_it_was_at_most():
    lines = {what: reading.n_lines(reading.parts_to_read(what)) for what in TOYS | WAS}
    for what, n in lines.items():
        print(f"{what:62} {WAS.get(what, '-'):>5} {n:5}")
    assert all(lines[what] < was for what, was in WAS.items())
    assert sum(lines[what] for what in WAS) <= sum(WAS.values()) * 2 / 3
    assert max(lines.values()) <= 500
