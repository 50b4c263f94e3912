"""Several arrays in parts: they are cut together, and published together."""

from __future__ import annotations

import dask.array as da
import numpy as np
import obstore
import pytest
import seams
import zarr
from helpers import without_receipts

import shardwrite
from shardwrite.errors import IncompleteError, JournalError, SpecError

NAMES = ["a", "images/b", "c"]
LAYOUT = {"shards": 16, "chunks": 8}


@pytest.fixture
def arrays():
    x = da.arange(64 * 64, chunks=512, dtype="u4").reshape(64, 64).rechunk(16) + 1
    return [x, x * 2, x[:32].astype("u2")]


def plans_of(arrays):
    return [shardwrite.plan(x, memory_limit="50kB", **LAYOUT) for x in arrays]


def written(arrays, store, count, which=None, **keywords):
    which = range(count) if which is None else which
    return [shardwrite.write_part(arrays, store, k, count, names=NAMES, **keywords) for k in which]


def test_all_parts_together_are_what_one_call_stores(tmp_path, arrays):
    new, whole = tmp_path / "new", tmp_path / "whole"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    parts = written(arrays, new, 5)
    assert sum(one.n_shards for part in parts for one in part) == 16 + 16 + 8
    assert max(sum(one.raw_nbytes for one in part) for part in parts) <= 1.2 * 36864 / 5 + 1024
    assert not list(new.rglob("zarr.json")), "nothing is published before all is whole"
    done = shardwrite.finalize(new, names=NAMES, n_parts=5)
    assert [(one.path, one.n_shards) for one in done] == [
        (str(new / name), n) for name, n in zip(NAMES, (16, 16, 8), strict=True)
    ]
    stores = [whole] * len(NAMES)
    shardwrite.store(arrays, stores, names=NAMES, **LAYOUT)
    assert without_receipts(new) == without_receipts(whole)
    assert not list(tmp_path.rglob("*.shardwrite"))
    assert [one.n_shards for one in shardwrite.finalize(new, names=NAMES)] == [16, 16, 8]
    (again,) = written(arrays, new, 5, [0])
    assert again[0].n_shards == 16, "that of the whole array, which is published"


def test_one_run_is_begun_and_one_status_tells_of_all(tmp_path, arrays):
    new = tmp_path / "new"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    written(arrays, new, 4, [0, 3])
    assert len(list(new.rglob("plan.json"))) == len(NAMES)
    assert len(list(seams.state_beside(new).rglob("run-*"))) == 1
    found = seams.status_of(new)
    assert (found.n_shards, found.is_whole) == (40, False)
    assert 0 < found.n_done_shards < 40
    (run,) = seams.state_beside(new).rglob("run-*")
    seams.forge_lease(run, host="elsewhere")
    seams.forge_log(run, "other", seams.this_process(), [{"failed": "OSError ENOSPC"}])
    found = seams.status_of(new)
    assert (found.n_writers, found.failures) == (1, {"OSError ENOSPC": 1})


@pytest.mark.parametrize("harm", ["gone", "never written"])
def test_finalize_names_parts_over_all_arrays(tmp_path, arrays, harm):
    new = tmp_path / "new"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    written(arrays, new, 4, None if harm == "gone" else [0, 3])
    if harm == "gone":
        (new / "a/c/0/0").unlink()
        (new / "c/c/1/3").unlink()
    with pytest.raises(IncompleteError, match="of 4 must be written again") as caught:
        shardwrite.finalize(new, names=NAMES, n_parts=4)
    assert caught.value.parts == ([0, 3] if harm == "gone" else [1, 2])
    if harm == "gone":
        assert caught.value.missing == ["a/c/0/0", "c/c/1/3"]
    assert not list(new.rglob("zarr.json"))
    written(arrays, new, 4, caught.value.parts)
    shardwrite.finalize(new, names=NAMES, n_parts=4)
    found = zarr.open_group(new, mode="r")
    for name, x in zip(NAMES, arrays, strict=True):
        np.testing.assert_array_equal(found[name][...], x)


