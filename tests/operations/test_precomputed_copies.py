"""Encoded chunks pass from Zarr arrays to volumes of Neuroglancer and back without being decoded."""

from __future__ import annotations

import dask
import numpy as np
import pytest
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec

import shardwrite
from shardwrite import ChangedError
from shardwrite.codecs.stages import GzipStage
from shardwrite.sources import open_source

SHAPE = (20, 30, 40)  # z, y, x
GRID, N_WHOLE = 3 * 4 * 5, 2 * 3 * 5
VALUES = np.random.default_rng(0).integers(1, 200, SHAPE).astype("u2")
VALUES[:8, :8, :8] = VALUES[8:16, :, 8:24] = 0
N_STORED = GRID - 1 - 4 * 2
NEW = {"axes": "zyx", "resolution": (4, 4, 40), "chunks": 8, "shard_nbytes": 20_000}
SCATTERED = {
    "hash": "murmurhash3_x86_128",
    "preshift_bits": 0,
    "minishard_bits": 1,
    "shard_bits": 2,
}
KEY = "4_4_40"


@pytest.fixture(autouse=True)
def two_threads():
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture
def encoded(monkeypatch):
    """How many chunks gzip has encoded."""
    found, encode = [], GzipStage.encode

    def counting(self, batch):
        found.extend(batch)
        return encode(self, batch)

    monkeypatch.setattr(GzipStage, "encode", counting)
    return found


def written_by_zarr(store, codecs=(), values=VALUES, shards=None, **more):
    return zarr.create_array(
        store, data=values, chunks=(8,) * values.ndim, shards=shards, compressors=codecs, **more
    )


def check(path, values, axes="zyx"):
    found = shardwrite.from_precomputed(path, axes=axes)
    np.testing.assert_array_equal(found, values)
    assert shardwrite.verify(path / KEY, deep=True).is_good


@pytest.mark.parametrize("sharding", ["auto", SCATTERED], ids=["identity", "murmurhash"])
@pytest.mark.parametrize("shards", [None, (16, 16, 16)], ids=["chunks", "shards"])
@pytest.mark.parametrize(
    "codecs",
    [[GzipCodec(level=3)], [GzipCodec(level=9), Crc32cCodec()], [], [Crc32cCodec()]],
    ids=["gzip", "gzip-crc32c", "raw", "crc32c"],
)
def test_chunks_are_copied(tmp_path, encoded, codecs, shards, sharding):
    z = written_by_zarr(tmp_path / "z", codecs, shards=shards)
    is_gzip = bool(codecs) and isinstance(codecs[0], GzipCodec)
    keywords = {**NEW, "encoding": "gzip" if is_gzip else "raw", "sharding": sharding}
    plan = shardwrite.plan_precomputed(z, **keywords)
    changes = "crc32c is verified and dropped" if Crc32cCodec() in codecs else "unchanged"
    assert f"encoded chunks are copied, {changes}" in plan.notes
    assert f"up to {GRID - N_WHOLE} at the edges decoded and re-encoded, where they are cut" in (
        plan.notes
    )
    encoded.clear()
    result = shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    check(tmp_path / "v", VALUES)
    assert result.n_chunks - result.n_empty_chunks == N_STORED
    assert not [data for data in encoded if memoryview(data).nbytes == 2 * 8**3]  # a whole chunk
    again = shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    assert again.n_resumed_shards == result.n_shards + result.n_empty_shards
    for shard in (tmp_path / "v" / KEY).glob("*.shard"):
        shard.unlink()
        break
    shardwrite.repair(tmp_path / "v" / KEY, VALUES)
    check(tmp_path / "v", VALUES)


def test_bytes_of_gzip_are_those_of_the_array(tmp_path):
    z = written_by_zarr(tmp_path / "z", [GzipCodec(level=1)], values=VALUES[:16, :24])
    shardwrite.to_precomputed(z, tmp_path / "v", **NEW)
    bits = shardwrite.plan_precomputed(z, **NEW).metadata.shard_format.sharding
    raw = {**bits.to_dict(), "data_encoding": "raw"}
    found = shardwrite.UInt64Shards(tmp_path / "v" / KEY, raw)
    first = found[2]  # z, y and x are 0, 1 and 0
    assert bytes(first) == (tmp_path / "z" / "c" / "0" / "1" / "0").read_bytes()


