"""Bars of commands that look at all shards: in a terminal, and nowhere else."""

import json

import dask.array as da
import pytest
from click.testing import CliRunner

from shardwrite.cli import main


@pytest.fixture
def path(tmp_path):
    da.ones((64, 64), chunks=16).to_sharded_zarr(tmp_path / "x", shards=16, chunks=8)
    return str(tmp_path / "x")


@pytest.mark.parametrize("command", ["info", "verify", "census"])
def test_a_bar_in_a_terminal_only(path, command, monkeypatch):
    run = CliRunner().invoke
    quiet = run(main, [command, path])
    assert (quiet.exit_code, quiet.stderr) == (0, "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes any file for a terminal
    shown = run(main, [command, path])
    assert shown.exit_code == 0
    assert "checking" in shown.stderr
    assert "16/16" in shown.stderr
    assert "checking" not in shown.stdout
    as_json = run(main, [command, path, "--json"])
    assert as_json.stderr == ""
    json.loads(as_json.stdout)
