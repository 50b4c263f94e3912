"""The log: what is told, with run and shard, to whom, and what is never told."""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import subprocess
import sys
from unittest import mock

import dask
import dask.array as da
import numpy as np
import pytest
import seams
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.engines.local import Stopped
from shardwrite.errors import StoreError
from shardwrite.host import stopping
from shardwrite.host.stopping import RUNS, tell
from shardwrite.write import commit

LAYOUT = {"shards": 4, "chunks": 2, "source_id": "a"}


def source():
    return da.arange(64, chunks=4).reshape(8, 8)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG, "shardwrite")
    with dask.config.set(scheduler="sync"):
        yield caplog


def told(log, name=""):
    return [r.getMessage() for r in log.records if r.name.startswith(f"shardwrite.{name}")]


def test_a_run_from_its_beginning_to_its_end(tmp_path, log):
    shardwrite.to_sharded_zarr(source(), tmp_path / "x", **LAYOUT)
    runs = told(log, "runs")
    assert runs[0].startswith(f"begun: array {tmp_path / 'x'}, 4 shards")
    assert runs[-1] == f"ended: {tmp_path / 'x'}"
    (run,) = {r.run for r in log.records}
    assert run.startswith(str(seams.state_beside(tmp_path / "x") / "run-"))
    shards = {r.shard: r for r in log.records if r.name == "shardwrite.shards"}
    assert sorted(shards) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    assert all(r.levelno == logging.DEBUG for r in shards.values())
    assert {r.module for r in log.records} <= {"begin", "session", "compute", "commit"}


def test_nothing_is_told_of_a_call_that_was_done(tmp_path, log):
    shardwrite.to_sharded_zarr(source(), tmp_path / "x", **LAYOUT)
    log.clear()
    shardwrite.to_sharded_zarr(source(), tmp_path / "x", **LAYOUT)
    assert told(log) == []


def test_a_failure_and_what_goes_on_after_it(tmp_path, log):
    n_calls = []

    def failing(block):
        n_calls.append(1)
        if len(n_calls) > 2:
            raise ValueError("https://me:secret@host/x cannot be read")
        return block

    x = da.from_array(np.arange(64).reshape(8, 8), chunks=4)
    with pytest.raises(ValueError, match="secret"):
        shardwrite.to_sharded_zarr(x.map_blocks(failing, meta=x._meta), tmp_path / "x", **LAYOUT)
    (failed,) = [r for r in log.records if r.getMessage().startswith("failed")]
    assert failed.getMessage().startswith("failed: ValueError")
    assert "secret" not in log.text
    log.clear()
    shardwrite.to_sharded_zarr(x, tmp_path / "x", **LAYOUT)
    assert told(log, "runs")[0].startswith("joined: array")


def test_a_request_to_stop_is_no_error_and_a_resumed_run_is_told(tmp_path, log):
    x = da.ones((64, 8), chunks=(1, 8))
    layout = {"shards": (1, 8), "chunks": (1, 8), "source_id": "a"}
    waves = {"max_graph_tasks": 30, "max_source_reruns": 9}
    try:
        with pytest.raises((shardwrite.IncompleteError, Stopped)):
            shardwrite.to_sharded_zarr(
                x, tmp_path / "x", progress=lambda _: seams.request_stop(), **layout, **waves
            )
    finally:
        seams.forget_stop()
    assert told(log, "runs")[-1].endswith("run the same command again to go on")
    assert all(r.levelno < logging.WARNING for r in log.records)
    log.clear()
    shardwrite.to_sharded_zarr(x, tmp_path / "x", **layout, **waves)
    assert any(text.startswith("resumed:") and "of 64 shards" in text for text in told(log, "runs"))


def test_waves_are_told(tmp_path, log):
    x = da.ones((64, 8), chunks=(1, 8))
    shardwrite.to_sharded_zarr(
        x, tmp_path / "x", shards=(1, 8), chunks=(1, 8), max_graph_tasks=30, max_source_reruns=9
    )
    waves = [text for text in told(log, "runs") if text.startswith("wave")]
    assert len(waves) > 1
    assert waves[0] == f"wave 1 of {len(waves)} begins"


def test_a_commit_that_is_tried_again_is_a_warning_with_its_shard(tmp_path, log):
    real, n_calls = commit._try_shards, []

    def failing(*args):
        n_calls.append(1)
        if len(n_calls) == 1:
            raise StoreError("the disk is away", key="c/0/0", errno=errno.EIO)
        return real(*args)

    with (
        dask.config.set({"shardwrite.retry-pauses": [0]}),
        mock.patch.object(commit, "_try_shards", failing),
    ):
        shardwrite.to_sharded_zarr(source(), tmp_path / "x", **LAYOUT)
    (warning,) = [r for r in log.records if r.levelno == logging.WARNING]
    assert warning.getMessage() == "tried again after 0 s: the disk is away"
    assert (warning.name, warning.shard) == ("shardwrite.shards", "c/0/0")
    assert "run-" in warning.run


