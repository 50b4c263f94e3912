"""Reports of runs: while they go on, interrupted, ended, kept, of older versions, and hostile."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from helpers import Stop
from rich.console import Console

import shardwrite
from shardwrite import RunReport
from shardwrite.place.base import RECEIPT_NAME, REPORT_NAME
from shardwrite.show.make_report import make_report, timeline_of
from shardwrite.show.report import Span, html

KEYWORDS = {"shards": 16, "chunks": 8, "durability": "none", "source_id": "x"}


def source(stops_after=None):
    """64 x 64 elements in 16 chunks; after some of them, computing one fails."""
    calls = [0]

    def value(block):
        calls[0] += 1
        if stops_after is not None and calls[0] > stops_after:
            raise Stop
        return block

    ones = da.ones((64, 64), chunks=16)
    return ones.map_blocks(value, dtype="f8", meta=np.empty((0, 0)), name="x", token="x")


@pytest.fixture
def interrupted(tmp_path, one_thread):
    """An array whose run stopped half-way."""
    with pytest.raises(Stop):
        source(8).to_sharded_zarr(tmp_path / "x", memory_limit="20kB", **KEYWORDS)
    return tmp_path / "x"


def finished(path, **keywords):
    return source().to_sharded_zarr(path, memory_limit="20kB", **KEYWORDS, **keywords)


def shown(report):
    """The parts of a page's HTML: tags, texts, and names of attributes."""
    found = {"tags": [], "text": "", "attributes": []}

    class Parser(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found["tags"].append(tag)
            found["attributes"] += attrs

        def handle_data(self, data):
            found["text"] += data + " "

    Parser().feed(html(report))
    assert not {"script", "iframe", "link", "img"} & set(found["tags"])
    assert not {"src", "href"} & {name for name, _ in found["attributes"]}
    return found


def test_a_run_that_goes_on(tmp_path, one_thread):
    found = []

    def look(_):
        found.append(shardwrite.report(tmp_path / "x"))

    finished(tmp_path / "x", progress=look)
    first, last = found[0], found[-1]
    assert {report.state for report in found} == {"running"}
    assert 0 < first.n_done < last.n_done == 16
    assert first.raw_nbytes == 64 * 64 * 8
    assert first.done_nbytes == first.n_done * 16 * 16 * 8
    (worker,) = last.workers
    assert worker.is_alive
    assert worker.n_shards == 16
    assert worker.peak_nbytes > 0
    assert last.plan.memory_nbytes > 0
    page = shown(last)
    assert page["tags"].count("svg") == 3
    for words in ("Throughput over time", "time since the start", "estimate", "Shards by process"):
        assert words in page["text"]


@pytest.mark.long
def test_an_interrupted_run(interrupted, tmp_path):
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    report = shardwrite.report(interrupted)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before
    assert (report.state, report.told_by) == ("interrupted", "journal")
    assert 0 < report.n_done < 16
    assert report.failures == {"Stop": 1}
    assert report.seconds > 0
    advice = " ".join(" ".join(pair) for pair in report.advice)
    assert f"{16 - report.n_done} shards are left" in advice
    assert "Make the same call again" in advice
    assert "Stop" in str(report)
    assert "interrupted" in shown(report)["text"]


def test_the_report_that_is_kept_tells_of_both_sessions(interrupted):
    half = shardwrite.report(interrupted)
    finished(interrupted, keep_report=True)
    report = shardwrite.report(interrupted)
    assert (report.state, report.told_by) == ("finished", "report")
    assert report.n_done == report.n_shards == 16
    assert report.n_workers == 2
    assert [worker.is_alive for worker in report.workers] == [False, True]
    assert report.workers[0].n_shards == half.n_done
    assert sum(worker.n_shards for worker in report.workers) == 16
    assert report.failures == {"Stop": 1}
    assert RunReport.from_json(report.to_json().encode()) == report
    written = sum(report.throughput) * report.seconds / len(report.throughput)
    assert written == pytest.approx(report.done_nbytes, rel=0.05)


def test_result_and_report_of_one_call_tell_one_duration_and_one_speed(tmp_path):
    def slow(block):
        time.sleep(0.02)
        return block

    x = da.ones((64, 64), chunks=16).map_blocks(slow)
    result = x.to_sharded_zarr(tmp_path / "x", shards=16, chunks=8, keep_report=True)
    report = shardwrite.report(tmp_path / "x")
    assert report.told_by == "report"
    assert report.seconds == result.seconds == round(result.seconds, 3) > 0
    assert report.nbytes_per_second == pytest.approx(result.throughput)
    json_seconds = json.loads((tmp_path / "x/shardwrite-receipt.json").read_text())["result"][
        "seconds"
    ]
    assert json_seconds == result.seconds


def test_readers_do_not_mind_the_file(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    finished(tmp_path / "g" / "x", keep_report=True)
    assert (tmp_path / "g" / "x" / REPORT_NAME).is_file()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [name for name, _ in group.members()] == ["x"]
        assert (zarr.open(tmp_path / "g" / "x")[:] == 1).all()
        assert shardwrite.verify(tmp_path / "g" / "x", deep=True).is_whole


def test_a_store_of_zarr_keeps_it_as_well():
    store = zarr.storage.MemoryStore()
    finished(store, name="a", keep_report=True)
    assert shardwrite.report(store, name="a").told_by == "report"


@pytest.mark.long
def test_an_array_that_replaces_another_has_no_report_of_the_other(tmp_path):
    finished(tmp_path / "x", keep_report=True)
    da.zeros((64, 64), chunks=16).to_sharded_zarr(tmp_path / "x", mode="w", shards=16, chunks=8)
    assert not (tmp_path / "x" / REPORT_NAME).exists()
    assert shardwrite.report(tmp_path / "x").told_by == "receipt"


def test_without_a_kept_report_totals_are_told(tmp_path):
    result = finished(tmp_path / "x")
    report = shardwrite.report(tmp_path / "x")
    assert (report.state, report.told_by, report.n_done) == ("finished", "receipt", 16)
    assert report.stored_nbytes == result.stored_nbytes
    assert report.peak_nbytes == max(result.peak_nbytes_by_process.values())
    assert "keep_report=True" in str(report)
    assert shown(report)["tags"].count("svg") == 1  # the memory
    shardwrite.write_region(np.ones((16, 64)), tmp_path / "x", slice(16), keep_report=True)
    assert shardwrite.report(tmp_path / "x").told_by == "report"


def test_a_report_of_an_update(tmp_path):
    finished(tmp_path / "x", keep_report=True)
    shardwrite.write_region(np.zeros((16, 64)), tmp_path / "x", slice(16), keep_report=True)
    assert (
        shardwrite.report(tmp_path / "x").n_shards,
        shardwrite.report(tmp_path / "x").notes,
    ) == (
        4,
        (),
    )
    shardwrite.write_region(np.ones((16, 64)), tmp_path / "x", slice(16))
    assert "changed by later runs" in shardwrite.report(tmp_path / "x").notes[0]


def test_an_update_that_was_interrupted(tmp_path, one_thread):
    finished(tmp_path / "x")
    with pytest.raises(Stop):
        source(8).to_sharded_zarr(
            tmp_path / "x", region=..., memory_limit="20kB", durability="none", source_id="y"
        )
    report = shardwrite.report(tmp_path / "x")
    assert report.state == "interrupted"
    assert 0 < report.n_done < 16


def test_nothing_there(tmp_path):
    with pytest.raises(shardwrite.IncompleteError, match="no run of shardwrite is known"):
        shardwrite.report(tmp_path / "x")
    zarr.create_array(tmp_path / "z", shape=(4,), dtype="i4", chunks=(2,))
    with pytest.raises(shardwrite.IncompleteError, match="no run"):
        shardwrite.report(tmp_path / "z")


def test_an_end_that_was_cut_off_after_the_report(tmp_path, monkeypatch):
    def stop(writer):
        if Path(writer.path).name == RECEIPT_NAME:
            raise Stop

    with monkeypatch.context() as patch:
        seams.before(patch, "rename a file", stop)
        with pytest.raises(Stop):
            finished(tmp_path / "x", keep_report=True)
    assert (tmp_path / "x" / REPORT_NAME).exists()
    assert not seams.receipt_of(tmp_path / "x").exists()
    report = shardwrite.report(tmp_path / "x")
    assert report.state == "interrupted"
    assert "the run has not ended" in report.advice[0][0]
    finished(tmp_path / "x", keep_report=True)
    assert shardwrite.report(tmp_path / "x").told_by == "report"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"format": 2}',
        {"plan": []},
        {"seconds": "1"},
        {"seconds": True},
        {"n_shards": 1e300},
        {"throughput": [None]},
        {"workers": [{}]},
        {"workers": 3},
        {"failures": []},
        {"state": None},
    ],
)
def test_a_kept_report_that_is_none(tmp_path, content):
    finished(tmp_path / "x", keep_report=True)
    file = tmp_path / "x" / REPORT_NAME
    data = content
    if isinstance(content, dict):
        data = json.dumps({**json.loads(file.read_bytes()), **content}).encode()
    file.write_bytes(data)
    with pytest.raises(shardwrite.JournalError, match="remove it"):
        shardwrite.report(tmp_path / "x")
    file.unlink()
    assert shardwrite.report(tmp_path / "x").told_by == "receipt"


