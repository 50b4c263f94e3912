"""The crash test for a moment, its checker, and some of the bugs that it must find."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import checker
import preloaded
import seeds
from checker import Change, State

HERE = Path(__file__).parent
needs_shim = pytest.mark.skipif(bool(preloaded.missing()), reason=preloaded.missing())
OLD = State(np.full((8, 8), 1), "a")
UPDATE = Change("a", "put", [[0, 8], [2, 6]], 2, [4, 4], begin=10, end=20)


def ran(tmp_path, *arguments):
    """Results of a run that finds nothing."""
    command = [sys.executable, "-m", "tests.crash", "--directory", tmp_path / "crash", *arguments]
    ended = subprocess.run(
        [*map(str, command)],
        cwd=HERE.parent.parent,
        env={name: value for name, value in os.environ.items() if name != "SHIM"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-6000:] + ended.stderr[-3000:]
    results = (tmp_path / "crash" / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in results]


def seen_with(*puts):
    """The array as it was, with versions put into boxes."""
    versions = OLD.versions.copy()
    for box, version in puts:
        versions[tuple(slice(a, b) for a, b in box)] = version
    return checker.values_of_versions(versions, "a")


def test_values_tell_their_version_place_and_array():
    seen = checker.values("a", [[0, 8], [0, 8]], 7)
    assert (checker.versions_of(seen, "a") == 7).all()
    assert (checker.versions_of(np.roll(seen, 1, 1), "a") == -1).all()
    assert (checker.versions_of(seen, "b") == -1).all()
    assert (checker.versions_of(seen ^ np.uint32(1), "a") == -1).all()
    part = checker.values("a", [[2, 4], [3, 5]], 7)
    np.testing.assert_array_equal(part, seen[2:4, 3:5])


@pytest.mark.parametrize(
    ("seen", "acked", "word"),
    [
        (seen_with(), False, ""),
        (seen_with(([[0, 4], [2, 4]], 2)), False, ""),  # one of its four shards
        (seen_with((UPDATE.box, 2)), True, ""),
        (seen_with(), True, "lost"),
        (seen_with(([[0, 4], [2, 6]], 2)), True, "lost"),
        (seen_with(([[0, 2], [2, 4]], 2)), False, "torn"),
        (seen_with((UPDATE.box, 3)), False, "lost"),
        (np.roll(seen_with(), 1, 0), False, "wrong"),
        (seen_with()[:4], False, "lost"),
        (None, True, "lost"),
    ],
)
def test_verdicts(seen, acked, word):
    update = Change(**{**vars(UPDATE), "acked": acked})
    texts = checker.judge(OLD, seen, [update])
    assert {text.partition(":")[0] for text in texts} == ({word} if word else set())


def test_verdicts_on_two_changes_of_one_shard():
    first = Change(**{**vars(UPDATE), "acked": True})
    later = Change("a", "put", [[0, 4], [3, 4]], 3, [4, 4], begin=30, end=40, acked=True)
    both = seen_with((first.box, 2), (later.box, 3))
    assert not checker.judge(OLD, both, [first, later])
    assert checker.judge(OLD, seen_with((first.box, 2)), [first, later])
    at_once = Change(**{**vars(later), "begin": 15})
    assert not checker.judge(OLD, seen_with((first.box, 2)), [first, at_once])
    assert checker.judge(OLD, seen_with((later.box, 3)), [first, later])


@pytest.mark.parametrize(("begin", "is_lost"), [(15, False), (30, True)])
def test_an_array_is_replaced_while_it_grows(begin, is_lost):
    made = Change("a", "new", [[0, 8], [0, 6]], 2, begin=10, end=20, acked=True)
    grown = Change("a", "grow", [[8, 10], [0, 6]], 3, begin=begin, end=40, acked=True)
    seen = checker.values("a", made.box, 2)
    assert bool(checker.judge(OLD, seen, [made, grown])) == is_lost


@needs_shim
def test_a_few_rounds(tmp_path):
    lines = ran(tmp_path, "--rounds", "5", "--seed", "3", "--worlds", "directory")
    assert len(lines) == 5
    assert sum(line["fired"] for line in lines) > 1
    assert sum(line["acked"] for line in lines) > 5


@needs_shim
@pytest.mark.long
@pytest.mark.parametrize("world", ["directory", "small disk", "power", "bucket"])
def test_some_rounds_of_each_world(tmp_path, world):
    lines = ran(tmp_path, "--rounds", "4", "--seed", "1", "--worlds", world)
    if not lines:
        pytest.skip(f"no {world} here")
    assert any(line["fired"] for line in lines)


@needs_shim
@pytest.mark.long
@pytest.mark.parametrize("bug", ["short-write-ignored"])
def test_a_seeded_bug_is_found(bug):
    found = seeds.hunt(bug, 5, 1)
    assert found["said"]
    assert not found["control"]


def test_every_seeded_bug_fits_the_package(tmp_path):
    names = {path.stem for path in (HERE / "bugs").glob("*.patch")}
    assert names <= set(seeds.BUGS)
    for bug in seeds.BUGS:
        patch = next(p / f"{bug}.patch" for p in seeds.PLACES if (p / f"{bug}.patch").exists())
        command = ["patch", "-p1", "--quiet", "--fuzz=0", "--force", "--dry-run"]
        with patch.open() as text:
            ended = subprocess.run(
                command, stdin=text, cwd=HERE.parent.parent, check=False, capture_output=True
            )
        assert ended.returncode == 0, bug
