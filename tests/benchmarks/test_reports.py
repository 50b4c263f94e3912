"""What the side-by-side comparison makes of its figures, and the commands of the page of all
figures."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest
from forks import python
from tiers import some

from benchmarks.aims import aims_markdown, memory_markdown
from benchmarks.cases import CASES, CODECS
from benchmarks.codecs import IMPLEMENTATIONS, measure
from benchmarks.lines import lines, rates_of
from benchmarks.questions import MEASUREMENTS
from benchmarks.report import Report
from benchmarks.results import Results
from benchmarks.scale import STEPS

ROOT = Path(__file__).parent.parent.parent
MB = 10**6

COMMANDS = [text for one in MEASUREMENTS.values() for text in (*one.commands, *one.tiny)]


def measured(rate, memory=10, expected=10):
    """What `benchmarks.one` says of a write at so many MB/s."""
    return {
        "status": "ok",
        "seconds": 100 / rate,
        "decoded_bytes": 100 * MB,
        "encoded_bytes": 50 * MB,
        "peak_anonymous_bytes": memory * 2**20,
        "expected_anonymous_bytes": expected * 2**20,
    }


def report_of(rates):
    """One repeat of each; rates by case and contestant."""
    settings = {"scale": "small", "threads": 2, "repeats": 1, "once_above": None}
    report = Report(machine={}, versions={}, settings=settings)
    for case, found in rates.items():
        for name, figures in found.items():
            report.add(
                CASES[case], name, figures if isinstance(figures, dict) else measured(figures)
            )
    return report


def line_of(text, what):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {what} |")]
    return line


def test_aims_are_ratios_of_one_run():
    text = aims_markdown(
        report_of(
            {
                "zstd-32": {
                    "shardwrite": 200,
                    "dask+zarr-python": 100,
                    "tensorstore": 160,
                    "bare-loop": 400,
                },
                "zstd-16": {
                    "shardwrite": 200,
                    "dask+zarr-python": 10,
                    "tensorstore": 250,
                    "bare-loop": 220,
                },
                "small-blocks": {
                    "shardwrite": 150,
                    "dask+zarr-python": 50,
                    "dask+zarrs": 120,
                    "tensorstore": 300,
                },
                "many-shards": {"shardwrite": 100, "dask+zarr-python": 5, "tensorstore": 100},
            }
        )
    )
    both = [
        line for line in text.splitlines() if line.startswith("| aligned, over the best peer |")
    ]
    assert "least 0.80 (zstd-16); 1 of 2 reach it" in both[0]
    assert "**missed**" in both[0]
    assert "geometric mean 1.00" in both[1]
    assert "least 0.50 (zstd-32)" in line_of(text, "aligned, over the bare loop")
    assert "least 1.25 (small-blocks)" in line_of(
        text, "chunked by dask, over the best peer that uses dask"
    )
    assert "least 0.75 (small-blocks)" in line_of(
        text, "chunked by dask, over our own aligned case"
    )
    assert line_of(text, "many small shards, over tensorstore").endswith("| reached |")
    assert "sparse" not in text, "what was not measured is not judged"


def test_memory_is_held_against_the_plan_and_the_peers():
    ours, peer = measured(1, memory=12, expected=10), measured(1, memory=16)
    report = report_of(
        {
            "slabs": {"shardwrite": ours, "tensorstore": peer},
            "sparse": {"shardwrite": measured(1, memory=4)},
        }
    )
    text = aims_markdown(report)
    assert "0.40 (sparse) to 1.20 (slabs)" in line_of(
        text, "memory, measured over what the plan expects"
    )
    assert "most 0.75 (slabs)" in line_of(text, "memory, over the peer that takes least")
    assert "| slabs | 10 | 12 | 1.20 | 6 | 8 |" in memory_markdown(report)


def test_a_failure_is_no_figure():
    failed = {"status": "FAIL", "reason": "other data"}
    report = report_of({"slabs": {"shardwrite": failed, "tensorstore": 3}})
    assert report.failed
    assert "slabs" not in memory_markdown(report)
    assert "least" not in aims_markdown(report)


def test_who_is_slow_is_measured_once():
    report = report_of({"slabs": {"shardwrite": 1, "tensorstore": 100}})  # 100 s, 1 s
    assert [
        report.is_enough(CASES["slabs"], name, 8)
        for name in ("shardwrite", "tensorstore", "bare-loop")
    ] == [
        True,
        False,
        False,
    ]
    assert not report.is_enough(CASES["slabs"], "shardwrite", None)


def test_the_lines_of_throughput_share_their_axes_and_fit_dark_pages():
    names = ("shardwrite", "tensorstore", "bare-loop")
    rates = {
        f"{codec}-{side}": dict(zip(names, (10 * side, 10 * side + 1, 99), strict=True))
        for codec in ("zstd", "lz4")
        for side in (16, 32, 64)
    }
    drawn = lines(rates_of(rates), "Title")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert [texts.count(name) for name in (*names, "zstd", "lz4", "64³", "100")] == [
        1,
        1,
        1,
        1,
        1,
        2,
        2,
    ]
    assert "prefers-color-scheme: dark" in drawn
    ours = re.findall(r'<polyline class="line s0 thick" points="([^"]*)"', drawn)
    heights = [[float(y) for y in re.findall(r",([\d.]+)", line)] for line in ours]
    assert len(heights) == 3  # the legend, and a panel for each codec
    assert heights[1] == heights[2]
    first, second, third = heights[1]
    assert first > second > third, "more is higher"
    assert first - second == pytest.approx(second - third, abs=0.2), "the axis is logarithmic"


def test_the_committed_picture_can_be_drawn_from_what_is_stored():
    stored = Results.read(ROOT / "docs" / "figures" / "side-by-side.csv")
    rates = rates_of(stored.values("MB/s"))
    assert set(rates) == set(CODECS)
    for own in rates.values():
        assert len(own) == 5
        assert all([side for side, _ in sorted(line)] == [16, 32, 64] for line in own.values())
    assert dict(rates["lz4"]["tensorstore"])[32] > 0


@pytest.mark.parametrize("command", some(COMMANDS, *COMMANDS[::4]))
def test_commands_of_the_figures_are_known(command):
    module, *words = shlex.split(command)
    said = subprocess.run(
        [*python(), "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    known = set(re.findall(r"--[a-z-]+", said))
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known


@pytest.mark.long
@pytest.mark.parametrize("kind", ["blocks", "shards"])
def test_scale_counts_every_shard(tmp_path, kind):
    command = [
        *python(),
        "-m",
        "benchmarks.scale",
        "run",
        "--sources",
        kind,
        "--shards",
        "100",
        "--workers",
        "1",
    ]
    command += ["--directory", tmp_path, "--output", tmp_path / "lines"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    line = json.loads((tmp_path / "lines").read_text())
    assert line["n_shards"] == 100
    assert 0 < line["first_commit_seconds"] <= line["seconds"]


@pytest.mark.long
def test_scale_takes_all_steps_of_a_local_array(tmp_path):
    command = [*python(), "-m", "benchmarks.scale", "local", "--sources", "shards"]
    command += ["--shards", "400", "--directory", tmp_path, "--output", tmp_path / "lines"]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(STEPS)
    assert all(line["n_shards"] == 400 and line["seconds"] > 0 for line in lines)


@pytest.mark.parametrize("codec", IMPLEMENTATIONS)
def test_implementations_encode_all_of_it(codec):
    tiles = [np.full(4096, n, dtype=np.uint8) for n in range(5)]
    for encode in IMPLEMENTATIONS[codec].values():
        seconds, nbytes = measure(encode, tiles, 2)
        assert seconds > 0
        assert 0 < nbytes < 5 * 4096