@pytest.mark.parametrize("place", ["directory", "bucket"])
def test_an_end_of_one_array_names_parts_over_all_arrays(tmp_path, arrays, place):
    new = tmp_path / "new" if place == "directory" else obstore.store.MemoryStore()
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    written(arrays, new, 4, [0, 3])
    told = []
    for which in ({"names": NAMES}, {"name": "images/b"}):
        with pytest.raises(IncompleteError) as caught:
            shardwrite.finalize(new, n_parts=4, **which)
        told.append((caught.value.parts, caught.value.missing))
    assert told[0] == told[1]
    assert told[0][0] == [1, 2]
    (note,) = [text for text in caught.value.__notes__ if "The parts are those of all" in text]
    assert "of images/b parts 0, 1, 2 of 4" in note, "as a call for it alone would cut it"
    written(arrays, new, 4, [1, 2])
    assert shardwrite.finalize(new, name="images/b", n_parts=4).n_shards == 16
    assert [one.n_shards for one in shardwrite.finalize(new, names=NAMES)] == [16, 16, 8]


@pytest.mark.long
def test_an_end_of_one_array_that_alone_is_not_whole(tmp_path, arrays):
    new = tmp_path / "new"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    written(arrays, new, 4)
    (new / "c/c/1/3").unlink()
    with pytest.raises(IncompleteError, match="part 3 of 4 must be written again") as caught:
        shardwrite.finalize(new, name="c", n_parts=4)
    assert (caught.value.parts, caught.value.missing) == ([3], ["c/1/3"])
    written(arrays, new, 4, [3])
    shardwrite.finalize(new, name="c", n_parts=4)


@pytest.mark.long
def test_sources_that_plans_name_need_not_be_given_again(tmp_path, arrays):
    olds = [zarr.create_array(tmp_path / f"old{n}", data=x.compute()) for n, x in enumerate(arrays)]
    new = tmp_path / "new"
    shardwrite.prepare(olds, new, plans_of(olds), names=NAMES)
    assert sum(len(part) for part in written(None, new, 3)) >= 3
    shardwrite.finalize(new, names=NAMES)
    for name, x in zip(NAMES, arrays, strict=True):
        np.testing.assert_array_equal(shardwrite.open_sharded(new / name)[...], x)
    assert written(None, new, 3, [2])[0][-1].n_shards == 8


def test_a_part_looks_at_no_arrays_of_which_it_has_nothing(tmp_path, arrays):
    new = tmp_path / "new"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    (
        seams.state_beside(new, "images/b") / "plan.json"
    ).unlink()  # a part that looked there would know of no run
    (first,) = written(arrays, new, 5, [0])
    assert [one.path for one in first] == [str(new / "a")]
    with pytest.raises(IncompleteError, match="nothing was begun"):
        written(arrays, new, 5, [2])


def test_stores_of_their_own(tmp_path, arrays):
    stores, names = [tmp_path / "one", tmp_path / "two"], [None, "x"]
    some = arrays[:2]
    shardwrite.prepare(some, stores, plans_of(some), names=names)
    shardwrite.write_part(some, stores, 0, 1, names=names)
    shardwrite.finalize(stores, names=names)
    for path, x in zip((stores[0], stores[1] / "x"), some, strict=True):
        np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], x)


@pytest.mark.parametrize("keeps", [True, False], ids=["run_dir", "bucket"])
def test_into_a_bucket(tmp_path, arrays, keeps):
    """The state of the run lies in a directory, or in the bucket, where it is one, too."""
    store, how = obstore.store.MemoryStore(), {"run_dir": tmp_path} if keeps else {}
    shardwrite.prepare(arrays, store, plans_of(arrays), names=NAMES, **how)
    written(arrays, store, 3, [0, 2], **how)
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(store, names=NAMES, n_parts=3, **how)
    assert caught.value.parts == [1]
    written(arrays, store, 3, [1], **how)
    shardwrite.finalize(store, names=NAMES, **how)
    for name, x in zip(NAMES, arrays, strict=True):
        np.testing.assert_array_equal(shardwrite.open_sharded(store, name=name)[...], x)
    there = {entry["path"].rpartition("/")[2] for page in obstore.list(store) for entry in page}
    assert "shardwrite-receipt.json" in there
    assert "shardwrite-run.json" not in there, "nothing of the run is left"


