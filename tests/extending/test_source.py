"""A file format that the package does not know is added by its public seams, and is written, killed
and resumed as one of its own."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.sources import FORMATS, Format, as_dask, open_source, register_format

sys.path.insert(0, str(Path(__file__).parent))
import hexes
import reading

PREPARE = f"""
{reading.dying_after(6)}
import dask
import hexes, shardwrite
from shardwrite.sources import as_dask, open_source
def write(scheduler, **more):
    x = as_dask(open_source(sys.argv[1]), (16, 64))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        return x.to_sharded_zarr(sys.argv[2], shards=16, chunks=4, memory_limit="30kB", **more)
"""
SHAPE = (64, 64)


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(1, 2**32, SHAPE, dtype="u4")


@pytest.fixture
def file(tmp_path, values):
    lines = [json.dumps(SHAPE), *(f"{value:08x}" for value in values.ravel().tolist())]
    (tmp_path / "numbers.hexes").write_text("\n".join(lines) + "\n")
    return tmp_path / "numbers.hexes"


@pytest.mark.parametrize(
    "scheduler", [pytest.param("threads", marks=pytest.mark.long), "processes"]
)
def test_written_killed_resumed_verified_and_read(tmp_path, file, values, scheduler):
    path = tmp_path / "x.zarr"
    reading.run(f"{PREPARE}\nwrite('sync', progress=die)", file, path, code=-signal.SIGKILL)
    assert not (path / "zarr.json").exists()
    main = f"{PREPARE}\nif __name__ == '__main__': print(write({scheduler!r}).n_resumed_shards)"
    assert 0 < int(reading.run(main, file, path)) < 16
    assert shardwrite.verify(path, deep=True, against=as_dask(open_source(file))).is_good
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], values)


def test_a_file_that_has_changed_is_another_source(tmp_path, file, values):
    path = tmp_path / "x.zarr"
    reading.run(f"{PREPARE}\nwrite('sync', progress=die)", file, path, code=-signal.SIGKILL)
    lines = file.read_text().split("\n")
    file.write_text("\n".join([lines[0], f"{1:08x}", "", *lines[2:]]))
    x = as_dask(open_source(file), (16, 64))
    with dask.config.set(scheduler="sync"), pytest.raises(shardwrite.JournalError, match="source"):
        x.to_sharded_zarr(path, shards=16, chunks=4, memory_limit="30kB")


def test_any_region_can_be_read(file, values):
    source = open_source(file)
    assert isinstance(source, hexes.HexSource)
    for key in (np.s_[3:9, 5:6], np.s_[:, ::7], np.s_[-1], np.s_[[4, 2], 60:]):
        np.testing.assert_array_equal(source[key], values[key])


def test_names_are_not_taken_twice():
    known = FORMATS["hexes"]
    register_format("hexes", known)
    for name, added in [
        ("hexes", Format("elsewhere")),
        ("npy", Format("elsewhere")),
        ("others", Format("elsewhere", suffixes=(".raw",))),
    ]:
        with pytest.raises(SpecError, match="choose another name"):
            register_format(name, added)
    assert FORMATS["hexes"] is known
    assert "others" not in FORMATS
