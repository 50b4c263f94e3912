"""Files and places that belong to something else, which an adoption must not take."""

from __future__ import annotations

import os
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
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


def amid(files, array, how="move", at=1):
    """An adoption that stops after the first file."""
    take = shardwrite.journal.Adoption.take

    def taken(self, number, change):
        if number == at:
            raise KeyboardInterrupt
        take(self, number, change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardwrite.journal.Adoption, "take", taken)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.adopt(files, array, how=how)


@pytest.mark.parametrize("how", ["move", "link"])
@pytest.mark.parametrize("name", ["", "v", "a/v"])
def test_shards_of_2022_stay_in_their_array(tmp_path, how, name):
    """Their hierarchy has no document in the directory of the array."""
    x, h = da.from_array(X), tmp_path / "h"
    x.to_sharded_zarr(h, name=name or None, strategy="hdf5", **OLD)
    shard = h / "data/root" / name / "c0/0"
    link = tmp_path / "link"
    link.symlink_to(shard.parent)
    for file in (shard, link / "0"):
        with pytest.raises(SpecError, match=f"lies in the array {h / 'data/root' / name}, which"):
            shardwrite.adopt(file, tmp_path / "n", how=how)
    if name:
        document = h / f"meta/root/{name}.array.json"
        document.rename(h / f"meta/root/{name}.shardwrite-run.json")  # a run is just making it
        with pytest.raises(SpecError, match="lies in the array"):
            shardwrite.adopt(shard, tmp_path / "n", how=how)
        (h / f"meta/root/{name}.shardwrite-run.json").rename(document)
    assert shardwrite.verify(h, name=name or None, deep=True).is_good
    shardwrite.adopt(shard, tmp_path / "n", how="copy")
    np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / "n")[...], X[:4, :6])


def test_files_of_other_adoptions_and_conversions(tmp_path):
    """Neither has a document where its files lie."""
    files = make(tmp_path / "f")
    amid(files, tmp_path / "x")
    (taken,) = (tmp_path / "x.conversion.shardwrite").glob("work-*/adopted/c/0/0")
    da.from_array(X).to_sharded_zarr(tmp_path / "y", strategy="hdf5", **LAYOUT)
    shard = tmp_path / "y/c/0/0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shardwrite.journal.Consumption, "enter", stop)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.reshard(tmp_path / "y", tmp_path / "z", (2, 2), consume=True, drop_hdf5=True)
    assert not (tmp_path / "y/zarr.json").exists()
    for how in ("move", "link"):
        with pytest.raises(SpecError, match="which holds the state of a run"):
            shardwrite.adopt(taken, tmp_path / "n", how=how)
        with pytest.raises(JournalError, match=r"y is being converted in its place"):
            shardwrite.adopt(shard, tmp_path / "n", how=how)
    assert taken.exists()
    assert shard.exists()


def stop(*_args, **_keywords):
    raise KeyboardInterrupt


def store_at(way: str, path: Path):
    """A store of a directory that does not tell by its type that it is one."""
    if way == "fsspec":
        pytest.importorskip("fsspec")
        return zarr.storage.FsspecStore.from_url(f"file://{path}")
    obstore = pytest.importorskip("obstore")
    return zarr.storage.ObjectStore(obstore.store.LocalStore(str(path)))


@pytest.mark.parametrize("way", ["2022", "object store", "fsspec"])
@pytest.mark.parametrize("how", ["move", "link"])
def test_nothing_is_written_where_an_adoption_was_interrupted(tmp_path, way, how):
    """Whichever place the array would have, the adoption can be given up, and finished."""
    home = tmp_path / "home"
    home.mkdir()
    files, array = make(home / "f"), home / "z.zarr"
    before = {file: Path(file).read_bytes() for file in files}
    amid(files, array, how)
    if way == "2022":
        where, how_laid = (array, "q"), OLD
    else:
        where, how_laid = (store_at(way, home), "z.zarr"), {**LAYOUT, "run_dir": tmp_path / "runs"}
    with pytest.raises(JournalError, match="is being converted in its place"):
        da.from_array(X).to_sharded_zarr(where[0], name=where[1], **how_laid)
    assert not array.exists()
    assert shardwrite.abandon(array) == []
    assert {file: Path(file).read_bytes() for file in files} == before
    amid(files, array, how)
    assert shardwrite.adopt(files, array, how=how).shape == (12, 6)


def test_it_is_given_up_where_others_have_made_a_hierarchy_of_2022(tmp_path):
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    before = {file: Path(file).read_bytes() for file in files}
    da.from_array(X).to_sharded_zarr(tmp_path / "h", name="q", **OLD)
    amid(files, array)
    os.rename(tmp_path / "h", array)
    assert shardwrite.abandon(array) == []
    assert {file: Path(file).read_bytes() for file in files} == before
    np.testing.assert_array_equal(shardwrite.open_sharded(array, name="q")[...], X)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["f", "z.zarr"]


@pytest.mark.parametrize("how", ["move", "link"])
def test_an_adoption_of_other_files_is_given_up_before(tmp_path, how):
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    amid(files, array, how)
    again = files[:2][::-1]
    with pytest.raises(JournalError, match=r"an adoption of other files as .* abandon") as caught:
        shardwrite.adopt(again, array, how=how)
    assert "restart" not in str(caught.value)
    shardwrite.abandon(array)  # the remedy
    shardwrite.adopt(again, array, how=how)
    assert shardwrite.open_sharded(array)[::4, 0].tolist() == [100, 0]


@pytest.mark.parametrize("how", ["move", "link"])
def test_restart_restores_the_files_and_starts_over(tmp_path, how):
    files, array = make(tmp_path / "f"), tmp_path / "z.zarr"
    amid(files, array, how, at=2)
    assert shardwrite.adopt(files[::-1], array, how=how, restart=True).n_shards == 3
    assert shardwrite.open_sharded(array)[::4, 0].tolist() == [200, 100, 0]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["f", "z.zarr"]


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
    before = sorted((tmp_path / "z.zarr.conversion.shardwrite").rglob("new/z.zarr/*"))
    for restart in (False, True):
        with pytest.raises((JournalError, SpecError)):
            shardwrite.adopt(files, array, how="move", restart=restart)
    assert sorted((tmp_path / "z.zarr.conversion.shardwrite").rglob("new/z.zarr/*"))
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


@pytest.mark.parametrize("how", ["copy", "move", "link"])
@pytest.mark.parametrize("name", ["a\0.h5", b"a\0.h5", "\ud800", "", None])
def test_what_is_no_path_is_refused(tmp_path, how, name):
    """Also a directory for runs, and names of datasets that the library would cut off."""
    (file,) = make(tmp_path / "f", 1)
    for files in (name, [name], [file, name]):
        with pytest.raises(SpecError, match=r"files=.*no paths of files; give a list of paths"):
            shardwrite.adopt(files, tmp_path / "x", how=how)
    for dataset in ("v\0", "v\0w", "\ud800"):
        with pytest.raises(SpecError, match=r"dataset=.*no name of a dataset"):
            shardwrite.adopt(file, tmp_path / "x", how=how, dataset=dataset)
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
