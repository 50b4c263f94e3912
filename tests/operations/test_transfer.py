"""Uploads and downloads: every object and every document arrives as it was, byte for byte."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import obstore
import obstore.store
import pytest
import seams
import zarr
from click.testing import CliRunner
from helpers import Stop, digests
from zarr.codecs import GzipCodec, ShardingCodec

import shardwrite
from shardwrite import ChangedError, CorruptShardError, SpecError, StoreError
from shardwrite.cli import main
from shardwrite.place.target import StateInBucket
from shardwrite.stores.bucket import BucketStore
from shardwrite.volumes.documents import replace_info

RECEIPT = "shardwrite-receipt.json"
VALUES = np.random.default_rng(0).integers(1, 2**32, (40, 24), dtype="u4")


def make_array(path, **options):
    """An array in which some shards are missing, and some inner chunks of others."""
    layout = {"shards": 16, "chunks": 4, **options}
    shardwrite.to_sharded_zarr(source(), path, **layout)


def source():
    """What `make_array` writes."""
    values = VALUES.copy()
    values[:16, :16] = 0
    values[16:20] = 0
    return da.from_array(values, chunks=(16, 24))


def make_hierarchy(path, *, is_consolidated=True):
    """Groups and arrays, sharded and not, by this package and by zarr-python."""
    root = zarr.create_group(path, attributes={"title": "all", "none": None})
    images = root.create_group("images", attributes={"of": "cells"})
    root.create_group("empty")
    images.create_array("plain", shape=(9, 7), chunks=(4, 4), dtype="f4")[...] = 5
    # zarr-python 3.1.0 loses chunks of `data` if it creates the array with them.
    images.create_array(
        "dots", shape=(8, 8), dtype="u4", chunks=(4, 4), shards=(8, 8), dimension_names=("y", None),
        chunk_key_encoding={"name": "v2", "separator": "."},
    )[...] = VALUES[:8, :8]  # fmt: skip
    root.create_array("scalar", shape=(), dtype="i8")[...] = 7
    make_array(path / "deep" / "nested")
    if is_consolidated:
        zarr.consolidate_metadata(path)


def keys(store):
    return sorted(one["path"] for some in obstore.list(store) for one in some)


def in_bucket(store, *replaced):
    """The same for a bucket, where documents that replaced others may end in line breaks."""
    return {
        key: hashlib.sha256(contents(store, key, is_replaced=key in replaced)).hexdigest()
        for key in keys(store)
        if not key.endswith(RECEIPT)
    }


def contents(store, key, *, is_replaced):
    data = bytes(obstore.get(store, key).bytes())
    return data.rstrip(b"\n") if is_replaced else data


@pytest.fixture
def bucket():
    return obstore.store.MemoryStore()


@pytest.mark.compat
@pytest.mark.parametrize(
    "options",
    [{}, {"index_location": "start"}, {"shards": None}, {"strategy": "append-only"}],
    ids=lambda options: "-".join(map(str, options.values())) or "sharded",
)
def test_an_array_there_and_back(tmp_path, bucket, options):
    make_array(tmp_path / "a", **options)
    wanted = digests(tmp_path / "a")
    done = shardwrite.upload(tmp_path / "a", bucket)
    n_objects = len(wanted) - 1
    assert (done.n_objects, done.n_resumed, done.n_groups) == (n_objects, 0, 0)
    assert done.stored_nbytes == sum(
        (tmp_path / "a" / key).stat().st_size for key in wanted if key != "zarr.json"
    )
    assert in_bucket(bucket) == wanted
    assert shardwrite.verify(bucket, deep=True, against=tmp_path / "a").is_good
    shardwrite.download(bucket, tmp_path / "b")
    assert digests(tmp_path / "b") == wanted
    assert shardwrite.verify(tmp_path / "b", deep=True).is_good
    assert sorted(os.listdir(tmp_path)) == ["a", "b"], "no state of a run is left"


ODD = {
    "no elements": {"shape": (0, 4), "chunks": (2, 2), "dtype": "i4"},
    "no shards stored": {"shape": (9, 9), "chunks": (2, 2), "shards": (4, 4), "dtype": "i4"},
    "text": {"data": np.array(["a", "b", "cc", ""]), "chunks": (2,), "shards": (4,)},
    "codecs around a sharding": {
        "shape": (8, 8), "chunks": (8, 8), "dtype": "i4", "zarr_format": 3,
        "codecs": [ShardingCodec(chunk_shape=(4, 4)), GzipCodec()],
    },
    "shards in shards": {
        "shape": (8, 8), "chunks": (8, 8), "dtype": "i4", "zarr_format": 3,
        "codecs": [
            ShardingCodec(chunk_shape=(4, 4), codecs=[ShardingCodec(chunk_shape=(2, 2))])
        ],
    },
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*data type:UserWarning")
@pytest.mark.parametrize("odd", ODD)
def test_odd_arrays_there_and_back(tmp_path, bucket, odd):
    given = ODD[odd]
    if "codecs" in given:
        zarr.create(store=tmp_path / "a", **given)[...] = VALUES[:8, :8]
    else:
        zarr.create_array(tmp_path / "a", **given)
    wanted = digests(tmp_path / "a")
    shardwrite.upload(tmp_path / "a", bucket)
    assert in_bucket(bucket) == wanted
    shardwrite.download(bucket, tmp_path / "b")
    assert digests(tmp_path / "b") == wanted


@pytest.mark.parametrize("other", ["", "extra"])
def test_a_copy_lists_what_it_has_and_nothing_else(tmp_path, other):
    """A link is left out, and an array that is gone stayed in the list; `other` stood there."""
    make_hierarchy(tmp_path / "h")
    os.rename(tmp_path / "h/images/dots", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", tmp_path / "h/images/dots")
    shutil.rmtree(tmp_path / "h/scalar")
    if other:
        zarr.create_group(tmp_path / "b").create_array(other, shape=(3,), dtype="u1")[...] = 4
        zarr.consolidate_metadata(tmp_path / "b")
    bucket = obstore.store.MemoryStore()
    for _ in range(2):  # the second call finds its own list
        done = shardwrite.upload(tmp_path / "h", bucket)
        assert ("images/dots", "a symbolic link") in done.left_out
        shardwrite.download(bucket, tmp_path / "b", mode="w" if other else "w-")
    left = {"images", "images/plain", "empty"}
    for store, stays in (
        (zarr.storage.ObjectStore(bucket), set()),
        (tmp_path / "b", {other} - {""}),
    ):
        root = zarr.open_group(store, mode="r", use_consolidated=True)
        assert set(dict(root.members(max_depth=None))) == left | stays
        assert list(root["images"].array_keys()) == ["plain"]
        assert dict(root.attrs) == {"title": "all", "none": None}


@pytest.mark.parametrize("is_consolidated", [True, False])
def test_a_hierarchy_there_and_back(tmp_path, bucket, is_consolidated):
    make_hierarchy(tmp_path / "h", is_consolidated=is_consolidated)
    wanted = digests(tmp_path / "h")
    done = shardwrite.upload(tmp_path / "h", bucket)
    assert [array.name for array in done.arrays] == [
        "deep/nested", "images/dots", "images/plain", "scalar",
    ]  # fmt: skip
    assert done.n_groups == len([key for key in wanted if key.endswith("zarr.json")]) - 4
    assert in_bucket(bucket) == wanted
    again = shardwrite.upload(tmp_path / "h", bucket)
    assert again.n_objects == done.n_objects
    shardwrite.download(bucket, tmp_path / "b" / "h")
    assert digests(tmp_path / "b" / "h") == wanted
    found = zarr.open_group(tmp_path / "b" / "h", use_consolidated=is_consolidated or None)
    np.testing.assert_array_equal(found["images/dots"][...], VALUES[:8, :8])


@pytest.mark.long
def test_a_copy_in_an_existing_hierarchy_is_entered_above(tmp_path):
    make_hierarchy(tmp_path / "h")
    zarr.create_group(tmp_path / "all")
    zarr.consolidate_metadata(tmp_path / "all")
    shardwrite.download(tmp_path / "h", tmp_path / "all" / "copy")
    assert digests(tmp_path / "all" / "copy") == digests(tmp_path / "h")
    listed = json.loads((tmp_path / "all" / "zarr.json").read_text())["consolidated_metadata"]
    assert {"copy", "copy/images", "copy/images/dots", "copy/scalar"} <= set(listed["metadata"])
    assert "copy/deep/nested" not in listed["metadata"], "its group has no document"


def stopping_after(n):
    """A receiver of progress that fails at the n-th report."""
    reports = []

    def stop(report):
        reports.append(report)
        if len(reports) == n:
            raise Stop

    return stop


@pytest.fixture
def puts(monkeypatch):
    """Names of the objects of arrays that are put, in order."""
    put, found = BucketStore._put, []

    def noted(self, name, data, mode):
        if not name.endswith((".json", ".tmp")) and "probe" not in name:
            found.append(name)
        put(self, name, data, mode)

    monkeypatch.setattr(BucketStore, "_put", noted)
    return found


@pytest.mark.long
def test_resumed_without_sending_anything_twice(tmp_path, bucket, puts):
    make_hierarchy(tmp_path / "h")
    n_objects = 0
    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            shardwrite.upload(tmp_path / "h", bucket, progress=stopping_after(2))
        assert not [key for key in keys(bucket) if key.endswith("zarr.json")], (
            "nothing is published"
        )
        n_before = len(puts)
        assert n_before
        done = shardwrite.upload(tmp_path / "h", bucket)
    n_objects = done.n_objects
    assert done.n_resumed >= n_before
    assert len(puts) == len(set(puts)) == n_objects
    assert in_bucket(bucket) == digests(tmp_path / "h")


@pytest.mark.long
def test_a_call_that_stops_between_arrays_and_groups_goes_on(tmp_path, bucket, puts, monkeypatch):
    make_hierarchy(tmp_path / "h")
    n = []

    def stop(place, *_):
        n.append(place)
        if len(n) == 3:
            raise Stop

    seams.before(monkeypatch, "put a document", stop)
    with pytest.raises(Stop):
        shardwrite.upload(tmp_path / "h", bucket)
    assert "zarr.json" not in keys(bucket), "the root is the last"
    n_before = len(puts)
    shardwrite.upload(tmp_path / "h", bucket)
    assert len(puts) == n_before
    assert in_bucket(bucket) == digests(tmp_path / "h")


@pytest.mark.parametrize("damage", ["torn", "index", "empty"])
def test_a_bad_shard_is_told_and_nothing_is_published(tmp_path, bucket, damage):
    make_array(tmp_path / "h" / "a")
    make_array(tmp_path / "h" / "b")
    wanted = digests(tmp_path / "h")
    shard = tmp_path / "h" / "a" / "c" / "1" / "0"
    whole = shard.read_bytes()
    bad = {"torn": whole[:-9], "index": whole[:-20] + bytes(16) + whole[-4:], "empty": b""}[damage]
    shard.write_bytes(bad)
    with pytest.raises(CorruptShardError, match="c/1/0") as caught:
        shardwrite.upload(tmp_path / "h", bucket)
    assert caught.value.fields["key"] == "c/1/0"
    (note,) = [note for note in caught.value.__notes__ if "repair" in note]
    assert "nothing is published" in note
    assert not [key for key in keys(bucket) if key.endswith("zarr.json")]
    shardwrite.repair(tmp_path / "h" / "a", source())
    shardwrite.upload(tmp_path / "h", bucket)
    assert in_bucket(bucket) == wanted


def test_a_chunk_of_a_wrong_size_is_told(tmp_path, bucket):
    make_array(tmp_path / "a", shards=None, compressors=None)
    chunk = tmp_path / "a" / "c" / "9" / "5"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(CorruptShardError, match="c/9/5"):
        shardwrite.upload(tmp_path / "a", bucket)
    assert "zarr.json" not in keys(bucket)


@pytest.mark.parametrize("shards", [16, None], ids=["sharded", "plain"])
@pytest.mark.parametrize("loss", ["removed", "replaced"])
def test_what_is_lost_before_the_end_is_sent_again(tmp_path, bucket, puts, loss, shards):
    make_array(tmp_path / "a", shards=shards, chunks=4 if shards else (16, 8))

    def lose(report):
        if "c/2/1" in keys(bucket) and puts.count("c/2/1") == 1:
            if loss == "removed":
                obstore.delete(bucket, "c/2/1")
            else:
                obstore.put(bucket, "c/2/1", obstore.get(bucket, "c/1/0").bytes())

    shardwrite.upload(tmp_path / "a", bucket, progress=lose)
    n_refused = int(loss == "replaced")  # as an object stands there, which is looked at then
    assert puts.count("c/2/1") == 2 + n_refused
    assert len(puts) == len(set(puts)) + 1 + n_refused
    assert in_bucket(bucket) == digests(tmp_path / "a")


@pytest.mark.long
def test_what_exists_is_refused_and_replaced_on_request(tmp_path, bucket):
    make_array(tmp_path / "a")
    make_array(tmp_path / "b", chunks=8)
    make_hierarchy(tmp_path / "h")
    shardwrite.upload(tmp_path / "a", bucket)
    for other in ("b", "h"):
        before = in_bucket(bucket)
        with pytest.raises(SpecError, match=r"exists|stands there"):
            shardwrite.upload(tmp_path / other, bucket)
        assert in_bucket(bucket) == before
    shardwrite.upload(tmp_path / "b", bucket, mode="w")
    assert in_bucket(bucket, "zarr.json") == digests(tmp_path / "b")
    groups = obstore.store.MemoryStore()
    shardwrite.upload(tmp_path / "h", groups)
    zarr.open_group(tmp_path / "h", mode="a").attrs["title"] = "another"
    with pytest.raises(SpecError, match="another group stands there"):
        shardwrite.upload(tmp_path / "h", groups)
    shardwrite.upload(tmp_path / "h", groups, mode="w")
    documents = [key for key in keys(groups) if key.endswith("zarr.json")]
    assert in_bucket(groups, *documents) == digests(tmp_path / "h")


def test_what_is_not_copied_as_it_is(tmp_path, bucket):
    make_array(tmp_path / "a")
    zarr.create_array(tmp_path / "v2", shape=(4,), chunks=(2,), dtype="i4", zarr_format=2)
    zarr.create_group(tmp_path / "group2", zarr_format=2).create_array(
        "x", shape=(4,), chunks=(2,), dtype="i4"
    )
    for source, told in (("v2", "Zarr v2"), ("group2", "Zarr v2")):
        with pytest.raises(SpecError, match=f"{told}.*reshard"):
            shardwrite.upload(tmp_path / source, bucket)
    with pytest.raises(SpecError, match="there is no such directory"):
        shardwrite.upload(tmp_path / "nothing", bucket)
    with pytest.raises(SpecError, match="outside of the source"):
        shardwrite.download(tmp_path / "a", tmp_path / "a" / "b")
    with pytest.raises(SpecError, match="download copies to a directory"):
        shardwrite.upload(tmp_path / "a", tmp_path / "b")
    with pytest.raises(SpecError, match="upload copies to a URL"):
        shardwrite.download(tmp_path / "a", "memory://b")
    assert not keys(bucket)


def make_volume(path, *factors, **options):
    """Scales of a volume, each coarser by a factor."""
    x = da.from_array((VALUES % 7).astype("u4"), chunks=9)[None]
    for n in factors:
        shardwrite.to_precomputed(
            x[:, ::n, ::n],
            path,
            axes="zyx",
            **{"resolution": (4 * n, 4 * n, 40), "chunks": 8, "shard_nbytes": 999, **options},
        )


def scales_in(store):
    """Keys of the scales of a volume in a bucket, the finest first."""
    return [scale["key"] for scale in json.loads(bytes(store.get("info").bytes()))["scales"]]


@pytest.mark.long
def test_a_volume_there_and_back(tmp_path, bucket, puts, monkeypatch):
    make_volume(tmp_path / "v", 1, 2)

    with monkeypatch.context() as patched:
        patched.setattr(
            *seams.step("replace the info of a volume"), lambda *_: stopping_after(1)(None)
        )
        with pytest.raises(Stop):
            shardwrite.upload(tmp_path / "v", bucket)
    wanted = digests(tmp_path / "v")
    assert set(wanted) - set(in_bucket(bucket)) == {"info"}, "it is the last"
    n_before = len(puts)
    done = shardwrite.upload(tmp_path / "v", bucket)
    assert puts[n_before:] == ["info"]
    assert done.left_out == ()
    assert in_bucket(bucket) == wanted
    shardwrite.download(bucket, tmp_path / "w")
    assert digests(tmp_path / "w") == wanted
    ours = shardwrite.from_precomputed(tmp_path / "w", scale="4_4_40", axes="zyx")
    np.testing.assert_array_equal(ours[0], VALUES % 7)
    make_volume(tmp_path / "v", 4)
    plan = shardwrite.plan_transfer(tmp_path / "v", bucket)
    n_before = len(puts)
    shardwrite.upload(tmp_path / "v", bucket)
    assert puts[-1] == "info"
    assert {name.split("/")[0] for name in puts[n_before:-1]} == {"16_16_40"}, "one more scale"
    assert in_bucket(bucket) == digests(tmp_path / "v")
    assert plan.requests_to_target.n_put == plan.n_objects + 3 * 3 + 1 + 4


@pytest.mark.long
def test_volumes_that_are_not_copied_as_they_are(tmp_path, bucket):
    make_volume(tmp_path / "other", 1, resolution=(5, 5, 5))
    make_volume(tmp_path / "v", 1)
    info = tmp_path / "v" / "info"
    shardwrite.upload(tmp_path / "other", bucket)
    before = in_bucket(bucket)
    with pytest.raises(SpecError, match=r'another volume stands there.*mode="w"'):
        shardwrite.upload(tmp_path / "v", bucket)
    assert in_bucket(bucket) == before
    shardwrite.upload(tmp_path / "v", bucket, mode="w")
    assert in_bucket(bucket)["info"] == digests(tmp_path / "v")["info"]
    document = json.loads(info.read_text())
    foreign = {**document["scales"][0], "key": "files", "sharding": None}
    info.write_text(json.dumps({**document, "scales": [*document["scales"], foreign]}))
    with pytest.raises(SpecError, match=r"'files', which shardwrite has not written.*another tool"):
        shardwrite.upload(tmp_path / "v", bucket)
    info.write_text("{}")
    with pytest.raises(SpecError, match="data_type") as caught:
        shardwrite.upload(tmp_path / "v", bucket)
    assert caught.value.__notes__ == [f"this is {tmp_path / 'v'}/info"]
    info.write_text(json.dumps({**document, "mesh": "mesh"}))
    done = shardwrite.upload(tmp_path / "v", obstore.store.MemoryStore())
    assert [path for path, _ in done.left_out] == ["mesh"]


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_scales_that_others_enter_meanwhile_stay_in_info(tmp_path, bucket, mode):
    make_volume(tmp_path / "v", 1, 2)
    shardwrite.upload(tmp_path / "v", bucket)
    make_volume(tmp_path / "v", 4)
    others = iter([lambda: make_volume(bucket, 3)])
    shardwrite.upload(tmp_path / "v", bucket, mode=mode, progress=lambda _: next(others, int)())
    keys_there = ["4_4_40", "8_8_40", "12_12_40", "16_16_40"]
    assert scales_in(bucket) == keys_there
    before = in_bucket(bucket)
    for n, key in zip([1, 2, 3, 4], keys_there, strict=True):
        ours = shardwrite.from_precomputed(bucket, scale=key, axes="zyx")
        np.testing.assert_array_equal(ours[0], VALUES[::n, ::n] % 7)
    shardwrite.upload(tmp_path / "v", bucket)
    assert in_bucket(bucket) == before, "the same call again changes nothing"


def test_an_info_that_changes_while_it_is_replaced(bucket):
    """A request that puts it is refused then, and the new one is made of what stands there."""
    seen = []

    def change(old):
        seen.append(old)
        if len(seen) == 1:
            bucket.put("info", b"of another process")
        return b"and ours: " + (old or b"")

    # Processes on several machines share no directory in which one of them could hold a claim.
    target = seams.target_of(bucket)
    state = StateInBucket(target.place, target.beside)
    replace_info(replace(target, state=state), change, "none")
    assert seen == [None, b"of another process"]
    assert bytes(bucket.get("info").bytes()) == b"and ours: of another process"


@pytest.mark.long
def test_another_volume_that_is_begun_meanwhile(tmp_path, bucket):
    make_volume(tmp_path / "v", 1)
    others = iter([lambda: make_volume(bucket, 2, type="segmentation")])
    with pytest.raises(SpecError, match=r'another volume stands there.*mode="w"'):
        shardwrite.upload(tmp_path / "v", bucket, progress=lambda _: next(others, int)())
    assert scales_in(bucket) == ["8_8_40"]


@pytest.mark.long
def test_nobody_reads_a_volume_by_the_info_of_the_one_before(tmp_path, bucket):
    make_volume(tmp_path / "other", 1, 2, chunks=4)
    make_volume(tmp_path / "v", 1)
    shardwrite.upload(tmp_path / "other", bucket)
    with pytest.raises(Stop):
        shardwrite.upload(tmp_path / "v", bucket, mode="w", progress=stopping_after(1))
    assert scales_in(bucket) == []
    shardwrite.upload(tmp_path / "v", bucket, mode="w")
    assert in_bucket(bucket)["info"] == digests(tmp_path / "v")["info"]


@pytest.mark.long
def test_two_sources_at_once(tmp_path, puts):
    """The state of each lies beside its source, so a mark in the bucket tells one from the other."""
    (tmp_path / "there").mkdir()
    bucket = obstore.store.LocalStore(tmp_path / "there")
    for name in ("a", "b"):
        make_array(tmp_path / name)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            shardwrite.upload(tmp_path / "a", bucket, progress=stopping_after(1))
        assert (tmp_path / "a.upload.shardwrite").is_dir()
        with pytest.raises(SpecError, match="its state is not where this call looks for it"):
            shardwrite.upload(tmp_path / "b", bucket)
        assert not (tmp_path / "there" / "zarr.json").exists()
        shardwrite.upload(tmp_path / "a", bucket)
    assert in_bucket(bucket) == digests(tmp_path / "a")
    assert not (tmp_path / "a.upload.shardwrite").exists()


@pytest.mark.parametrize("given", ["argument", "configuration"])
def test_another_directory_for_the_state(tmp_path, given):
    (tmp_path / "there").mkdir()
    bucket, runs = obstore.store.LocalStore(tmp_path / "there"), tmp_path / "runs"
    make_array(tmp_path / "a")
    words = {"run_dir": runs} if given == "argument" else {}
    with (
        dask.config.set({"shardwrite.run-dir": None if words else str(runs)}),
        pytest.raises(Stop),
    ):
        shardwrite.upload(tmp_path / "a", bucket, progress=stopping_after(1), **words)
    assert list(runs.iterdir())
    assert sorted(os.listdir(tmp_path)) == ["a", "runs", "there"]


@pytest.mark.long
def test_in_processes(tmp_path):
    (tmp_path / "there").mkdir()
    bucket = obstore.store.LocalStore(tmp_path / "there")
    make_hierarchy(tmp_path / "h")
    with dask.config.set(scheduler="processes", num_workers=2):
        shardwrite.upload(tmp_path / "h", bucket)
        shardwrite.download(bucket, tmp_path / "b")
    assert in_bucket(bucket) == digests(tmp_path / "h") == digests(tmp_path / "b")


def test_a_shard_that_is_replaced_while_it_is_copied_is_copied_again(tmp_path, bucket, monkeypatch):
    from shardwrite.write import emitter

    make_array(tmp_path / "a")
    make_array(tmp_path / "other", chunks=(4, 4))
    shard, times = tmp_path / "a" / "c" / "1" / "0", []
    new, copy = (tmp_path / "other" / "c" / "2" / "0").read_bytes(), emitter.copy_bytes

    def copy_and_replace(read, writer, nbytes, offset=0):
        copy(read, writer, nbytes, offset)
        if read(0, offset + nbytes) == shard.read_bytes() and not times:
            times.append(1)
            shard.with_name("new").write_bytes(new)
            shard.with_name("new").rename(shard)

    monkeypatch.setattr(emitter, "copy_bytes", copy_and_replace)
    with dask.config.set({"scheduler": "sync"}):
        shardwrite.upload(tmp_path / "a", bucket)
    assert times
    assert in_bucket(bucket) == digests(tmp_path / "a")


def changed_by(how, path):
    """Change an array under a copy, so that no size and no index need differ."""
    array = zarr.open_array(path, mode="r+")
    if how == "values":
        array[...] = array[...] + 1
    elif how == "one more":
        array[:16, :16] = 7
    elif how == "gone":
        (path / "c" / "1" / "0").unlink()


@pytest.mark.parametrize("how", ["values", "one more"])
@pytest.mark.parametrize("options", [{"compressors": None}, {"shards": None}, {}], ids=str)
def test_a_source_that_changes_is_copied_as_it_is_in_the_end(tmp_path, bucket, options, how):
    """A copy of old and of new objects is none."""
    make_array(tmp_path / "a", **options)
    reports = []

    def change(report):
        reports.append(report)
        if len(reports) == 1:
            changed_by(how, tmp_path / "a")

    with dask.config.set(scheduler="sync"):
        shardwrite.upload(tmp_path / "a", bucket, progress=change)
    assert in_bucket(bucket) == digests(tmp_path / "a")


def test_an_object_that_is_removed_while_it_is_copied_is_told(tmp_path, bucket):
    make_array(tmp_path / "a")
    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(StoreError, match="was copied, and is gone"),
    ):
        shardwrite.upload(
            tmp_path / "a",
            bucket,
            progress=lambda report: (
                changed_by("gone", tmp_path / "a")
                if (tmp_path / "a" / "c" / "1" / "0").exists()
                else None
            ),
        )
    assert "zarr.json" not in keys(bucket)


@pytest.mark.long
def test_a_source_that_changed_between_two_calls_is_copied_as_it_is(tmp_path, bucket):
    make_array(tmp_path / "a")
    with dask.config.set(scheduler="sync"):
        with pytest.raises(Stop):
            shardwrite.upload(tmp_path / "a", bucket, progress=stopping_after(1))
        changed_by("values", tmp_path / "a")
        done = shardwrite.upload(tmp_path / "a", bucket)
    assert done.n_resumed
    assert in_bucket(bucket) == digests(tmp_path / "a")


def consumed_to(path):
    """A URL of a directory, which is durable."""
    return path.as_uri()


@pytest.mark.parametrize("options", [{}, {"shards": None}], ids=["sharded", "plain"])
def test_a_source_is_consumed(tmp_path, options):
    make_array(tmp_path / "a", **options)
    wanted = digests(tmp_path / "a")
    done = shardwrite.upload(tmp_path / "a", consumed_to(tmp_path / "b"), consume=True)
    assert done.n_removed == done.n_objects == len(wanted) - 1
    assert digests(tmp_path / "b") == wanted
    assert sorted(os.listdir(tmp_path)) == ["b"]
    again = shardwrite.upload(tmp_path / "a", consumed_to(tmp_path / "b"), consume=True)
    assert (again.n_removed, again.n_objects) == (0, done.n_objects)


def test_a_source_is_consumed_step_by_step(tmp_path):
    """Whenever it stops, each object is in one of both places, and the same call goes on."""
    make_array(tmp_path / "a", shards=None)
    wanted, url = digests(tmp_path / "a"), consumed_to(tmp_path / "b")
    n_stops = 0
    with dask.config.set(scheduler="sync"):
        while True:
            try:
                shardwrite.upload(tmp_path / "a", url, consume=True, progress=stopping_after(1))
            except Stop:
                n_stops += 1
                found = digests(tmp_path / "b") | digests(tmp_path / "a")
                both = {key: value for key, value in found.items() if key.startswith("c/")}
                assert both == {key: value for key, value in wanted.items() if key != "zarr.json"}
                with pytest.raises(SpecError):
                    shardwrite.open_sharded(tmp_path / "a")
            else:
                break
            if n_stops > 1:
                shardwrite.upload(tmp_path / "a", url, consume=True)
                break
    assert n_stops
    assert digests(tmp_path / "b") == wanted
    assert sorted(os.listdir(tmp_path)) == ["b"]


def test_a_copy_that_differs_removes_nothing(tmp_path, monkeypatch):
    """The copy has another byte, and the index and the size of the shard are right."""
    from shardwrite.write.emitter import Emitter

    make_array(tmp_path / "a")
    wanted, whole = digests(tmp_path / "a"), Emitter.whole

    def changed(self, reader, table):
        written = whole(self, reader, table)
        if self.index == (1, 0):
            file = tmp_path / "b" / "c" / "1" / "0"
            data = bytearray(file.read_bytes())
            data[0] ^= 1
            file.write_bytes(data)
        return written

    monkeypatch.setattr(Emitter, "whole", changed)
    with pytest.raises(CorruptShardError, match="not the same as in the source"):
        shardwrite.upload(tmp_path / "a", consumed_to(tmp_path / "b"), consume=True)
    found = {key for key in digests(tmp_path / "a") if key.startswith("c/")}
    assert found == set(wanted) - {"zarr.json"}


def test_what_is_not_consumed(tmp_path, bucket):
    make_array(tmp_path / "a")
    make_hierarchy(tmp_path / "h")
    before = digests(tmp_path)
    for words, told in (
        (("a", bucket), "would not be durable"),
        (("h", consumed_to(tmp_path / "b")), "no single array"),
        (("h/scalar", consumed_to(tmp_path / "b")), "consolidated metadata"),
    ):
        with pytest.raises(SpecError, match=told):
            shardwrite.upload(tmp_path / words[0], words[1], consume=True)
    with pytest.raises(SpecError, match="leave out mode"):
        shardwrite.upload(tmp_path / "a", consumed_to(tmp_path / "b"), consume=True, mode="w")
    with pytest.raises(SpecError, match="True or False"):
        shardwrite.upload(tmp_path / "a", consumed_to(tmp_path / "b"), consume=1)
    assert digests(tmp_path) == before


@pytest.mark.compat
def test_a_plan_tells_objects_bytes_and_requests(tmp_path, bucket, puts):
    make_hierarchy(tmp_path / "h")
    plan = shardwrite.plan_transfer(tmp_path / "h", bucket)
    assert not keys(bucket)
    done = shardwrite.upload(tmp_path / "h", bucket)
    assert (plan.n_objects, plan.nbytes) == (done.n_objects, done.stored_nbytes)
    assert plan.requests_to_source is None
    assert plan.requests_to_target.n_put == len(puts) + 3 * 4 + done.n_groups + 4
    assert "PUT" in str(plan)
    assert json.loads(plan.to_json())["n_objects"] == done.n_objects
    back = shardwrite.plan_transfer(bucket, tmp_path / "b")
    assert back.requests_to_target is None
    assert back.requests_to_source.n_list
    assert "objects" in done._repr_html_()
    assert "objects" in plan._repr_html_()


@pytest.mark.compat
def test_commands(tmp_path):
    make_hierarchy(tmp_path / "h")

    def run(*words, code=0):
        done = CliRunner().invoke(main, list(map(str, words)))
        assert done.exit_code == code, done.output
        return done.stdout

    url = f"memory://{tmp_path.name}"
    assert "objects" in run("upload", tmp_path / "h", url)
    told = json.loads(run("download", url, tmp_path / "b", "--json"))
    assert told["n_objects"] == sum(array["result"]["n_shards"] for array in told["arrays"])
    assert digests(tmp_path / "b") == digests(tmp_path / "h")
    done = CliRunner().invoke(main, ["upload", str(tmp_path / "h"), str(tmp_path / "x")])
    assert done.exit_code != 0
    assert "download copies to a directory" in done.output
    assert not Path(tmp_path / "x").exists()


def test_a_scale_of_a_volume_is_not_consumed(tmp_path):
    """Its info would go on to list it."""
    make_volume(tmp_path / "v", 1)
    before = digests(tmp_path / "v")
    for call in (
        lambda: shardwrite.upload(tmp_path / "v/4_4_40", consumed_to(tmp_path / "b"), consume=True),
        lambda: shardwrite.unshard(
            tmp_path / "v/4_4_40", tmp_path / "c", checksum=False, durability="full", consume=True
        ),
    ):
        with pytest.raises(SpecError, match=r"whose info would go on.*leave consume out"):
            call()
    assert digests(tmp_path / "v") == before


@pytest.mark.long
def test_a_source_that_has_lost_a_shard_is_refused(tmp_path):
    """Its receipt names the shard. A copy would read as the fill value there, and verify as good."""
    path, bucket = tmp_path / "a", obstore.store.MemoryStore()
    make_array(path)
    shardwrite.upload(path, bucket)
    (path / "c/1/1").unlink()
    obstore.delete(bucket, "c/1/1")
    there = keys(bucket), sorted(os.listdir(tmp_path))
    for call in (
        lambda: shardwrite.upload(path, obstore.store.MemoryStore()),
        lambda: shardwrite.upload(path, consumed_to(tmp_path / "b"), consume=True),
        lambda: shardwrite.download(bucket, tmp_path / "b"),
        lambda: shardwrite.plan_transfer(path, bucket),
        lambda: shardwrite.reshard(path, tmp_path / "b", shards=8),
        lambda: shardwrite.reshard(bucket, tmp_path / "b", shards=8, chunks=2),
        lambda: shardwrite.unshard(path, tmp_path / "b", consume=True),
    ):
        with pytest.raises(ChangedError, match=r"1 shards are gone \(c/1/1\).*repair") as caught:
            call()
        assert caught.value.missing == ("c/1/1",)
        assert (keys(bucket), sorted(os.listdir(tmp_path))) == there
    assert not shardwrite.verify(path, accept=True).problems
    shardwrite.download(path, tmp_path / "b")
    assert digests(tmp_path / "b") == digests(path)
