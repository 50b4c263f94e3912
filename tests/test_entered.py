"""Calls enter the rooms that they need, and no others; `entered.py` traces them in processes that
import the package anew."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from forks import python

sys.path.insert(0, str(Path(__file__).parent))
from entered import Entered, entered_by

# Rooms that any writer needs, and the front
WRITING = {
    *(
        "_dataclass",
        "_lazy",
        "checks",
        "codecs",
        "config",
        "encode",
        "engines",
        "entry",
        "format",
        "front",
    ),
    *("grid", "host", "journal", "operations", "options", "place", "plan", "records", "results"),
    *("runs", "seams", "stores", "write"),
}
# What only updates, changes in place, arrays that are there, and blocks that wait need
OF_OTHERS = {
    *("operations/region.py", "runs/region_plan.py", "runs/kept.py", "runs/reads.py"),
    *("journal/undo.py", "journal/lock.py", "write/assemble.py", "write/copying.py"),
    *("write/spool.py", "format/manifest.py", "operations/icechunk_sessions.py"),
}
MOST_LISTINGS = 11


def check(entered: Entered, rooms: set[str]) -> None:
    assert entered.rooms <= rooms, entered.rooms - rooms
    assert not [file for file in entered.functions if "bucket" in file]


def test_a_write_enters_no_room_of_updates_buckets_conversions_or_wings():
    entered = entered_by("a write", python=python(package=False))
    check(entered, WRITING)
    assert not entered.functions.keys() & OF_OTHERS
    assert "write/tasks.py" in entered.functions
    assert entered.n_listings <= MOST_LISTINGS


def test_an_update_reads_too():
    entered = entered_by("an update", python=python(package=False))
    check(entered, WRITING | {"read"})
    assert "runs/region_plan.py" in entered.functions


@pytest.mark.long
def test_a_reshard_in_place_enters_the_wing_of_conversions_and_what_tells_sources_apart():
    entered = entered_by("a reshard in place", python=python(package=False))
    check(entered, WRITING | {"read", "convert", "sources", "volumes"})
    assert "convert/in_place.py" in entered.functions


@pytest.mark.long
@pytest.mark.usefixtures("children_as_users_start_them")
def test_a_worker_enters_nothing_of_the_driver():
    entered = entered_by("a write on a worker, there")
    check(entered, WRITING - {"operations", "entry", "results"})
    assert "write/tasks.py" in entered.functions
    assert not entered.functions.keys() & OF_OTHERS
