"""``shardwrite report``: text, JSON and HTML."""

from __future__ import annotations

import json

import dask.array as da
import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

KEYWORDS = {"shards": 16, "chunks": 8, "durability": "none"}


@pytest.fixture
def path(tmp_path):
    x = da.ones((64, 64), chunks=16)
    x.to_sharded_zarr(tmp_path / "x", keep_report=True, **KEYWORDS)
    return tmp_path / "x"


def test_text_json_and_html(path, tmp_path):
    run = CliRunner().invoke
    text = run(main, ["report", str(path)])
    assert text.exit_code == 0
    assert "16 of 16 shards are done" in text.output
    assert "What to change" in text.output
    assert max(map(len, text.output.splitlines())) <= 80
    found = json.loads(run(main, ["report", str(path), "--json"]).output)
    assert (found["n_done"], found["told_by"]) == (16, "report")
    page = tmp_path / "page.html"
    assert run(main, ["report", str(path), "--html", str(page)]).exit_code == 0
    assert page.read_text().count("<svg") == 3


def test_write_keeps_a_report(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((64, 64)))
    command = ["write", str(tmp_path / "x.npy"), str(tmp_path / "x"), "--keep-report", "--json"]
    assert CliRunner().invoke(main, command).exit_code == 0
    assert shardwrite.report(tmp_path / "x").told_by == "report"


def test_update_and_finalize_keep_a_report(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((64, 64)))
    source, out = str(tmp_path / "x.npy"), str(tmp_path / "x")
    layout = ["--shards", "16", "--chunks", "8", "--durability", "none"]
    for command in (["init", source, out, *layout], ["write-part", source, out, "0/2"]):
        assert CliRunner().invoke(main, command).exit_code == 0
    finalize = ["finalize", out, "--parts", "2", "--keep-report"]
    assert CliRunner().invoke(main, finalize).exit_code == 85
    assert not (tmp_path / "x" / "shardwrite-report.json").exists()
    assert CliRunner().invoke(main, ["write-part", source, out, "1/2"]).exit_code == 0
    assert CliRunner().invoke(main, finalize).exit_code == 0
    kept = shardwrite.report(tmp_path / "x")
    assert (kept.told_by, kept.n_done, kept.n_shards) == ("report", 16, 16)
    np.save(tmp_path / "y.npy", np.zeros((16, 64)))
    update = ["update", str(tmp_path / "y.npy"), out, "--region", "16:32,:", "--keep-report"]
    dry = CliRunner().invoke(main, [*update, "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert shardwrite.report(tmp_path / "x") == kept
    assert CliRunner().invoke(main, update).exit_code == 0
    found = shardwrite.report(tmp_path / "x")
    assert (found.told_by, found.n_done, found.n_shards) == ("report", 4, 4)


def test_mistakes(tmp_path):
    missing = CliRunner().invoke(main, ["report", str(tmp_path / "y")])
    assert (missing.exit_code, "no run of shardwrite" in missing.output) == (85, True)
