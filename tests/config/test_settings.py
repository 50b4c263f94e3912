"""Settings: one table, which is shipped as YAML and documented, and the values that hold."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import dask
import dask.array as da
import pytest
import seams
import yaml
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.cli.settings import as_markdown, as_yaml
from shardwrite.codecs.stages import chunk_limit
from shardwrite.config import table
from shardwrite.config.table import SETTINGS, as_nbytes, as_tree, value_of
from shardwrite.errors import SpecError
from shardwrite.write.context import WriteSpec

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "shardwrite"
BAD = {
    "array.shards": [3, "big", True, [2]],
    "array.chunks": ["0", ""],
    "array.compressors": [5, [1]],
    "array.advice": ["no", 0],
    "strategy": [5, "no-such"],
    "write-empty-chunks": ["yes", 1],
    "durability": ["maybe", True],
    "run-dir": [5, ""],
    "storage": [3, "x", [1]],
    "bucket.via": [5, ""],
    "bucket.exclusive": ["yes", 1],
    "memory-limit": ["much", 0, -1, True],
    "max-graph-tasks": [0, 1.5, "many"],
    "max-source-reruns": [0, -1, "often", True, float("nan"), float("inf")],
    "progress": ["yes"],
    "log-level": ["loud", 10],
    "retry-pauses": [1, ["x"], [-1]],
    "lease.heartbeat": [0, "long", float("inf")],
    "lease.ttl": [0, True],
    "lease.claim-wait": [-1],
    "read.limit": ["much", 0],
    "read.gap": ["far", -1],
    "read.request-size": ["much", 0],
    "read.index-cache": ["many", 0],
    "read.chunk-cache": ["many", 0],
    "read.in-flight": [0, "some"],
    "read.in-flight-size": ["much", 0],
    "read.threads": [0, "some"],
    "read.chunk-limit": [0.5],
    "precomputed.index-limit": ["much", 0],
    "source.chunk-size": ["x"],
    "source.accept": ["yes", 1],
    "cluster.attempts": [0],
    "slurm.command-timeout": [0],
    "slurm.start-timeout": ["x"],
}


def source():
    return da.ones((8, 8), chunks=4)


def run(program, tmp_path, **variables):
    """What a fresh process prints, with a configuration of its own."""
    environment = {**os.environ, "DASK_CONFIG": str(tmp_path / "dask"), **variables}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_file_of_defaults_is_the_table():
    text = (PACKAGE / "config" / "shardwrite.yaml").read_text()
    assert text == as_yaml()
    assert yaml.safe_load(text) == as_tree()


def test_the_reference_names_every_setting():
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    assert "<!-- settings -->" in page
    rows = as_markdown().splitlines()[2:]
    assert [re.match(r"\| `([^`]*)`", row)[1] for row in rows] == [s.path for s in SETTINGS]


def test_the_table_lists_every_setting_and_each_is_used():
    names = {name: one for name, one in vars(table).items() if isinstance(one, table.Setting)}
    assert {one.name for one in names.values()} == {one.name for one in SETTINGS} == set(BAD)
    code = "".join(
        path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "config"
    )
    filled = {name for name, one in names.items() if one.fills}
    used = {name for name in names if f"value_of({name})" in code}
    arrays = {"SHARDS", "INNER_CHUNKS", "COMPRESSORS"}  # read together
    assert set(names) == used | filled | arrays


def test_no_other_place_reads_the_configuration():
    found = [
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"""config\.get\(\s*f?["']shardwrite""", path.read_text())
    ]
    assert found == []


def test_the_keywords_of_settings_have_the_same_defaults():
    for setting in (one for one in SETTINGS if one.fills and one.keyword != "log_level"):
        parameters = inspect.signature(shardwrite.to_sharded_zarr).parameters
        assert parameters[setting.keyword].default == setting.default, setting.name


def test_dask_knows_the_defaults(tmp_path):
    for order in ("dask, shardwrite", "shardwrite, dask"):
        found = run(f"import {order}; print(dask.config.get('shardwrite.lease.ttl'))", tmp_path)
        assert found.strip() == "120.0"


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in BAD.items() for v in vs])
def test_wrong_values_are_refused_and_nothing_is_written(tmp_path, name, value):
    setting = next(one for one in SETTINGS if one.name == name)
    with (
        dask.config.set({setting.path: value}),
        pytest.raises(SpecError, match=r"set by the program, with dask\.config\.set") as caught,
    ):
        shardwrite.to_sharded_zarr(source(), tmp_path / "x")
    assert caught.value.field == setting.path
    assert not list(tmp_path.iterdir())


@pytest.mark.compat
def test_a_codec_that_does_not_exist_is_refused_by_the_name_of_the_setting(tmp_path):
    with (
        dask.config.set({"shardwrite.array.compressors": "no-such"}),
        pytest.raises(SpecError, match=r"dask\.config\.set") as caught,
    ):
        shardwrite.to_sharded_zarr(source(), tmp_path / "x")
    assert caught.value.field == "shardwrite.array.compressors"
    assert not list(tmp_path.iterdir())


