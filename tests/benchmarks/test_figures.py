"""The page of figures: how numbers are stored, drawn and told, and what is refused before a release."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import figures
from benchmarks.bars import bars
from benchmarks.questions import MEASUREMENTS, QUESTIONS, WHY_MISSED
from benchmarks.results import Number, Results, numbers_of, raw_side_by_side, report_of

ROOT = Path(__file__).parent.parent.parent
FACTS = {
    "cpu": "x",
    "cores": "2",
    "memory gib": "1",
    "file system": "tmpfs",
    "kernel": "1",
    "date": "2026-11-29",
    "commit": "1234567",
    "seconds": "60",
    "python": "3.11.7",
}
# Small runs of what these measure with are tested elsewhere, too.
LEFT_OUT = ("bare-loop", "cold", "durability", "precomputed", "stream", "verify")
QUESTION = replace(
    QUESTIONS["aligned"],
    cases=(),
    names=(),
    peers=("tensorstore",),
    causes={"a": "It knows more"},
    cause="",
)


def in_campaign(name):
    return [pytest.mark.campaign] * (name in LEFT_OUT)


def results_of(**values):
    """Rates of shardwrite and tensorstore, by case."""
    numbers = [
        Number(case, by, "MB/s", value)
        for case, pair in values.items()
        for by, value in zip(("shardwrite", "tensorstore"), pair, strict=True)
    ]
    return Results(dict(FACTS), numbers)


def test_numbers_are_stored_as_csv_with_their_commit(tmp_path):
    stored = results_of(a=(1.25, 3))
    stored.numbers.append(Number("a, b", "shardwrite", "MB/s", 1e9 / 3, "2"))
    stored.write(tmp_path / "x.csv")
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert "# commit: 1234567" in lines
    assert lines[len(FACTS) : len(FACTS) + 2] == [
        "case,by,quantity,repeat,value",
        "a,shardwrite,MB/s,all,1.25",
    ]
    again = Results.read(tmp_path / "x.csv")
    assert again.facts == stored.facts
    assert again.numbers[:2] == stored.numbers[:2]
    assert again.numbers[2].value == pytest.approx(1e9 / 3, rel=1e-9)


def test_values_are_medians_of_the_repeats():
    repeats = [Number("a", "shardwrite", "MB/s", value, str(value)) for value in (1, 9, 2)]
    assert Results({}, repeats).values("MB/s") == {"a": {"shardwrite": 2}}


@pytest.mark.parametrize(
    ("kind", "printed", "wanted"),
    [
        (
            "table 2 1",
            "| codec | side | by | MB/s | size |\n|---|---|---|---:|---:|\n| zstd | 64³ | **taken** | 1,150 | x |\n",
            [Number("zstd, 64³", "taken", "MB/s", 1150)],
        ),
        (
            "streams",
            "| taken by | MB/s |\n|---|---|\n| bare | 9 |\n| shardwrite zstd | 4 |\n",
            [Number("raw", "bare", "MB/s", 9), Number("zstd", "shardwrite", "MB/s", 4)],
        ),
        (
            "scale",
            """plan line: 10,000 shards, 20,000 tasks: 0.01 s, peak 119 MiB (1 by the plan), plan.json 2,866 bytes
local shards: 99,856 shards, first: 2.16 s, peak 252 MiB
""",
            [
                Number("10,000 shards", "plan line", "s", 0.01),
                Number("10,000 shards", "plan line", "MiB, at the peak", 119),
                Number("99,856 shards", "local first", "s", 2.16),
                Number("99,856 shards", "local first", "MiB, at the peak", 252),
            ],
        ),
        (
            "throughput",
            """threads 1x2, weak zstd C none shards 256x256x256: 211 MB/s, 16 files
