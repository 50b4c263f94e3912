"""Calls enter the rooms that they need, and no others; `entered.py` traces them in fresh processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from entered import Entered, entered_by

# Rooms that any writer needs, and the front
WRITING = {
    *("_lazy", "checks", "codecs", "config", "encode", "engines", "entry", "format", "front"),
    *("grid", "host", "journal", "operations", "options", "place", "plan", "records", "results"),
    *("runs", "seams", "stores", "write"),
}
# What only updates, changes in place, arrays that are there, and blocks that wait need
OF_OTHERS = {
    *("operations/region.py", "runs/region_plan.py", "runs/kept.py", "runs/reads.py"),
    *("journal/undo.py", "journal/lock.py", "write/assemble.py", "write/copying.py"),
    *("write/spool.py", "format/manifest.py", "operations/icechunk_sessions.py"),
}
MOST_LISTINGS = 17

pytestmark = pytest.mark.usefixtures("children_as_users_start_them")


def check(found: Entered, rooms: set[str]) -> None:
    assert found.rooms <= rooms, found.rooms - rooms
    assert not [file for file in found.functions if "bucket" in file]


def test_a_write_enters_no_room_of_updates_buckets_conversions_or_wings():
    found = entered_by("a write")
    check(found, WRITING)
    assert not found.functions.keys() & OF_OTHERS
    assert "write/tasks.py" in found.functions
    assert found.n_listings <= MOST_LISTINGS


def test_an_update_reads_too():
    found = entered_by("an update")
    check(found, WRITING | {"read"})
    assert "runs/region_plan.py" in found.functions


@pytest.mark.long
def test_a_reshard_in_place_enters_the_wing_of_conversions_and_what_tells_sources_apart():
    found = entered_by("a reshard in place")
    check(found, WRITING | {"read", "convert", "sources", "volumes"})
    assert "convert/in_place.py" in found.functions


@pytest.mark.long
def test_a_worker_enters_nothing_of_the_driver():
    found = entered_by("a write on a worker, there")
    check(found, WRITING - {"operations", "entry", "results"})
    assert "write/tasks.py" in found.functions
    assert not found.functions.keys() & OF_OTHERS
