"""A part of the index of a shard of a scale is lost: this is found, and what is whole is not bad."""

from __future__ import annotations

import shutil
import struct

import numpy as np
import obstore.store
import pytest
import zarr

import shardwrite
from shardwrite.errors import ChangedError, CorruptShardError, IncompleteError

VALUES = np.arange(1, 1 + 8 * 8 * 8, dtype="uint32").reshape(8, 8, 8)
NEW = {"axes": "zyx", "resolution": (1, 1, 1), "chunks": 4}
HASHES = ("identity", "murmurhash3_x86_128")
INDEX_NBYTES = 16 * 4


pytestmark = pytest.mark.usefixtures("one_thread")


def sharding(hash_="identity", **more):
    return {"preshift_bits": 0, "minishard_bits": 2, "shard_bits": 1, "hash": hash_, **more}


def damage(path, fault):
    """Take a part of the index of a shard away; its size stays. Returns what was there."""
    good = path.read_bytes()
    data = bytearray(good)
    if fault == "zeros":
        data = bytearray(len(data))
    else:
        entries = [at for at in range(0, INDEX_NBYTES, 16) if any(data[at : at + 16])]
        at = entries[0 if fault == "first" else -1]
        data[at : at + 16] = bytes(16)
    path.write_bytes(data)
    return good


def check(root, values=VALUES):
    report = shardwrite.verify(root / "1_1_1", deep=True, against=values)
    assert report.is_good, report
    assert not report.changed
    assert report.unused_nbytes == 0
    return report


@pytest.mark.parametrize("fault", ["first", "last", "zeros"])
@pytest.mark.parametrize("hash_", HASHES)
def test_it_is_found_and_repaired(tmp_path, hash_, fault):
    root = tmp_path / "v"
    shardwrite.to_precomputed(VALUES, root, **NEW, sharding=sharding(hash_))
    check(root)
    path = root / "1_1_1" / "0.shard"
    good = damage(path, fault)
    for deep in (False, True):
        report = shardwrite.verify(root / "1_1_1", deep=deep)
        (problem,) = report.problems
        assert (problem.key, report.is_good) == ("0.shard", False)
        assert "belong to no chunk and to no index" in problem.message
    with pytest.raises(CorruptShardError, match="belong to no chunk"):
        shardwrite.open_sharded(root / "1_1_1")[...]
    with pytest.raises(CorruptShardError, match="belong to no chunk"):
        shardwrite.verify(root / "1_1_1", accept=True)
    with pytest.raises(CorruptShardError, match="1 shards are bad"):
        shardwrite.compact(root / "1_1_1")
    done = shardwrite.repair(root / "1_1_1", VALUES)
    assert [task.key for task in done.tasks] == ["0.shard"]
    assert path.read_bytes() == good
    check(root)


@pytest.mark.parametrize("fault", ["last", "zeros"])
@pytest.mark.parametrize("hash_", HASHES)
def test_a_finished_call_with_recheck_writes_it_again(tmp_path, hash_, fault):
    root = tmp_path / "v"
    new = {**NEW, "sharding": sharding(hash_)}
    shardwrite.to_precomputed(VALUES, root, **new)
    path = root / "1_1_1" / "0.shard"
    good = damage(path, fault)
    other = root / "1_1_1" / "1.shard"
    before = other.stat().st_ino
    shardwrite.to_precomputed(VALUES, root, **new)
    assert path.read_bytes() != good, "without it, only sizes are looked at"
    result = shardwrite.to_precomputed(VALUES, root, **new, recheck=True)
    assert path.read_bytes() == good
    assert (result.n_shards, other.stat().st_ino) == (2, before)
    check(root)
    assert sorted(file.name for file in root.iterdir()) == ["1_1_1", "info"]