processes 2x1, strong zstd C none shards 256x256x256: 222 MB/s, 8 files
""",
            [
                Number("weak scaling", "2 threads", "MB/s", 211),
                Number("strong scaling", "2 processes of 1", "MB/s", 222),
            ],
        ),
    ],
)
def test_what_commands_print_is_read(kind, printed, wanted, tmp_path):
    assert numbers_of(kind, printed, tmp_path) == wanted


def test_each_repeat_of_the_comparison_is_kept_and_a_failure_is_no_number():
    ok = {"status": "ok", "seconds": 2, "decoded_bytes": 4e6, "encoded_bytes": 1e6}
    ok |= {"peak_anonymous_bytes": 2**20, "expected_anonymous_bytes": 2**21}
    document = {"cases": {"zstd-64": {"repeats": {"shardwrite": [ok, {**ok, "seconds": 1}]}}}}
    numbers = list(raw_side_by_side(document))
    rates = [(one.repeat, one.value) for one in numbers if one.quantity == "MB/s"]
    assert rates == [("1", 2), ("2", 4)]
    row = report_of(Results({}, numbers)).rows["zstd-64"]
    assert (row.rate("shardwrite"), row.memory("shardwrite"), row.expected("shardwrite")) == (
        3,
        1,
        2,
    )
    document["cases"]["zstd-64"]["repeats"]["tensorstore"] = [{"status": "FAIL", "reason": "torn"}]
    with pytest.raises(ValueError, match="torn"):
        list(raw_side_by_side(document))


def test_a_loss_is_what_a_peer_does_clearly_better():
    results = results_of(a=(90, 100), equal=(96, 100), better=(110, 100))
    (loss,) = QUESTION.losses(results)
    assert (loss.case, loss.by, loss.cause) == ("a", "tensorstore", "It knows more")
    less = replace(QUESTION, more_is_better=False)
    assert [loss.case for loss in less.losses(results)] == ["better"]


def test_lengths_of_bars_follow_the_axis():
    def lengths(*, is_log):
        drawn = bars(
            {"a": {"x": 10, "y": 100, "z": 1000}}, title="t", unit="s", ours=("x",), is_log=is_log
        )
        assert drawn.count('class="ours"/>') == 1
        assert ("logarithmic" in drawn) == is_log
        return [float(n) for n in re.findall(r'width="([\d.]+)" height="13"', drawn)]

    first, second, third = lengths(is_log=False)
    assert (third / second, second / first) == pytest.approx((10, 10), rel=0.02)
    first, second, third = lengths(is_log=True)
    assert third - second == pytest.approx(second - first, abs=0.2)


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A page for which everything is stored, of a commit without later changes."""
    monkeypatch.setattr(figures, "n_changes", lambda _commit, *_paths: 0)
    cold = replace(QUESTION, title="And cold?", of="cold")
    monkeypatch.setattr(figures, "QUESTIONS", {"aligned": QUESTION, "cold": cold})
    directory = tmp_path / "page"
    for name in MEASUREMENTS:
        results_of(a=(3, 2)).write(directory / f"{name}.csv")
    return directory


def test_a_release_refuses_what_is_old_missing_changed_or_unexplained(stored, monkeypatch):
    def reasons():
        return list(figures.check(stored, most_changes=100))

    assert reasons() == []
    (stored / "update.csv").unlink()
    assert reasons() == ["update: was never measured"]
    dirty = results_of(a=(3, 2))
    dirty.facts["commit"] = "1234567+"
    dirty.write(stored / "update.csv")
    assert reasons() == ["update: files differed from the commit 1234567"]
    results_of(a=(3, 2)).write(stored / "update.csv")
    results_of(b=(1, 2)).write(stored / "cold.csv")
    assert reasons() == ["cold: nobody says why tensorstore is better in b"]
    results_of().write(stored / "cold.csv")
    assert reasons() == ["cold: cold has no numbers for it"]
    results_of(a=(3, 2)).write(stored / "cold.csv")
    (stored / "aims.txt").write_text("| an aim | 1 | 0.5 | ≥ 1 | **missed** |\n")
    assert reasons() == ["nobody says why this aim is missed: an aim: 0.5"]
    (stored / "aims.txt").unlink()
    monkeypatch.setattr(figures, "n_changes", lambda _commit, *paths: 101 * (len(paths) == 1))
    assert "codecs: is 101 changes old" in reasons()
    assert "side-by-side: is 101 changes old" not in reasons()
    monkeypatch.setattr(figures, "n_changes", lambda _commit, *_paths: None)
    assert all("fetch all commits" in reason for reason in reasons())


