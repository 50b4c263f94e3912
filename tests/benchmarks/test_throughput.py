"""The throughput benchmark at a tiny scale: its lines, its page, and that it refuses to quote a
wrong layout. No timing."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from forks import python

from benchmarks.checks import CheckError
from benchmarks.crew import local_threads
from benchmarks.probes import start_watching, stop_watching
from benchmarks.synthetic import Synthetic, synthetic_array
from benchmarks.throughput import Setting, measure
from benchmarks.throughput_page import PLOTS, with_efficiency

ROOT = Path(__file__).parent.parent.parent
NUMBERS = (
    "seconds", "source_seconds", "decoded_bytes_per_s", "encoded_bytes_per_s", "write_amplification", "peak_anonymous_bytes",
    "n_tasks", "n_hosts", "indexes_checked", "elements_compared",
)  # fmt: skip
TINY = Setting(
    "strong", (48, 32, 40), (16, 32, 32), (16, 16, 16), (48, 32, 40), "zstd", "C", "none"
)


@pytest.mark.long
def test_lines_and_page(tmp_path):
    command = [
        *python(),
        "-m",
        "benchmarks.throughput",
        "--directory",
        str(tmp_path / "arrays"),
        "--threads",
        "1,2",
    ]
    command += [
        "--scaling",
        "strong,weak",
        "--shape",
        "32,32,32",
        "--shards",
        "16,32,32/32,16,16",
        "--chunks",
        "16,16,16",
    ]
    command += ["--codecs", "zstd", "--strategies", "C,append-only", "--durabilities", "none"]
    command += ["--output", str(tmp_path / "runs.jsonl"), "--page", str(tmp_path / "page.html")]
    paths = [str(ROOT), os.environ.get("PYTHONPATH")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * 2 * 2 * 2
    for line in lines:
        assert all(line[name] > 0 for name in NUMBERS), line
        assert line["shard_reads"] == 0
        assert line["shape"][0] == 32 * (line["n_threads"] if line["scaling"] == "weak" else 1)
        assert line["decoded_bytes"] == 2 * np.prod(line["shape"])
        assert line["files"] == np.prod(
            [-(-n // s) for n, s in zip(line["shape"], line["shards"], strict=True)]
        )
        assert line["written_bytes"] >= line["encoded_bytes"] > 0
        assert set(line["seconds_per_shard"]) == {"p50", "p90", "p99", "max"}
        assert {"cpu", "cores", "file_system"} <= set(line["machine"])
        assert {"python", "shardwrite", "dask"} <= set(line["versions"])
    assert not list((tmp_path / "arrays").iterdir())
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == len(PLOTS)
    assert 'src="http' not in page
    assert all(
        (tmp_path / f"page-{name}.png").read_bytes().startswith(b"\x89PNG") for name in PLOTS
    )
    assert done.stdout.count("efficiency") == len(with_efficiency(lines)) == len(lines)


def test_efficiency_is_gain_over_threads():
    base = {
        "kind": "threads", "scaling": "strong", "shape": [8], "shards": [8], "chunks": [8], "source_chunks": [8], "codec": "none",
        "strategy": "C", "durability": "none", "n_workers": 1, "encoded_bytes_per_s": 1.0, "source_seconds": 1.0,
        "peak_anonymous_bytes": 1, "write_amplification": 1.0, "seconds_per_shard": {"p50": 1.0},
    }  # fmt: skip
    lines = [
        {**base, "n_threads": n, "threads_per_worker": n, "seconds": s, "decoded_bytes_per_s": rate}
        for n, s, rate in ((1, 4.0, 1.0), (4, 2.0, 2.0), (4, 2.0, 3.0), (4, 1.0, 9.0))
    ]
    first, last = with_efficiency(lines)
    assert (first["efficiency"], last["efficiency"], last["spread"]) == (1.0, 0.75, 2.0)


def test_shards_that_are_read_are_refused(tmp_path, monkeypatch):
    import benchmarks.throughput as module

    written = module._write

    def reading(setting, path, reports):
        result = written(setting, path, reports)
        next(p for p in (path / "c").rglob("*") if p.is_file()).read_bytes()
        return result

    with local_threads(1) as crew:
        assert measure(TINY, crew, tmp_path)["shard_reads"] == 0
        monkeypatch.setattr(module, "_write", reading)
        with pytest.raises(CheckError, match="opened to be read"):
            measure(TINY, crew, tmp_path)


def test_probe_counts_what_is_written(tmp_path):
    start_watching(str(tmp_path))
    (tmp_path / "x").write_bytes(bytes(10_000))
    seen = stop_watching()
    assert 10_000 <= seen["written_bytes"] < 20_000
    assert seen["shard_reads"] == 0


def test_a_region_is_the_same_in_any_blocks():
    shape = (150, 70, 130)
    whole = Synthetic(shape)[:, :, :]
    np.testing.assert_array_equal(synthetic_array(shape, (40, 70, 33)).compute(), whole)
    np.testing.assert_array_equal(
        Synthetic(shape)[100:150, 3:5, 127:130], whole[100:150, 3:5, 127:130]
    )
    assert whole.min() > 0