def test_names_that_are_unknown_are_refused(tmp_path):
    with (
        dask.config.set({"shardwrite.lease.tll": 5}),
        pytest.raises(SpecError, match=r"use shardwrite\.lease\.ttl") as caught,
    ):
        shardwrite.plan(source())
    assert caught.value.field == "shardwrite.lease.tll"
    with dask.config.set({"shardwrite": 5}), pytest.raises(SpecError, match="is no mapping"):
        shardwrite.plan(source())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shardwrite: batch", "is no mapping"),
        ("shardwrite: {array: 5}", "no such setting"),
        ("shardwrite: {array.shards: 4MB}", "tree, shardwrite: {array: {shards: ...}}"),
        ("shardwrite.durability: batch", "tree, shardwrite: {durability: ...}"),
        ("shardwrite.array: {shards: 4MB}", "write it as a tree"),
        ("shardwrite:", ""),
        ("shardwrite: {array: }", ""),
        ("shardwrite: {storage: {a.b: c}}", ""),
        ("shardwriter.x: 1", ""),
    ],
)
def test_a_file_that_dask_would_ignore_is_refused(tmp_path, text, said):
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "site.yaml").write_text(text)
    program = """
from shardwrite.host.dask_config import check_configuration
try:
    check_configuration()
except Exception as error:
    print(error)
"""
    found = run(f"import dask, shardwrite{program}", tmp_path)
    assert found == run(f"import shardwrite, dask{program}", tmp_path)
    assert said in found
    assert ("site.yaml" in found) == bool(said), found


def test_files_the_environment_the_program_and_keywords(tmp_path):
    """Each takes precedence over those before it, and an error names the one that is wrong."""
    (tmp_path / "dask").mkdir()
    file = tmp_path / "dask" / "site.yaml"
    file.write_text("shardwrite: {strategy: F, durability: maybe, max-graph-tasks: 7}\n")
    program = """
import dask, shardwrite, dask.array as da
x = da.ones((8, 8), chunks=4)
for change in ({"progress": False}, {"durability": None}):
    with dask.config.set({f"shardwrite.{name}": value for name, value in change.items()}):
        try:
            shardwrite.plan(x)
        except shardwrite.SpecError as error:
            print(error)
right = {"shardwrite.durability": None, "shardwrite.max-source-reruns": 2}
with dask.config.set(right):
    print(shardwrite.plan(x).strategy.label)
    with dask.config.set({"shardwrite.strategy": "morton"}):
        print(shardwrite.plan(x).strategy.label, shardwrite.plan(x, strategy="C").strategy.label)
"""
    found = run(program, tmp_path, DASK_SHARDWRITE__MAX_SOURCE_RERUNS="often").splitlines()
    assert "shardwrite.durability='maybe'" in found[0]
    assert f"set in {file}" in found[0]
    assert "shardwrite.max-source-reruns='often'" in found[1]
    assert "environment variable DASK_SHARDWRITE__MAX_SOURCE_RERUNS" in found[1]
    assert found[2:] == ["fixed-order (F)", "fixed-order (morton) fixed-order (C)"]


def test_settings_of_new_arrays(tmp_path):
    x = da.ones((64, 64), chunks=16)
    settings = {"shards": "8KiB", "chunks": "2KiB", "compressors": "gzip"}
    with dask.config.set({f"shardwrite.array.{name}": v for name, v in settings.items()}):
        made = shardwrite.plan(x)
        given = shardwrite.plan(x, shards=(64, 64), chunks=(32, 32), compressors="zstd")
        shardwrite.create(tmp_path / "y", (64, 64), "f8", shards="auto", chunks="auto")
        shardwrite.to_sharded_zarr(x, tmp_path / "y", mode="r+")  # what exists stays
    assert made.metadata.grid.chunks == (16, 16)
    assert made.metadata.grid.shards == (32, 32)
    assert [c["name"] for c in made.metadata.inner_codecs] == ["bytes", "gzip", "crc32c"]
    assert given.metadata.grid.shards == (64, 64)
    assert given.metadata.inner_codecs[1]["name"] == "zstd"
    assert shardwrite.open_sharded(tmp_path / "y").metadata.grid.shards == (32, 32)
    shardwrite.to_sharded_zarr(x + 1, tmp_path / "y", mode="r+")  # without the settings, too


def test_durability_is_that_of_the_configuration_where_it_can_be(tmp_path):
    import zarr

    with dask.config.set({"shardwrite.durability": "batch"}):
        shardwrite.to_sharded_zarr(source(), tmp_path / "x")
        shardwrite.to_sharded_zarr(source(), tmp_path / "y", durability="none")
        shardwrite.to_sharded_zarr(source(), zarr.storage.MemoryStore(), name="x")
    receipts = [
        json.loads((tmp_path / name / "shardwrite-receipt.json").read_text()) for name in "xy"
    ]
    assert [str(receipt).count("'durability': 'batch'") > 0 for receipt in receipts] == [
        True,
        False,
    ]


