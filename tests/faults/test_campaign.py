"""The table of the campaign tells what was measured, and a release refuses what is old."""

from __future__ import annotations

import json
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import campaign
import left_out
from leftovers import left_over, names_in

ROW = next(row for row in campaign.rows() if row.wanted > 1)
GOOD = {"runs": 800, "vacuous": 0, "acked": 5000, "left": 0, "redone": []}


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Function that stores the results of the only row."""
    monkeypatch.setattr(campaign, "RESULTS", tmp_path / "campaign.jsonl")
    monkeypatch.setattr(campaign, "rows", lambda: iter([ROW]))

    def store(*found, commit="HEAD"):
        lines = [
            {"row": ROW.name, "seed": 100, "commit": commit, "date": "", "numbers": numbers}
            for numbers in found
        ]
        campaign.RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return store


def cell(name):
    head, _, line = campaign.table().splitlines()[:3]
    titles = [title.strip() for title in head.strip("| ").split("|")]
    return [text.strip() for text in line.strip("| ").split("|")][titles.index(name)]


def bound():
    return cell("upper bound on the share of runs with a loss (95 %)")


def test_what_was_not_measured_is_not_zero(results):
    results(GOOD)
    assert cell("left over") == "0"
    results(GOOD, {**GOOD, "left": None})
    assert cell("left over") == "not measured"
    results({name: value for name, value in GOOD.items() if name != "left"})
    assert cell("left over") == "not measured"


def test_bounds_count_runs_and_not_units(results):
    results({**GOOD, "runs": 300, "vacuous": 0})
    assert bound() == "1.0e-02"
    results({**GOOD, "runs": 400, "vacuous": 100})
    assert bound() == "1.0e-02"
    results({**GOOD, "runs": 3})
    assert bound() == "none: too few runs"
    results({**GOOD, "lost": 1})
    assert bound() == "does not hold"


def test_age_is_told_also_where_the_commit_is_not_here(results):
    results(GOOD)
    assert cell("changes since") == "0"
    results(GOOD, commit="0123456789abcdef0123456789abcdef01234567")
    assert cell("changes since") == "unknown"


@pytest.mark.parametrize(
    ("numbers", "commit", "why"),
    [
        ({}, "HEAD", ""),
        ({"runs": 1}, "HEAD", "too few runs"),
        ({"lost": 1}, "HEAD", "lost or went wrong"),
        ({"left": 2}, "HEAD", "left over"),
        ({"left": None}, "HEAD", "not measured"),
        ({}, "0123456789abcdef0123456789abcdef01234567", "not in this clone"),
    ],
)
def test_a_release_refuses_bad_rows(numbers, commit, why, results):
    results({**GOOD, **numbers}, commit=commit)
    found = campaign.refused(most_changes=100)
    assert [why in text for text in found] == [True] * bool(why), found


def test_a_release_refuses_old_rows(results, monkeypatch):
    results(GOOD)
    monkeypatch.setattr(campaign, "n_changes", lambda _: 101)
    assert ["101 changes" in text for text in campaign.refused(most_changes=100)] == [True]
    assert not campaign.refused(most_changes=101)


@pytest.mark.parametrize(
    ("numbers", "n_changes", "is_kept"),
    [({}, 100, True), ({}, 101, False), ({}, None, False), ({"left": None}, 0, False)],
)
def test_measuring_anew_removes_what_a_release_refuses(
    results, monkeypatch, numbers, n_changes, is_kept
):
    results({**GOOD, **numbers})
    monkeypatch.setattr(campaign, "n_changes", lambda _: n_changes)
    campaign.remove_old(replace(ROW, name="another row"))
    assert len(campaign.stored()) == 1
    campaign.remove_old(ROW)
    assert bool(campaign.stored()) == is_kept


def test_a_row_whose_harness_cannot_count_what_is_left_over(results, monkeypatch):
    monkeypatch.setattr(campaign, "rows", lambda: iter([replace(ROW, counts_left=False)]))
    results({**GOOD, "left": None})
    assert cell("left over") == ""
    assert not campaign.refused(most_changes=100)


def test_each_operation_of_a_row_is_a_batch(results, monkeypatch):
    row, struck = replace(ROW, wanted=1, names=("one", "two")), []

    def run(_, n_runs, seed, name):
        struck.append((n_runs, seed, name))
        return campaign.Numbers(runs=4, left=0)

    monkeypatch.setattr(campaign, "rows", lambda: iter([row]))
    monkeypatch.setattr(campaign.Row, "run", run)
    monkeypatch.setattr(campaign, "commit_of_code", lambda: "HEAD")
    results()
    campaign.run(0.1, "", is_anew=False)
    campaign.run(0.1, "", is_anew=False)
    assert struck == [(1, 100, "one"), (1, 101, "two")]
    assert campaign.refused(most_changes=100) == []
    assert (cell("runs"), bound()) == ("8", "every case")
    results(GOOD)
    assert ["too few runs" in text for text in campaign.refused(most_changes=100)] == [True]


@pytest.mark.long
def test_the_command_for_a_release_says_no_to_the_stored_rows():
    """No row is new enough for it."""
    command = [sys.executable, campaign.HERE / "campaign.py", "check", "--most-changes", "-1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert ROW.name in done.stdout


@pytest.mark.long
def test_cases_that_the_long_tier_leaves_out_are_run():
    found = left_out.run("tests/format/test_order.py", "-p", "no:cacheprovider")
    numbers = campaign.of_left_out(found)
    assert numbers.runs > 10
    assert (numbers.left, numbers.troubles) == (0, [])


def test_left_over_are_new_names_that_are_no_part_of_an_array(tmp_path):
    (tmp_path / "old").mkdir()
    before = names_in(tmp_path)
    for name in (
        "x/zarr.json",
        "x/c/0/1",
        "x/shardwrite-receipt.json",
        "x/c/0/.1.run.1.swtmp",
        "x.shardwrite/run-1/plan.json",
        "g/zarr.json",
        "gone/c/0/0",
        "log",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = left_over(tmp_path, before, own=("log",))
    assert set(found) == {
        "x/c/0/.1.run.1.swtmp",
        "x.shardwrite",
        "x.shardwrite/run-1",
        "x.shardwrite/run-1/plan.json",
        "gone",
        "gone/c",
        "gone/c/0",
        "gone/c/0/0",
    }


def test_the_crash_test_is_told_by_what_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(campaign, "CRASH", tmp_path)
    assert campaign.crash_test() == []
    run = {
        "commits": ["abc"],
        "hours": 1.5,
        "restarts": 700,
        "acked": 1600,
        "operations": {"update": 1000, "write": 500},
        "faults": {"kill": 300, "cut": 20},
        "troubles": {"torn": 1},
    }
    found = {"bug": "seen", "seconds": 8.2, "said": "lost", "control": ""}
    missed = {"bug": "unseen", "seconds": 600, "said": "", "control": ""}
    bugs = [found, missed, {**found, "bug": "also without it", "control": "lost"}]
    for name, lines in (("runs", [run, run]), ("bugs", bugs)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = "\n".join(campaign.crash_test())
    assert "2 runs of 3.0 hours in all, on abc: 1,400 restarts, 3,000 operations" in text
    assert "600 kill, 40 cut. Findings: 0 lost, 0 wrong, 2 torn" in text
    assert "found 1 of 3 defects" in text
    assert "Not found: unseen, also without it." in text


@pytest.mark.parametrize("row", list(campaign.rows()), ids=lambda row: row.name)
def test_the_harness_of_each_row_takes_its_command(row, monkeypatch, capsys):
    """A harness stops at its first argument that it does not know, and here at the last."""
    name = shlex.quote(row.names[-1]) if row.names else ""
    script, *arguments = shlex.split(row.command.format(n=1, seed=1, name=name))
    monkeypatch.setattr(sys, "argv", [script, *arguments, "--json", "out.json", "--help"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(campaign.HERE / script), run_name="__main__")
    assert ended.value.code == 0, capsys.readouterr().err