def test_channels_are_copied(tmp_path):
    values = np.stack([VALUES, VALUES + 1])
    z = zarr.create_array(
        tmp_path / "z", data=values, chunks=(2, 8, 8, 8), compressors=[GzipCodec(level=5)]
    )
    keywords = {**NEW, "axes": "czyx"}
    assert (
        "encoded chunks are copied, unchanged" in shardwrite.plan_precomputed(z, **keywords).notes
    )
    shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    check(tmp_path / "v", values, "czyx")


@pytest.mark.parametrize(
    ("codecs", "changed", "more", "why"),
    [
        ([GzipCodec()], {"axes": "xyz"}, {}, "the order of the axes differs"),
        ([GzipCodec()], {"chunks": 16}, {}, "the shapes of the inner chunks differ"),
        ([GzipCodec()], {"encoding": "raw"}, {}, "the codecs of the inner chunks differ"),
        ([], {}, {}, "the codecs of the inner chunks differ"),
        ("auto", {}, {}, "the codecs of the inner chunks differ"),
        ([GzipCodec()], {}, {"fill_value": 7}, "the fill values differ"),
        ([GzipCodec()], {"write_empty_chunks": True}, {}, "write_empty_chunks needs their values"),
        (
            [GzipCodec()],
            {},
            {"serializer": BytesCodec(endian="big")},
            "the codecs of the inner chunks differ",
        ),
    ],
)
def test_chunks_that_are_something_else_are_decoded(tmp_path, codecs, changed, more, why):
    z = written_by_zarr(tmp_path / "z", codecs, **more)
    keywords = {**NEW, **changed}
    assert f"all chunks are decoded: {why}" in shardwrite.plan_precomputed(z, **keywords).notes
    shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    check(tmp_path / "v", VALUES, keywords["axes"])


def test_other_arrays_say_nothing_of_copies():
    notes = shardwrite.plan_precomputed(VALUES, **NEW).notes
    assert not [note for note in notes if "copied" in note or "decoded:" in note]


def test_arrays_of_format_2_and_in_memory(tmp_path):
    v2 = zarr.create_array(
        tmp_path / "z2",
        data=VALUES,
        chunks=(8, 8, 8),
        zarr_format=2,
        compressors={"id": "gzip", "level": 4},
        fill_value=0,
    )
    in_memory = written_by_zarr(zarr.storage.MemoryStore(), [GzipCodec()])
    for name, z in (("v2", v2), ("memory", in_memory)):
        notes = shardwrite.plan_precomputed(z, **NEW).notes
        assert "encoded chunks are copied, unchanged" in notes
        shardwrite.to_precomputed(z, tmp_path / name, **NEW)
        check(tmp_path / name, VALUES)


def test_several_scales_are_copied(tmp_path):
    z = written_by_zarr(tmp_path / "z", [GzipCodec()])
    half = written_by_zarr(tmp_path / "half", [GzipCodec()], values=VALUES[:, ::2, ::2])
    keywords = {**NEW, "scales": {(8, 8, 40): half}}
    plan = shardwrite.plan_precomputed(z, **keywords)
    for each in (plan, *plan.scales):
        assert "encoded chunks are copied, unchanged" in each.notes
    shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    check(tmp_path / "v", VALUES)
    found = shardwrite.from_precomputed(tmp_path / "v", scale="8_8_40", axes="zyx")
    np.testing.assert_array_equal(found, VALUES[:, ::2, ::2])


def test_a_copy_goes_on_where_it_was_interrupted(tmp_path):
    z = written_by_zarr(tmp_path / "z", [GzipCodec()], shards=(16, 16, 16))
    keywords = {**NEW, "memory_limit": "40kB"}

    def stop(report):
        raise KeyboardInterrupt

    with dask.config.set(scheduler="synchronous"):
        with pytest.raises(KeyboardInterrupt):
            shardwrite.to_precomputed(z, tmp_path / "v", progress=stop, **keywords)
        assert not (tmp_path / "v" / "info").exists()
        result = shardwrite.to_precomputed(z, tmp_path / "v", **keywords)
    assert 0 < result.n_resumed_shards < result.n_shards
    check(tmp_path / "v", VALUES)


def test_a_source_that_has_lost_a_shard_is_refused(tmp_path):
    shardwrite.to_sharded_zarr(
        VALUES, tmp_path / "z", shards=16, chunks=8, compressors=[GzipCodec(level=5)]
    )
    (tmp_path / "z" / "c" / "1" / "0" / "1").unlink()
    z = zarr.open_array(tmp_path / "z", mode="r")
    with pytest.raises(ChangedError, match="shards are gone"):
        shardwrite.to_precomputed(z, tmp_path / "v", **NEW)
    assert not (tmp_path / "v" / "info").exists()