def test_keywords_of_store_and_of_erase_are_filled(tmp_path):
    with dask.config.set({"shardwrite.write-empty-chunks": True}):
        (result,) = shardwrite.store([da.zeros((8, 8), chunks=4)], [tmp_path / "x"])
    assert result.n_chunks > 0


def test_workers_use_what_the_driver_has_decided(tmp_path):
    settings = {"shardwrite.read.chunk-limit": 77, "shardwrite.lease.ttl": 600}
    with dask.config.set(settings):
        decided = table.decided_settings()
        shardwrite.to_sharded_zarr(source(), tmp_path / "x")
        array = shardwrite.open_sharded(tmp_path / "x")
    assert chunk_limit() == 128 * 2**20
    with decided.holds():
        assert (chunk_limit(), seams.lease_times()) == (77, (15.0, 600.0))
    assert chunk_limit() == 128 * 2**20
    assert array.decided == decided
    assert "decided" in WriteSpec.__dataclass_fields__


@pytest.mark.long
def test_a_task_on_a_worker_uses_the_settings_of_its_run(tmp_path):
    """The worker's own environment says otherwise."""
    program = f"""
import dask, shardwrite, numpy as np, dask.array as da
from distributed import Client, LocalCluster
if __name__ == "__main__":
    dask.config.set({{"distributed.nanny.pre-spawn-environ.DASK_SHARDWRITE__READ__CHUNK_LIMIT": 9}})
    with LocalCluster(1, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster):
            x = da.from_array(np.array(["a" * 50] * 4, dtype=object), chunks=2)
            shardwrite.to_sharded_zarr(x, {str(tmp_path / "x")!r}, shards=2, chunks=1, serializer="vlen-utf8")
            y = shardwrite.from_sharded_zarr({str(tmp_path / "x")!r})
            print("read", len(y.compute()[0]), shardwrite.verify({str(tmp_path / "x")!r}, deep=True).is_good)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "read 50 True" in done.stdout, done.stderr


@pytest.mark.compat
def test_the_command_shows_values_and_sources(monkeypatch):
    with dask.config.set({"shardwrite.retry-pauses": [1, 2]}):
        found = json.loads(CliRunner().invoke(main, ["config", "--json"]).stdout)
        text = CliRunner().invoke(main, ["config"]).stdout
    (row,) = [one for one in found["settings"] if one["setting"] == "shardwrite.retry-pauses"]
    assert row["value"] == [1, 2]
    assert "dask.config.set" in row["set"]
    assert sum(one["set"] is not None for one in found["settings"]) == 1
    assert len(text.splitlines()) == len(SETTINGS) + 2
    assert CliRunner().invoke(main, ["config", "--yaml"]).stdout == as_yaml()


def test_commands_use_settings_and_options_take_precedence(tmp_path):
    import numpy as np

    np.save(tmp_path / "x.npy", np.ones((8, 8)))
    with dask.config.set({"shardwrite.strategy": "F"}):
        plans = [
            json.loads(
                CliRunner().invoke(main, ["plan", str(tmp_path / "x.npy"), *more, "--json"]).stdout
            )
            for more in ([], ["--strategy", "fixed-order"])
        ]
    assert [plan["identity"]["strategy"] for plan in plans] == [
        "fixed-order (F)",
        "fixed-order (C)",
    ]
    with dask.config.set({"shardwrite.durability": "maybe"}):
        done = CliRunner().invoke(
            main, ["write", str(tmp_path / "x.npy"), str(tmp_path / "x.zarr")]
        )
    assert done.exit_code == 2
    assert "shardwrite.durability" in done.output
    assert not (tmp_path / "x.zarr").exists()


@pytest.mark.parametrize("bad", ["", "5x", "-1", "1.5.5", "2.5", "2.5B", 0, -3, True, 1.5, None])
def test_what_is_no_size(bad):
    with pytest.raises(ValueError, match="number of bytes"):
        as_nbytes(bad)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2 min", 120), ("500 ms", 0.5), ("1h", 3600), (5, 5), ("0.5", 0.5)]
)
def test_times(text, seconds):
    with dask.config.set({"shardwrite.lease.claim-wait": text}):
        assert value_of(table.CLAIM_WAIT) == seconds


def test_num_workers_of_dask_is_used_by_commands():
    from shardwrite.cli.common import engine
    from shardwrite.engines import active_engine

    with dask.config.set(num_workers=3), engine(None, None, None):
        assert active_engine().n_threads == 3
    with dask.config.set(num_workers=3), engine(2, None, None):
        assert active_engine().n_threads == 2