HOSTILE = "<script>alert(1)</script>\x1b[2J\u202e</svg>"


def add_journal(path, *lines, begun=None):
    """Write a journal of a process that nobody knows."""
    run = seams.run_directory(path)
    head = {
        "writer": {"host": HOSTILE, "pid": 7, "job": HOSTILE},
        "driver": "d",
        "durability": "full",
        "begun": time.time() if begun is None else begun,
    }
    seams.write_lines(run / "journal-d-h-7-00000000.jsonl", [head, *lines])


def entry(shards, **fields):
    n = len(shards)
    columns = {"shards": shards, "nbytes": [9] * n, "index_crcs": [1] * n, "n_chunks": [1] * n}
    return {"attempt": "d.1", "seconds": 0.5, "peak_nbytes": 5, **columns, **fields}


def test_texts_of_others_are_spelt_out(interrupted):
    add_journal(interrupted, entry([15], at=1.0), {"failed": HOSTILE, "at": 1.5})
    report = shardwrite.report(interrupted)
    assert "<script>" in report.workers[-1].name
    page = shown(report)
    assert "<script>" in page["text"]
    console = Console(width=100, force_terminal=True, color_system=None, record=True, file=None)
    with console.capture() as capture:
        console.print(report)
    for text in (str(report), capture.get(), html(report)):
        assert "\x1b[2J" not in text
        assert "\u202e" not in text


