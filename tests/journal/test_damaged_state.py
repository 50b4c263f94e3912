"""State of runs that is damaged: it is told with what helps, and nothing is lost by it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams
import zarr

import shardwrite
from shardwrite import JournalError, StoreError
from shardwrite.journal.lines import ensure_current

OLD = np.arange(64, dtype="i4").reshape(8, 8) + 1
LAYOUT = {"shards": 4, "chunks": 2}

pytestmark = pytest.mark.usefixtures("one_thread")


def source(values):
    return da.from_array(values, chunks=4)


def stop(*_):
    raise KeyboardInterrupt


def interrupt_replacement(path):
    """A call that has set the old array aside, and has written some shards of a new one."""
    source(OLD).to_sharded_zarr(path, **LAYOUT)
    with pytest.raises(KeyboardInterrupt):
        source(-OLD).to_sharded_zarr(path, mode="w", publish="first", progress=stop, **LAYOUT)


def torn(file):
    file.write_bytes(file.read_bytes()[:-9])


def empty(file):
    file.write_bytes(b"")


def no_text(file):
    file.write_bytes(b"\xff" + file.read_bytes()[1:])


def directory(file):
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("damage", [torn, empty, no_text, directory])
def test_nobody_is_told_to_remove_the_document_of_a_run(tmp_path, damage):
    """Without it, the old array would be removed with the run that is given up."""
    path = tmp_path / "x"
    interrupt_replacement(path)
    damage(seams.run_directory(path) / "zarr.json")
    state = seams.state_beside(path)
    with pytest.raises(JournalError, match=rf"Move {state} away after a look, and keep it"):
        shardwrite.abandon(path)
    kept = state.rename(tmp_path / "kept")
    (old,) = kept.glob("run-*/replaced")
    np.testing.assert_array_equal(zarr.open_array(old, mode="r")[...], OLD)


def test_data_of_an_array_whose_plan_is_damaged_stay(tmp_path):
    """Another array of the same run does not take them along when it is given up."""
    root, names = tmp_path / "tree", ["a", "b", "c"]

    def write(values, **more):
        arrays = [source(values + n) for n in range(3)]
        shardwrite.store(arrays, [root] * 3, names=names, source_id=str(more), **LAYOUT, **more)

    write(OLD)
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            write(-OLD, mode="w", publish="first")
    (run,) = tmp_path.rglob("run-*")
    torn(run / "1" / "plan.json")
    with pytest.raises(StoreError, match="holds data, and no plan there says whose") as caught:
        shardwrite.abandon(root, name="a")
    for name, n in (("a", 0), ("c", 2)):
        np.testing.assert_array_equal(zarr.open_array(root / name, mode="r")[...], OLD + n)
    kept = shutil.move(caught.value.fields["key"], tmp_path / "kept")
    np.testing.assert_array_equal(zarr.open_array(kept, mode="r")[...], OLD + 1)
    shardwrite.abandon(root, name="a")
    assert not list(tmp_path.rglob("together"))


@pytest.mark.parametrize("text", [b"12.3x", b"\0" * 32, b" " * 32])
def test_a_token_whose_deadline_is_damaged_counts_as_late(tmp_path, text):
    (tmp_path / "token-x").write_bytes(text)
    with pytest.raises(StoreError, match="could not be renewed in time"):
        ensure_current(str(tmp_path), "x")


def test_numbers_in_a_receipt_that_are_none(tmp_path):
    path = tmp_path / "x"
    n_shards = source(OLD).to_sharded_zarr(path, **LAYOUT).n_shards
    assert seams.status_of(path).n_shards == n_shards
    seams.change_receipt(path, lambda found: found["result"].update(n_shards=float("inf")))
    assert seams.status_of(path).n_shards == 0


def test_a_living_process_whose_log_has_a_damaged_head_keeps_its_temporaries(tmp_path):
    """The name of the log tells whose it is."""
    path, x = tmp_path / "x", source(OLD)
    shardwrite.prepare(x, path, shardwrite.plan(x, source_id="x", **LAYOUT))
    place = seams.part_directory(path, 0, 1)
    place.mkdir(parents=True)
    living = seams.parent_process()
    seams.forge_lease(place, **living)
    lines = [seams.begins("other.1", (1, 1), (2, 2))]
    log = seams.forge_log(place, "other", seams.this_process(**living), lines)
    log.write_bytes(b"x" + log.read_bytes()[1:])
    temporary = path / "c/1/.1.other.1.swtmp"
    temporary.touch()
    assert shardwrite.write_part(x, path, 0, 1, source_id="x").n_shards == 4
    assert temporary.exists()


def test_a_group_that_cannot_be_looked_at_is_named(tmp_path, monkeypatch):
    """The handle of its document is stale, as it can be on NFS."""
    group, real = tmp_path / "g", os.stat
    shardwrite.store([source(OLD)], [group], names=["x"], **LAYOUT)
    with pytest.warns(UserWarning, match="onsolidated"):
        zarr.consolidate_metadata(group)

    def stat(path, **how):
        if not how and not isinstance(path, int) and Path(path) == group / "zarr.json":
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(path, **how)

    monkeypatch.setattr(os, "stat", stat)
    with pytest.raises(StoreError, match=rf"cannot look at '{group}': Stale file handle"):
        source(OLD).to_sharded_zarr(group, name="y", **LAYOUT)