def test_without_pauses_nothing_is_tried_again(tmp_path, log):
    def failing(*_args, **_keywords):
        raise StoreError("the disk is away", key="c/0/0", errno=errno.EIO)

    with (
        dask.config.set({"shardwrite.retry-pauses": []}),
        mock.patch.object(commit, "_try_shards", failing),
        pytest.raises(StoreError),
    ):
        shardwrite.to_sharded_zarr(source(), tmp_path / "x", **LAYOUT)
    assert not [r for r in log.records if r.levelno == logging.WARNING]


class WordlessError(Exception):
    def __str__(self):
        raise RuntimeError("an error without words")


def test_an_error_whose_text_fails_is_raised_all_the_same(tmp_path, log):
    def failing(_):
        raise WordlessError

    x = source()
    bad = x.map_blocks(failing, dtype=x.dtype, meta=np.empty((0, 0), dtype=x.dtype))
    with pytest.raises(WordlessError):
        shardwrite.to_sharded_zarr(bad, tmp_path / "x", **LAYOUT)
    assert "failed: WordlessError" in told(log, "runs")
    shardwrite.to_sharded_zarr(x, tmp_path / "x", **LAYOUT)


def test_a_run_that_is_given_up_is_told(tmp_path, log):
    x = source()
    shardwrite.to_sharded_zarr(x, tmp_path / "x", **LAYOUT)

    def failing(_):
        raise ValueError("no")

    region = (slice(0, 4), slice(0, 4))
    bad = x[:4, :4].map_blocks(failing, dtype=x.dtype, meta=np.empty((0, 0), dtype=x.dtype))
    with pytest.raises(ValueError, match="no"):
        shardwrite.write_region(bad, tmp_path / "x", region)
    log.clear()
    assert shardwrite.abandon(tmp_path / "x")
    assert any("given up" in text for text in told(log, "takeovers"))
    assert not seams.has_run(tmp_path / "x")


def test_a_record_that_nobody_wants_costs_no_text():
    with mock.patch.object(stopping, "redacted", side_effect=AssertionError):
        tell(RUNS, logging.DEBUG, "x", run="y")


def test_credentials_are_removed_everywhere(log):
    url = "s3://KEY:SECRET@bucket/x?signature=abc"
    tell(RUNS, logging.INFO, f"begun: {url}", run=url, shard=url)
    (record,) = log.records
    assert "SECRET" not in json.dumps([record.getMessage(), record.run, record.shard])
    assert "abc" not in json.dumps([record.getMessage(), record.run, record.shard])


@pytest.mark.long
def test_the_package_installs_no_handler_that_prints(tmp_path):
    program = f"""
import logging, dask, dask.array as da, shardwrite
dask.config.set(scheduler="sync")
shardwrite.to_sharded_zarr(da.ones((4, 4)), {str(tmp_path / "x")!r}, shards=4, chunks=2)
print([type(h).__name__ for h in logging.getLogger("shardwrite").handlers])
print(logging.getLogger().handlers, logging.getLogger("shardwrite").level)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout.splitlines() == ["['NullHandler']", "[] 0"]
    assert done.stderr == ""


def every_command(group=main, above=()):
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "commands"):
            yield from every_command(command, (*above, name))
        else:
            yield " ".join((*above, name)), command


def test_every_command_has_the_option():
    without = [
        name
        for name, command in every_command()
        if not any(option.name == "log_level" for option in command.params)
    ]
    assert without == ["completion"]  # which prints a script, and does nothing else


def test_the_option_prints_the_log_to_standard_error(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    words = [
        "write",
        str(tmp_path / "x.npy"),
        str(tmp_path / "x"),
        "--shards",
        "4",
        "--chunks",
        "2",
    ]
    # Before click 8.2, both streams were one unless one asked for two.
    is_mixed = "mix_stderr" in inspect.signature(CliRunner).parameters
    runner = CliRunner(mix_stderr=False) if is_mixed else CliRunner()
    done = runner.invoke(main, [*words, "--log-level", "debug", "--json"])
    assert done.exit_code == 0, done.output
    json.loads(done.stdout)
    lines = done.stderr.splitlines()
    assert any(" INFO shardwrite.runs: begun: array" in line and "run=" in line for line in lines)
    assert sum("shard=c/" in line for line in lines) == 4
    logger = logging.getLogger("shardwrite")
    assert [type(handler).__name__ for handler in logger.handlers] == ["NullHandler"]
    assert logger.level == logging.NOTSET
    quiet = runner.invoke(main, [*words, "--overwrite"])
    assert "shardwrite.runs" not in quiet.stderr
    with dask.config.set({"shardwrite.log-level": "info"}):
        other = [*words[:2], str(tmp_path / "y"), *words[3:]]
        assert "INFO" in runner.invoke(main, other).stderr
    wrong = CliRunner().invoke(main, [*words, "--log-level", "loud"])
    assert wrong.exit_code == 2
