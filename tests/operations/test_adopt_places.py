"""Arrays that are made of HDF5 files: places, restarts, and arguments that are refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import JournalError, SpecError
from shardwrite.cli import main

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

X = np.arange(96, dtype="i4").reshape(8, 12)
LAYOUT = {"shards": (4, 6), "chunks": (2, 3)}
OLD = {**LAYOUT, "format": "transformer-2022"}


def make(home: Path, n: int = 3) -> list[str]:
    home.mkdir()
    files = [str(home / f"{number}.h5") for number in range(n)]
    for number, name in enumerate(files):
        with h5py.File(name, "w") as file:
            file.create_dataset("v", data=X[:4, :6] + 100 * number, chunks=(2, 3))
    return files


def stop(*_args, **_keywords):
    raise KeyboardInterrupt


@pytest.mark.parametrize("how", ["move", "link"])
def test_what_an_older_version_began_is_refused(tmp_path, how):
    """It moved or linked the files of a user, which the directory of its work may hold."""
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    work = tmp_path / "z.zarr.conversion.shardwrite/work-0"
    (work / "adopted/c/0").mkdir(parents=True)
    os.rename(files[0], work / "adopted/c/0/0")
    record = {"version": 1, "first": "0", "leaf": "z.zarr", "old": 0}
    record["layout"] = {"": "0" * 64, "adopts": how}
    for place in (work, work.parent):
        (place / "record.json").write_text(json.dumps(record))
    before = sorted(work.parent.rglob("*"))
    for call in (
        lambda: shardwrite.abandon(array),
        lambda: shardwrite.shard(array, shards=2),
        lambda: shardwrite.unshard(array),
        lambda: shardwrite.adopt(files[1:], array, restart=True),
        lambda: da.from_array(X).to_sharded_zarr(array, **LAYOUT, mode="w"),
    ):
        with pytest.raises((JournalError, SpecError)):
            call()
    with pytest.raises(JournalError, match="with the version that began it"):
        shardwrite.abandon(array)
    assert sorted(work.parent.rglob("*")) == before


def test_copies_of_other_files_start_over(tmp_path):
    """The message names restart=True, which takes the copies of the other call away."""
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    with pytest.raises(KeyboardInterrupt):
        shardwrite.adopt(files, array, progress=stop)
    with pytest.raises(JournalError, match=r"start over with restart=True \(--restart\)"):
        shardwrite.adopt(files[:2], array)
    arguments = ["adopt", *files[:2], str(array), "--restart"]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert shardwrite.open_sharded(array)[::4, 0].tolist() == [0, 100]


def test_no_conversion_is_given_up_by_restart(tmp_path):
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    zarr.create_array(array, data=X, chunks=(2, 3))
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(array, shards=2, progress=stop)
    before = sorted(seams.conversion_beside(tmp_path / "z.zarr").rglob("array-new/z.zarr/*"))
    for restart in (False, True):
        with pytest.raises((JournalError, SpecError)):
            shardwrite.adopt(files, array, restart=restart)
    assert sorted(seams.conversion_beside(tmp_path / "z.zarr").rglob("array-new/z.zarr/*"))
    assert before
    shardwrite.shard(array, shards=2)


def test_short_calls_have_no_restart_and_name_none(tmp_path):
    """`shard_store` has no such keyword, as `adopt` had none."""
    zarr.create_array(tmp_path / "z", data=X, chunks=(2, 3))
    with pytest.raises(KeyboardInterrupt):
        shardwrite.shard(tmp_path / "z", shards=2, progress=stop)
    with pytest.raises(JournalError, match="or give it up with abandon") as caught:
        shardwrite.shard_store(tmp_path / "z", (1, 2))
    assert "restart" not in str(caught.value)
    shardwrite.abandon(tmp_path / "z")
    shardwrite.shard_store(tmp_path / "z", (1, 2))


@pytest.mark.parametrize("name", ["a\0.h5", b"a\0.h5", "\ud800", "", None])
def test_what_is_no_path_is_refused(tmp_path, name):
    """Also a directory for runs, and names of datasets that the library would cut off."""
    (file,) = make(tmp_path / "f", 1)
    for files in (name, [name], [file, name]):
        with pytest.raises(SpecError, match=r"files=.*no paths of files; give a list of paths"):
            shardwrite.adopt(files, tmp_path / "x")
    for dataset in ("v\0", "v\0w", "\ud800"):
        with pytest.raises(SpecError, match=r"dataset=.*no name of a dataset"):
            shardwrite.adopt(file, tmp_path / "x", dataset=dataset)
    with pytest.raises(SpecError, match=r"run_dir=.*no directory"):
        da.from_array(X).to_sharded_zarr(zarr.storage.MemoryStore(), run_dir="a\0", **LAYOUT)
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_integers_of_numpy(tmp_path):
    files = make(tmp_path / "f", 2)
    found = shardwrite.adopt(files, tmp_path / "a", axis=np.int64(1))
    assert found.shape == (4, 12)
    assert shardwrite.adopt(files, tmp_path / "a", axis=1).is_skipped
    for number, grid in enumerate((np.array([1, 2]), [np.int32(1), np.int32(2)], (1, np.uint8(2)))):
        assert shardwrite.adopt(files, tmp_path / f"g{number}", grid=grid).shape == (4, 12)
    for axis in (True, np.True_, 0.0, "0"):
        with pytest.raises(SpecError, match=r"axis=.*no axis"):
            shardwrite.adopt(files, tmp_path / "x", axis=axis)
    for grid in (
        np.array([1.0, 2]),
        np.array([True, True]),
        np.array([[1, 2]]),
        np.array([]),
        "12",
    ):
        with pytest.raises(SpecError, match=r"grid=.*no grid of files"):
            shardwrite.adopt(files, tmp_path / "x", grid=grid)


def test_integers_of_numpy_as_axes_of_updates(tmp_path):
    x = da.from_array(X)
    x.to_sharded_zarr(tmp_path / "x", **LAYOUT)
    shardwrite.write_region(x, tmp_path / "x", "append", axis=np.int64(-1))
    with shardwrite.ShardWriter(tmp_path / "x", axis=np.int32(1)) as writer:
        writer.append(X)
    found = shardwrite.open_sharded(tmp_path / "x")[...]
    np.testing.assert_array_equal(found, np.concatenate([X] * 3, axis=1))


@pytest.mark.parametrize("is_plan", [True, False])
def test_nothing_is_adopted_into_a_hierarchy_of_2022(tmp_path, is_plan):
    files = make(tmp_path / "f")
    da.from_array(X).to_sharded_zarr(tmp_path / "h", name="x", **OLD)
    before = sorted(tmp_path.rglob("*"))
    args = ["adopt", *files, str(tmp_path / "h/y"), *(["--dry-run"] if is_plan else [])]
    done = CliRunner().invoke(main, args)
    assert (done.exit_code, "is in a hierarchy of 2022" in done.output) == (2, True), done.output
    assert sorted(tmp_path.rglob("*")) == before