def test_the_page_names_commit_changes_and_losses(stored, monkeypatch):
    results_of(a=(90, 100)).write(stored / "side-by-side.csv")
    (stored / "cold.csv").unlink()
    page = stored.with_suffix(".md")
    figures.page(page)
    text = page.read_text()
    assert "- **a**: tensorstore has 100, and we have 90. It knows more." in text
    assert "measured at the commit 1234567 on 2026-11-29. 0 changes of" in text
    assert "This was not measured yet" in text
    section = text.partition(f"## {QUESTION.title}")[2]
    assert section.index("Warm: ") < section.index("page/aligned.svg")
    assert (stored / "aligned.svg").read_text().count("<rect") == 3
    assert not (stored / "cold.svg").exists()


def test_the_committed_page_is_made_of_what_is_stored(tmp_path):
    """But how many changes came since is that of the day on which it was made."""
    committed = ROOT / "docs" / "figures.md"
    made = tmp_path / "figures.md"
    made.with_suffix("").mkdir()
    for path in committed.with_suffix("").iterdir():
        if path.suffix in (".csv", ".txt"):
            (made.with_suffix("") / path.name).write_bytes(path.read_bytes())
    figures.page(made)

    def text(path):
        return re.sub(r"(An unknown number of|[\d,]+) changes of ", "", path.read_text())

    assert text(made) == text(committed), "python -m benchmarks.figures page"
    for path in made.with_suffix("").glob("*.svg"):
        assert path.read_bytes() == (committed.with_suffix("") / path.name).read_bytes(), path.name


@pytest.mark.parametrize("name", [name for name, one in QUESTIONS.items() if one.peers])
def test_a_loss_of_any_case_has_a_cause(name):
    """So that new numbers need no new text."""
    question = QUESTIONS[name]
    cases = question.cases or {**question.causes, "any other": ""}
    if name in ("bare-loop", "durability"):  # all cases that they measure are named
        cases = question.causes
    assert [case for case in cases if not question.causes.get(case, question.cause)] == []


def test_every_loss_and_missed_aim_that_is_stored_has_a_cause():
    reasons = figures.check(ROOT / "docs" / "figures", most_changes=10**6)
    assert not [reason for reason in reasons if "nobody" in reason]
    aims = (ROOT / "docs" / "figures" / "aims.txt").read_text()
    assert all(f"| {aim} |" in aims for aim in WHY_MISSED)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * (name != "plans") + in_campaign(name))
        for name in MEASUREMENTS
    ],
)
def test_the_command_measures_stores_and_draws(name, tmp_path):
    for module in {"precomputed": ["cloudvolume"], "datasets": ["xarray", "zarrs"]}.get(name, ()):
        pytest.importorskip(module)
    page = tmp_path / "page.md"
    command = [sys.executable, "-m", "benchmarks.figures", "--tiny", "--only", name]
    places = ("--memory", tmp_path / "memory", "--disk", tmp_path / "disk", "--output", page)
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = Results.read(tmp_path / "page" / f"{name}.csv")
    assert results.numbers
    assert results.facts.keys() >= {"commit", "date", "cores", "command", "seconds", "zarr"}
    shown = [question for question in QUESTIONS.values() if question.of == name]
    assert all(any(one.quantity == q.quantity for one in results.numbers) for q in shown)
    assert "](page/" in page.read_text()


@pytest.mark.long
def test_a_tiny_measurement_never_becomes_the_committed_page(tmp_path):
    command = [sys.executable, "-m", "benchmarks.figures", "--tiny"]
    places = ("--memory", tmp_path, "--disk", tmp_path)
    done = subprocess.run([*command, *places], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "another --output" in done.stderr