def test_scales_of_a_volume(tmp_path):
    """One plan has them all, and they enter the volume when all are whole."""
    x = da.from_array(np.arange(1, 1 + 32**3, dtype="u2").reshape(32, 32, 32), chunks=16)
    half, volume = x[:, ::2, ::2], tmp_path / "volume"
    options = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 8, "shard_nbytes": "16kB"}
    plan = shardwrite.plan_precomputed(
        x, volume, scales={(8, 8, 40): half}, memory_limit="1MB", **options
    )
    names = ["4_4_40", "8_8_40"]
    shardwrite.prepare([x, half], volume, plan, names=names)
    for k in range(3):
        shardwrite.write_part([x, half], volume, k, 3, names=names)
    assert not (volume / "info").exists()
    assert len(list(seams.state_beside(volume).rglob("run-*"))) == 1
    shardwrite.finalize(volume, names=names, n_parts=3)
    whole = tmp_path / "whole"
    shardwrite.to_precomputed(x, whole, scales={(8, 8, 40): half}, **options)
    assert without_receipts(volume) == without_receipts(whole)


def test_a_scale_whose_hash_scatters_the_chunks(tmp_path):
    """It goes in two rounds, and so alone."""
    x = da.from_array(np.arange(1, 1 + 16**3, dtype="u2").reshape(16, 16, 16), chunks=8)
    sharding = {"hash": "murmurhash3_x86_128", "preshift_bits": 0, "minishard_bits": 1}
    plan = shardwrite.plan_precomputed(
        x, axes="zyx", resolution=(4, 4, 40), chunks=8, sharding={**sharding, "shard_bits": 1}
    )
    names, volume = ["4_4_40", "8_8_40"], tmp_path / "volume"
    with pytest.raises(SpecError, match="prepare this scale by a call of its own"):
        shardwrite.prepare([x, x], volume, [plan, plan], names=names)
    scale = volume / names[0]
    shardwrite.prepare(x, scale, plan)
    with pytest.raises(SpecError, match="write it by calls of its own"):
        shardwrite.write_part([x], volume, 0, 1, names=names[:1])
    with pytest.raises(SpecError, match="write it by calls of its own"):
        shardwrite.finalize(volume, names=names[:1])
    shardwrite.write_part(x, scale, 0, 1)
    shardwrite.finalize(scale)
    np.testing.assert_array_equal(shardwrite.from_precomputed(volume, axes="zyx"), x)


@pytest.mark.parametrize(
    ("keywords", "field"),
    [
        ({"names": NAMES[:2]}, "x"),
        ({"names": "abc"}, "names"),
        ({"names": []}, "names"),
        ({"names": NAMES, "name": "a"}, "name"),
        ({"names": NAMES, "store": ["a", "b"]}, "store"),
        ({"names": NAMES, "plan": []}, "plan"),
        ({"names": NAMES, "plan": [1, 2, 3]}, "plan"),
        ({"names": ["a", "b", "b"]}, "stores"),
    ],
)
def test_what_cannot_be_prepared(tmp_path, arrays, monkeypatch, keywords, field):
    monkeypatch.chdir(tmp_path)
    keywords = {"x": arrays, "store": tmp_path / "new", "plan": plans_of(arrays), **keywords}
    with pytest.raises(SpecError) as caught:
        shardwrite.prepare(**keywords)
    assert caught.value.fields["field"] == field
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_another_source_is_refused(tmp_path, arrays):
    new = tmp_path / "new"
    shardwrite.prepare(arrays, new, plans_of(arrays), names=NAMES)
    with pytest.raises(JournalError, match="source"):
        written([arrays[1], arrays[0], arrays[2]], new, 2)