def test_a_finished_zarr_with_recheck(tmp_path):
    """The same holds for every array: bad shards are written again, and good ones stay."""
    path = tmp_path / "x.zarr"
    shardwrite.to_sharded_zarr(VALUES, path, shards=4, chunks=2)
    file, other = path / "c/0/0/0", path / "c/1/1/1"
    good, before = file.read_bytes(), other.stat().st_ino
    file.write_bytes(good[:20] + bytes([good[20] ^ 255]) + good[21:])
    shardwrite.to_sharded_zarr(VALUES, path, shards=4, chunks=2, recheck=True)
    assert (file.read_bytes(), other.stat().st_ino) == (good, before)
    assert shardwrite.verify(path, deep=True, against=VALUES).is_good


def test_a_finished_array_that_was_updated_names_it(tmp_path):
    """The call cannot write again what an update has changed since then."""
    path = tmp_path / "x.zarr"
    shardwrite.to_sharded_zarr(VALUES, path, shards=4, chunks=2)
    shardwrite.write_region(VALUES[:4] + 1, path, slice(0, 4))
    file = path / "c/0/0/0"
    good = file.read_bytes()
    file.write_bytes(good[:-4] + bytes(4))
    with pytest.raises(ChangedError, match="crc32c") as caught:
        shardwrite.to_sharded_zarr(VALUES, path, shards=4, chunks=2, recheck=True)
    assert list(caught.value.fields["missing"]) == ["c/0/0/0"]
    assert "accept" not in str(caught.value)
    assert file.read_bytes() != good
    values = VALUES.copy()
    values[:4] += 1
    assert shardwrite.repair(path, values).is_done
    shardwrite.to_sharded_zarr(VALUES, path, shards=4, chunks=2, recheck=True)
    assert file.read_bytes() == good


def test_parts_that_go_on_write_it_again(tmp_path):
    root = tmp_path / "v"
    plan = shardwrite.plan_precomputed(VALUES, **NEW, sharding=sharding())
    scale = root / "1_1_1"
    shardwrite.prepare(VALUES, scale, plan)
    shardwrite.write_part(VALUES, scale, 0, 1)
    good = damage(scale / "0.shard", "last")
    with pytest.raises(IncompleteError) as caught:
        shardwrite.finalize(scale)
    assert caught.value.fields["missing"] == ["0.shard"]
    shardwrite.write_part(VALUES, scale, 0, 1)
    assert (scale / "0.shard").read_bytes() == good
    shardwrite.finalize(scale)
    check(root)


@pytest.mark.parametrize("encoding", ["gzip", "raw", "compressed_segmentation", "png"])
@pytest.mark.parametrize("hash_", HASHES)
@pytest.mark.parametrize("index", ["raw", "gzip"])
@pytest.mark.parametrize("all_chunks", [False, True])
def test_whole_scales_are_good(tmp_path, encoding, hash_, index, all_chunks):
    """Shards are missing, chunks are missing, and chunks at the edges are cut."""
    dtype = "uint32" if encoding == "compressed_segmentation" else "uint8"
    values = np.random.default_rng(0).integers(1, 99, (9, 17, 14)).astype(dtype)
    values[:4], values[:, :4] = 0, 0
    root = tmp_path / "v"
    shardwrite.to_precomputed(
        values,
        root,
        **NEW,
        encoding=encoding,
        sharding=sharding(
            hash_,
            shard_bits=4,
            minishard_index_encoding=index,
            data_encoding="raw" if encoding in ("raw", "png") else "gzip",
        ),
        write_empty_chunks=all_chunks,
    )
    check(root, values)
    lost = sorted((root / "1_1_1").glob("*.shard"))[0]
    good = lost.read_bytes()
    lost.write_bytes(good[:70])
    shardwrite.repair(root / "1_1_1", values)
    report = shardwrite.verify(root / "1_1_1", deep=True, against=values)
    assert report.is_good
    if not all_chunks:
        assert lost.read_bytes() == good