def test_a_damaged_chunk_is_not_copied(tmp_path):
    """Its crc32c is verified before it is dropped."""
    z = written_by_zarr(tmp_path / "z", [Crc32cCodec()])
    chunk = tmp_path / "z" / "c" / "1" / "0" / "0"
    chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
    with pytest.raises(shardwrite.CorruptShardError, match="crc32c"):
        shardwrite.to_precomputed(z, tmp_path / "v", encoding="raw", **NEW)


@pytest.mark.long
def test_processes_copy_what_they_can_open(tmp_path):
    z = written_by_zarr(tmp_path / "z", [GzipCodec()])
    in_memory = written_by_zarr(zarr.storage.MemoryStore(), [GzipCodec()])
    with dask.config.set(scheduler="processes", num_workers=2):
        why = "other processes cannot open the store of the array"
        notes = shardwrite.plan_precomputed(in_memory, **NEW).notes
        assert f"all chunks are decoded: {why}" in notes
        assert "encoded chunks are copied, unchanged" in shardwrite.plan_precomputed(z, **NEW).notes
        shardwrite.to_precomputed(z, tmp_path / "v", **NEW)
    check(tmp_path / "v", VALUES)


def test_sources_are_copied_unless_they_lie_in_a_zip(tmp_path):
    z = written_by_zarr(tmp_path / "z", [GzipCodec()])
    with zarr.storage.ZipStore(tmp_path / "z.zip", mode="w") as store:
        written_by_zarr(store, [GzipCodec()])
    opened = open_source(str(tmp_path / "z"))
    assert (
        "encoded chunks are copied, unchanged" in shardwrite.plan_precomputed(opened, **NEW).notes
    )
    in_zip = open_source(str(tmp_path / "z.zip"))
    notes = shardwrite.plan_precomputed(in_zip, **NEW).notes
    assert not [note for note in notes if "copied" in note]
    shardwrite.to_precomputed(in_zip, tmp_path / "v", **NEW)
    check(tmp_path / "v", np.asarray(z))


@pytest.mark.parametrize("encoding", ["gzip", "raw"])
def test_scales_become_zarr_arrays(tmp_path, encoding):
    """Only chunks at the edges are decoded."""
    shardwrite.to_precomputed(VALUES, tmp_path / "v", encoding=encoding, **NEW)
    scale = tmp_path / "v" / KEY
    (planned,) = shardwrite.plan_reshard(scale, dst=tmp_path / "z", shards=2).arrays
    assert planned.how == "copied"
    assert planned.n_chunks_copied + planned.n_chunks_encoded == N_STORED
    assert planned.n_chunks_encoded == GRID - N_WHOLE
    made = shardwrite.reshard(scale, tmp_path / "z", shards=2)
    assert (made.n_chunks_copied, made.n_chunks_encoded) == (N_STORED - 30, 30)
    assert f"up to {GRID - N_WHOLE} at the edges decoded and re-encoded" in str(made)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "z", mode="r")[:], VALUES)
    assert shardwrite.verify(tmp_path / "z", deep=True, against=scale).is_good
    assert shardwrite.verify(tmp_path / "z", deep=True, against=VALUES).is_good


@pytest.mark.parametrize("options", [{"check": True}, {"drop_empty": True}])
def test_scales_are_decoded_on_their_way(tmp_path, options):
    shardwrite.to_precomputed(VALUES, tmp_path / "v", write_empty_chunks=True, **NEW)
    made = shardwrite.reshard(tmp_path / "v" / KEY, tmp_path / "z", shards=2, **options)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "z", mode="r")[:], VALUES)
    report = shardwrite.verify(tmp_path / "z", deep=True)
    assert report.is_good
    kept = N_STORED if "drop_empty" in options else GRID
    assert made.arrays[0].n_chunks == kept


@pytest.mark.long
def test_parts_of_a_conversion_of_a_scale(tmp_path):
    shardwrite.to_precomputed(VALUES, tmp_path / "v", **NEW)
    scale, path = tmp_path / "v" / KEY, tmp_path / "z"
    keywords = {"shards": 2, "memory_limit": "100kB"}
    shardwrite.prepare_conversion(scale, path, **keywords)
    parts = [shardwrite.convert_part(scale, path, part, 2, **keywords) for part in range(2)]
    assert all(part.n_shards for part in parts)
    made = shardwrite.finalize_conversion(scale, path, **keywords)
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[:], VALUES)
    assert sum(part.n_chunks_copied + part.n_chunks_encoded for part in parts) == N_STORED
    assert sum(part.n_chunks_encoded for part in parts) == made.n_chunks_encoded == GRID - N_WHOLE