@pytest.mark.parametrize(
    "lines",
    [
        [{"begins": [[-(2**62)], [2**62]], "attempt": "d.1", "at": 2.0**39}],
        [{"begins": [[0, 0], [2**62, 2**62]], "attempt": "d.1", "at": 0}],
        [entry([15], at=2.0**39, seconds=-1e18)],
        [entry([15], at="1")],
        [entry([15], at=-5)],
        [entry([15], at=float("nan"))],
        [entry([15], at=1, nbytes=[2**63 - 1], peak_nbytes=2**80)],
        [entry([15], at=1, cpu_seconds=[1])],
        [entry([15, 15, 15], at=1), entry([99], at=2)],
    ],
    ids=range(9),
)
@pytest.mark.parametrize("begun", [None, 2.0**39])
def test_impossible_numbers_are_drawn_or_left_out(interrupted, lines, begun):
    add_journal(interrupted, *lines, begun=begun)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = shardwrite.report(interrupted)
        page = html(report)
        text = str(report)
    assert "nan" not in page.replace("finance", "").lower().split("</style>")[-1]
    assert text
    assert len(page) < 100_000
    assert report.n_done <= 16


def test_journals_of_older_versions_have_no_times(interrupted):
    for journal in seams.logs_of(interrupted):
        lines = seams.read_lines(journal)
        for line in lines:
            line.pop("at", None)
            line.pop("cpu_seconds", None)
        seams.write_lines(journal, lines)
    report = shardwrite.report(interrupted)
    assert report.n_done > 0
    assert "have no time" in report.notes[0]
    assert shown(report)["tags"].count("svg") == 1  # the memory


@pytest.mark.long
def test_a_million_shards_make_no_large_report(tmp_path, one_thread):
    """Many processes with many commits: the file stays small, and nothing is lost in the sums."""
    x = da.ones((64, 64), chunks=16)
    shardwrite.prepare(x, tmp_path / "x", shardwrite.plan(x, shards=16, chunks=8))
    from shardwrite.journal.takeover import metadata_of
    from shardwrite.show.make_report import Commits, Worker

    run = seams.run_of(tmp_path / "x")
    empty = timeline_of(run, metadata_of(run))
    n, n_workers = 60_000, 400
    rng = np.random.default_rng(0)
    start = np.sort(rng.uniform(0, 3600, n)) + 1e9
    commits = Commits(
        worker=rng.integers(0, n_workers, n),
        start=start,
        stop=start + rng.uniform(0, 20, n),
        n_shards=np.ones(n, np.int64),
        raw_nbytes=np.full(n, 1000, np.int64),
        stored_nbytes=np.full(n, 500, np.int64),
        cpu_seconds=np.full(n, np.nan),
    )
    workers = [Worker(f"node:{k}", "", False, 1e9, 1e9 + 3620, 10**9) for k in range(n_workers)]
    timeline = replace(empty, commits=commits, workers=workers)
    report = make_report("x", run.record, timeline, state="finished", now=1e9 + 4000)
    assert len(report.to_json()) < 600_000
    assert len(html(report)) < 600_000
    assert report.n_workers == 400
    assert len(report.workers) == 128
    assert "Only the first 128 of 400" in report.notes[-1]
    assert sum(w.n_shards for w in report.workers) == (commits.worker < 128).sum()
    assert sum(s.n_shards for w in report.workers for s in w.spans) == (commits.worker < 128).sum()
    total = sum(report.throughput) * report.seconds / len(report.throughput)
    assert total == pytest.approx(n * 1000, rel=0.01)


def test_pauses_are_left_out_of_all_times(interrupted):
    run = seams.run_directory(interrupted)
    before = shardwrite.report(interrupted)
    add_journal(interrupted, entry([15], at=3.0), begun=time.time() + 7200)
    report = shardwrite.report(interrupted)
    (pause,) = report.pauses
    assert 7100 < pause.seconds < 7300
    assert report.seconds == pytest.approx(before.seconds + 3, abs=0.1)
    assert any("No process worked on the run for 2 h" in finding for finding, _ in report.advice)
    last = report.workers[-1].spans[-1]
    assert last == Span(0, last.start, last.stop, 1)
    assert report.seconds - 1 < last.stop <= report.seconds
    shutil.rmtree(run)