@pytest.mark.long
def test_copies_and_conversions_are_good(tmp_path):
    array = zarr.create_array(
        tmp_path / "x.zarr", shape=(10, 9, 8), chunks=(4, 4, 4), dtype="uint32",
        compressors=zarr.codecs.GzipCodec(level=3), fill_value=0,
    )  # fmt: skip
    array[...] = values = np.arange(720, dtype="uint32").reshape(10, 9, 8)
    for hash_ in HASHES:
        root = tmp_path / hash_
        shardwrite.to_precomputed(array, root, **NEW, sharding=sharding(hash_, shard_bits=3))
        check(root, values)
        bucket = obstore.store.MemoryStore()
        shardwrite.upload(root, bucket)
        shardwrite.download(bucket, tmp_path / f"down-{hash_}")
        check(tmp_path / f"down-{hash_}", values)
    shardwrite.reshard(tmp_path / "identity" / "1_1_1", tmp_path / "back.zarr", shards=2)
    assert (zarr.open_array(tmp_path / "back.zarr")[:] == values).all()


def test_the_container_changes_shards_of_a_scale(tmp_path):
    """They are others than those that were written, and no bad ones, even where one is empty."""
    root = tmp_path / "v"
    shardwrite.to_precomputed(VALUES, root, **NEW, sharding=sharding())
    chunks = shardwrite.UInt64Shards(
        root / "1_1_1",
        {
            "@type": "neuroglancer_uint64_sharded_v1",
            **sharding(minishard_index_encoding="gzip", data_encoding="gzip"),
        },
    )
    ids = chunks.ids_of(0)
    chunks.write({ids[0]: chunks[ids[0]][::-1]}, existing="update")
    chunks.remove(chunks.ids_of(1))
    assert (root / "1_1_1" / "1.shard").stat().st_size == INDEX_NBYTES
    report = shardwrite.verify(root / "1_1_1", deep=True)
    assert not report.problems
    assert [problem.key for problem in report.changed][-1:] == ["1.shard"]
    assert shardwrite.verify(root / "1_1_1", accept=True).is_good


def test_chunks_that_share_their_bytes_are_good(tmp_path):
    """Another program may store equal chunks once."""
    root = tmp_path / "v"
    values = np.ones((4, 4, 8), "uint8")
    shape = {"preshift_bits": 1, "minishard_bits": 0, "shard_bits": 0}
    encodings = {"minishard_index_encoding": "raw", "data_encoding": "raw"}
    shardwrite.to_precomputed(values, root, **NEW, sharding={**shape, **encodings})
    (path,) = (root / "1_1_1").glob("*.shard")
    back = 2**64 - 64
    table = struct.pack("<6Q", 0, 1, 0, back, 64, 64)
    path.write_bytes(struct.pack("<2Q", 64, 64 + len(table)) + bytes([1]) * 64 + table)
    report = shardwrite.verify(root / "1_1_1", deep=True, against=values)
    assert not report.problems
    assert (shardwrite.open_sharded(root / "1_1_1")[...] == values).all()


def test_unused_bytes_of_the_container_are_reported_only(tmp_path):
    """Shards of meshes may have been written by anybody: unused bytes are legal."""
    parameters = {
        "@type": "neuroglancer_uint64_sharded_v1",
        **sharding(minishard_index_encoding="raw", data_encoding="raw"),
    }
    shards = shardwrite.UInt64Shards(tmp_path / "x", parameters)
    shards.write({n: bytes([n]) * 9 for n in range(16)})
    damage(tmp_path / "x" / "0.shard", "last")
    report = shards.verify(deep=True)
    assert report.is_good
    assert report.unused_nbytes > 0


def test_a_spool_is_whole(tmp_path, monkeypatch):
    """The spool of a scale whose chunks are scattered is one that passes the same check."""
    from shardwrite.volumes import hashed

    root = tmp_path / "v"
    new = {**NEW, "sharding": sharding(HASHES[1])}

    def stops(*_args, **_more):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(hashed, "remove_spool", stops)
        patch.setattr("shardwrite.volumes.precomputed.remove_spool", stops)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.to_precomputed(VALUES, root, **new)
    spool = root / ".1_1_1.spool"
    assert shardwrite.verify(spool, deep=True).is_good
    shutil.rmtree(root / "1_1_1")
    shardwrite.to_precomputed(VALUES, root, **new, recheck=True)
    check(root)
