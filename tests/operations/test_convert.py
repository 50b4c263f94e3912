"""Conversions: encoded chunks pass as they are, what is missing stays missing, and nothing is lost."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore as ts
import zarr
import zarr.dtype
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tiers import some, tried

import shardwrite
from shardwrite import CorruptShardError, PlanError, SpecError, StoreError, open_sharded
from shardwrite.cli import main
from shardwrite.convert.run import ConversionOptions, convert_array
from shardwrite.engines import LocalEngine
from shardwrite.plan.options import PlanOptions
from shardwrite.read.stored_array import open_stored
from shardwrite.read.stored_shard import open_shard

sys.path.insert(0, str(Path(__file__).parent.parent / "runs"))
import seams
from blind import make_blind


def payloads(path) -> dict[tuple[int, ...], str]:
    """sha256 of the encoded bytes of each inner chunk, by its position in the array."""
    array = open_stored(path).array
    grid, found = array.metadata.grid, {}
    for index in grid.shards_in(grid.whole) if grid.whole.size else []:
        shard = open_shard(array.metadata, array.store, index)
        if shard is None:
            continue
        with shard:
            for rank in shard.present():
                at = np.unravel_index(rank, grid.chunks_per_shard) if grid.ndim else ()
                where = tuple(
                    int(i * n + k) for i, n, k in zip(index, grid.chunks_per_shard, at, strict=True)
                )
                data = shard.reader.read(*map(int, shard.index.table[rank]))
                found[where] = hashlib.sha256(data).hexdigest()
    return found


def by_tensorstore(path):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    return ts.open(spec).result().read().result()


def by_zarrs(path):
    """By the codecs of zarrs alone, which does not fall back to others."""
    pipeline = {"path": "zarrs.ZarrsCodecPipeline", "strict": True}
    with zarr.config.set({f"codec_pipeline.{name}": what for name, what in pipeline.items()}):
        return zarr.open_array(path, mode="r")[...]


def same(one, other):
    one, other = np.asarray(one), np.asarray(other)
    assert one.shape == other.shape
    if one.dtype.hasobject or one.dtype.kind == "T":
        assert (one.astype(object) == other.astype(object)).all()
    else:
        assert one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        width = f"V{one.dtype.itemsize}"
        native = [np.ascontiguousarray(x.astype(x.dtype.newbyteorder("="))) for x in (one, other)]
        assert (native[0].view(width) == native[1].view(width)).all()


def small(tmp_path, **more):
    """An array without shards of 9 x 7 chunks, some of them missing and one of fill values."""
    values = np.random.default_rng(0).integers(1, 99, (70, 50)).astype("f4")
    values[10:45, 8:40] = 0
    x = da.from_array(values, chunks=(20, 50))
    path = tmp_path / "a"
    x.to_sharded_zarr(path, **{"shards": None, "chunks": 8, **more})
    with zarr.config.set({"array.write_empty_chunks": True}):
        zarr.open_array(path)[16:24, 16:24] = 0
    return path, values


CODECS = {
    "raw": {"compressors": None},
    "zstd": {"compressors": [{"name": "zstd", "configuration": {"level": 3, "checksum": False}}]},
    "gzip+crc": {
        "compressors": [{"name": "gzip", "configuration": {"level": 1}}, {"name": "crc32c"}]
    },
    "blosc": {"compressors": [{"name": "blosc", "configuration": {"cname": "lz4"}}]},
    "transposed": {
        "compressors": None,
        "filters": [{"name": "transpose", "configuration": {"order": [1, 0]}}],
    },
    "big": {"serializer": {"name": "bytes", "configuration": {"endian": "big"}}},
}
DTYPES = ["bool", "u1", "i2", "f2", "f4", "f8", "c8", "M8[s]", "S3", "U2"]


@st.composite
def arrays(draw):
    """Values, codecs, shapes and the chunks that are missing."""
    ndim = draw(st.integers(1, 2))
    chunks = tuple(draw(st.integers(1, 4)) for _ in range(ndim))
    shape = tuple(draw(st.integers(0, 11)) for _ in range(ndim))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    codecs = draw(st.sampled_from([name for name in CODECS if ndim == 2 or name != "transposed"]))
    was_sharded = draw(st.booleans())
    counts = tuple(draw(st.integers(1, 3)) for _ in range(ndim))
    seed = draw(st.integers(0, 99))
    return shape, chunks, dtype, codecs, counts if was_sharded else None, seed


def draw_values(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 3, (*shape, max(1, dtype.itemsize)), dtype=np.uint8)
    if dtype.kind == "U":
        return rng.choice(np.array(["", "a", "bc"], dtype), shape)
    if dtype.kind == "b":
        return (raw[..., 0] > 0).astype(bool)
    return np.ascontiguousarray(raw).view(dtype)[..., 0]


def check_round_trips(drawn, shards, checksum, check):
    shape, chunks, dtype, codecs, old, seed = drawn
    values = draw_values(shape, dtype, seed)
    directory = Path(tempfile.mkdtemp())
    try:
        a, b, c = directory / "a", directory / "b", directory / "c"
        source = zarr.create_array(
            str(a),
            shape=shape,
            dtype=dtype,
            chunks=chunks,
            shards=None if old is None else tuple(k * n for k, n in zip(old, chunks, strict=True)),
            fill_value=values.flat[0] if values.size and seed % 2 else None,
            attributes={"units": "K", "n": [1, None]},
            dimension_names=list("yx")[: len(shape)],
            **CODECS[codecs],
        )
        source[...] = values
        with dask.config.set(scheduler="sync"):
            how = {"checksum": checksum, "check": check, "durability": "none"}
            done = shardwrite.reshard(a, b, shards, **how)
            back = shardwrite.unshard(b, c, checksum="crc" in codecs, durability="none")
            assert back.n_chunks_encoded == done.n_chunks_encoded == 0
            assert done.n_chunks_copied == len(payloads(a)) == len(payloads(b))
            # the source says where a chunk is; its bytes come back as they were
            assert payloads(c) == payloads(a)
            if checksum is None:
                assert payloads(b) == payloads(a)
            assert shardwrite.verify(b, deep=True).is_good
        same(zarr.open_array(b, mode="r")[...], values)
        same(zarr.open_array(c, mode="r")[...], values)
        if dtype.kind in "biuf":
            same(by_tensorstore(b), values)
            same(by_zarrs(b), values)
        old_document, new = (json.loads((p / "zarr.json").read_text()) for p in (a, b))
        for field in ("shape", "data_type", "fill_value", "attributes", "dimension_names"):
            assert new.get(field) == old_document.get(field), field
        assert shardwrite.reshard(a, b, shards, **how).n_chunks_copied == done.n_chunks_copied
    finally:
        shutil.rmtree(directory)


DRAWN = given(
    drawn=arrays(),
    shards=st.sampled_from([1, 2, 3, "1kB", "auto", None]),
    checksum=st.sampled_from([None, True, False]),
    check=st.booleans(),
)
test_round_trips = tried(8, DRAWN, check_round_trips)
test_more_round_trips = pytest.mark.long(tried(60, DRAWN, check_round_trips))


def named_as_in_the_proposal(codecs):
    """Codecs with the name that the proposal of the sharding codec gives to `bytes`."""
    for codec in codecs:
        inner = codec.get("configuration", {})
        named_as_in_the_proposal(inner.get("codecs", []))
        named_as_in_the_proposal(inner.get("index_codecs", []))
        codec["name"] = "endian" if codec["name"] == "bytes" else codec["name"]


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("compressors", ["keep", "zstd"])
@pytest.mark.parametrize("in_place", [False, True])
def test_other_readers_know_the_codecs_of_a_new_array(tmp_path, is_nested, compressors, in_place):
    source, made, data = tmp_path / "x", tmp_path / "y", np.arange(64).reshape(8, 8)
    within = zarr.codecs.ShardingCodec(chunk_shape=(1, 1), codecs=[zarr.codecs.BytesCodec()])
    da.from_array(data).to_sharded_zarr(
        source,
        shards=4,
        chunks=2,
        compressors=None,
        serializer=within if is_nested else {"name": "bytes", "configuration": {"endian": "big"}},
    )
    document = json.loads((source / "zarr.json").read_text())
    named_as_in_the_proposal(document["codecs"])
    (source / "zarr.json").write_text(json.dumps(document))
    if in_place:
        shardwrite.reshard(source, shards=8, compressors=compressors)
        made = source
    else:
        shardwrite.reshard(source, made, shards=8, compressors=compressors)
    assert '"name": "endian"' not in (made / "zarr.json").read_text()
    np.testing.assert_array_equal(zarr.open_array(made, mode="r")[...], data)
    np.testing.assert_array_equal(by_tensorstore(made), data)


def test_other_compressors_take_shards_out_of_shards(tmp_path):
    """All readers take what comes out, and a sharding may stand between transpositions."""
    data = np.arange(16 * 8).reshape(16, 8)
    turned = {"name": "transpose", "configuration": {"order": [1, 0]}}
    plain = {"name": "bytes", "configuration": {"endian": "big"}}
    index = [{"name": "bytes", "configuration": {"endian": "little"}}]

    def within(chunks, *codecs):
        settings = {"chunk_shape": chunks, "codecs": codecs, "index_codecs": index}
        return {"name": "sharding_indexed", "configuration": settings}

    deep = within([2, 4], turned, within([2, 2], plain), {"name": "crc32c"})
    da.from_array(data).to_sharded_zarr(
        tmp_path / "x", shards=8, chunks=(8, 4), filters=[turned], serializer=deep
    )
    shardwrite.reshard(tmp_path / "x", tmp_path / "y", shards=8, compressors="zstd")
    (sharding,) = json.loads((tmp_path / "y/zarr.json").read_text())["codecs"]
    settings = sharding["configuration"]
    names = [codec["name"] for codec in settings["codecs"]]
    assert names == ["transpose", "transpose", "bytes", "zstd", "crc32c"]
    assert settings["chunk_shape"] == [8, 4]
    for found in (
        zarr.open_array(tmp_path / "y", mode="r")[...],
        by_tensorstore(tmp_path / "y"),
        by_zarrs(tmp_path / "y"),
    ):
        np.testing.assert_array_equal(found, data)
    shardwrite.reshard(tmp_path / "x", tmp_path / "z", shards=16)
    kept = shardwrite.open_sharded(tmp_path / "z").metadata.inner_codecs
    assert [codec["name"] for codec in kept] == ["transpose", "sharding_indexed"]


def test_nothing_is_decoded(tmp_path, monkeypatch):
    a, values = small(tmp_path)
    make_blind(monkeypatch)
    done = shardwrite.shard(a, tmp_path / "b", 4)
    again = shardwrite.shard(tmp_path / "b", tmp_path / "c", (2, 3))
    flat = shardwrite.unshard(tmp_path / "c", tmp_path / "d")
    monkeypatch.undo()
    assert payloads(a) == payloads(tmp_path / "b") == payloads(tmp_path / "c")
    assert payloads(a) == payloads(tmp_path / "d")
    assert {done.n_chunks_encoded, again.n_chunks_encoded, flat.n_chunks_encoded} == {0}
    for name in "bcd":
        same(zarr.open_array(tmp_path / name, mode="r")[...], values)
        same(by_tensorstore(tmp_path / name), values)
    assert done.n_shards < len(payloads(a))
    assert (2, 2) in payloads(tmp_path / "b")  # of fill values, and it was stored
    assert (2, 3) not in payloads(tmp_path / "b")  # it was missing


@pytest.mark.parametrize("chunks", [None, 4, 16])
def test_what_is_missing_stays_missing_where_chunks_are_encoded_again(tmp_path, chunks):
    a, values = small(tmp_path)
    done = shardwrite.reshard(a, tmp_path / "b", 2, chunks=chunks, compressors="gzip")
    found = payloads(tmp_path / "b")
    size = chunks or 8
    assert done.n_chunks_copied == 0
    assert done.n_chunks_encoded == len(found)
    assert any("differ" in why for why in done.arrays[0].why)
    assert (16 // size, 16 // size) in found
    for at in np.ndindex(tuple(-(-n // size) for n in (70, 50))):
        overlapping = {
            (y // 8, x // 8)
            for y in range(at[0] * size, min(70, (at[0] + 1) * size))
            for x in range(at[1] * size, min(50, (at[1] + 1) * size))
        }
        assert (at in found) == bool(overlapping & set(payloads(a))), at
    same(zarr.open_array(tmp_path / "b", mode="r")[...], values)


@pytest.mark.parametrize("compressors", ["keep", "gzip"])
def test_chunks_of_the_fill_value_are_dropped_on_request(tmp_path, compressors):
    a, values = small(tmp_path)
    shardwrite.reshard(a, tmp_path / "b", 4, compressors=compressors, drop_empty=True)
    assert set(payloads(a)) - set(payloads(tmp_path / "b")) == {(2, 2)}
    same(zarr.open_array(tmp_path / "b", mode="r")[...], values)


def test_what_lies_beyond_the_edge_does_not_keep_a_chunk(tmp_path):
    x = np.zeros(10, "u1")
    source = zarr.create_array(
        str(tmp_path / "a"), shape=12, dtype="u1", chunks=4, compressors=None, fill_value=0
    )
    source[8:] = 7
    source[8:10] = 0
    source.resize(10)
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 3, drop_empty=True)
    assert not payloads(tmp_path / "b")
    same(zarr.open_array(tmp_path / "b", mode="r")[...], x)


def test_a_checksum_is_verified_before_it_is_dropped(tmp_path):
    a, _ = small(tmp_path, compressors="auto")
    broken = a / "c/0/1"
    broken.write_bytes(broken.read_bytes()[:-6] + b"......")
    with pytest.raises(CorruptShardError, match=r"c/0/1.*crc32c"):
        shardwrite.shard(a, tmp_path / "b", 4, checksum=False)
    shardwrite.shard(a, tmp_path / "c", 4)  # nobody looks
    with pytest.raises(CorruptShardError, match="c/0/1"):
        shardwrite.shard(a, tmp_path / "d", 4, check=True)


@pytest.mark.parametrize("checksum", [None, True])
def test_a_chunk_that_is_cut_off_is_not_copied(tmp_path, checksum):
    a, _ = small(tmp_path, compressors=None)
    (a / "c/0/1").write_bytes(b"short")
    with pytest.raises(CorruptShardError, match=r"c/0/1.*5 bytes"):
        shardwrite.shard(a, tmp_path / "b", 4, checksum=checksum)
    assert not (tmp_path / "b" / "zarr.json").exists()


def test_large_chunks_are_copied_by_the_system(tmp_path, monkeypatch):
    """From file to file, also out of shards; a size that cannot be is an error there, too."""
    values = np.arange(2**20, dtype="f4")
    a = tmp_path / "a"
    da.from_array(values).to_sharded_zarr(a, shards=None, chunks=2**18, compressors=None)
    real, copied = shardwrite.stores.posix.copy_range, []

    def copying(source, offset, target, nbytes):
        copied.append(nbytes)
        real(source, offset, target, nbytes)

    monkeypatch.setattr(shardwrite.stores.posix, "copy_range", copying)
    shardwrite.shard(a, tmp_path / "b", 4)
    assert copied == [2**20] * 4
    shardwrite.unshard(tmp_path / "b", tmp_path / "c")
    shardwrite.reshard(tmp_path / "b", tmp_path / "d", 2)
    assert copied[-2:] == [2**21, 2**21]  # chunks that lie end to end are one copy
    for name in "bcd":
        same(open_sharded(tmp_path / name)[...], values)
    with open(a / "c" / "1", "r+b") as file:
        file.truncate(100)
    with pytest.raises(CorruptShardError, match="c/1"):
        shardwrite.shard(a, tmp_path / "e", 4)


@pytest.mark.compat
def test_the_plan(tmp_path):
    a, _ = small(tmp_path)
    plan = shardwrite.plan_reshard(a, 4)
    n = len(payloads(a))
    assert (plan.n_files_before, plan.n_chunks_copied, plan.n_chunks_encoded) == (n, n, 0)
    done = shardwrite.shard(a, tmp_path / "b", 4)
    assert plan.n_files_after == done.n_shards
    assert plan.nbytes == sum(p.stat().st_size for p in (a / "c").rglob("*") if p.is_file())
    assert "copied, unchanged" in str(plan)
    again = shardwrite.plan_reshard(a, 4, compressors="gzip")
    assert (again.n_chunks_copied, again.n_chunks_encoded) == (0, n)
    assert "codecs of the inner chunks differ" in str(again)
    assert json.loads(plan.to_json())["n_files_before"] == n
    assert shardwrite.plan_reshard(tmp_path / "b", None).n_files_after == n
    assert isinstance(plan, shardwrite.ConversionPlan)


def test_shards_are_counted_in_inner_chunks_or_named(tmp_path):
    a = tmp_path / "a"
    zarr.create_array(
        str(a),
        shape=(3, 20, 30, 40),
        dtype="u1",
        chunks=(1, 8, 8, 8),
        dimension_names=["t", "z", "y", "x"],
        fill_value=0,
    )
    shapes = {
        8: (8, 64, 64, 64),
        (1, 2, 3, 4): (1, 16, 24, 32),
        "ZYX": (1, 24, 32, 40),
        "x": (1, 8, 8, 40),
        "z, t": (3, 24, 8, 8),
        "2kB": (2, 8, 8, 8),
    }
    for shards, shape in shapes.items():
        assert shardwrite.plan_reshard(a, shards).arrays[0].shards == shape, shards
    for wrong in ("XYZQ", "xx", "", "-3MB", "z,z", "0", (1, 2), 0, (1, 2, 3, 0), 1.5, True):
        with pytest.raises(SpecError):
            shardwrite.plan_reshard(a, wrong)
    with pytest.raises(SpecError, match="no dimension"):
        shardwrite.plan_reshard(a, "lat,lon")
    named = shardwrite.plan_reshard(a, "AB", dimension_names=["a", "b", "c", "d"])
    assert named.arrays[0].shards == (3, 24, 8, 8)


def test_what_has_the_layout_is_skipped(tmp_path):
    a, _ = small(tmp_path)
    assert shardwrite.unshard(a).is_skipped
    shardwrite.shard(a, tmp_path / "b", 4)
    skipped = shardwrite.shard(tmp_path / "b", shards=4)
    assert skipped.is_skipped
    assert "it has this layout already" in str(skipped)
    assert shardwrite.plan_reshard(tmp_path / "b", 4).arrays[0].how == "skipped"
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")}
    again = shardwrite.shard(a, tmp_path / "b", 4)
    assert again.arrays[0].result.n_resumed_shards == 6
    assert before == {p: p.stat().st_mtime_ns for p in (tmp_path / "b").rglob("*")}


def test_a_source_is_never_written_over(tmp_path):
    a, values = small(tmp_path)
    (tmp_path / "link").symlink_to(a)
    for dst in (a, tmp_path / "link", a / "inside", tmp_path / "link" / "inside", tmp_path):
        with pytest.raises(SpecError):
            shardwrite.shard(a, dst, 4, mode="w")
    with pytest.raises(SpecError, match="is the source"):
        shardwrite.shard(tmp_path / "link", a, 4, mode="w")
    same(zarr.open_array(a, mode="r")[...], values)


def test_another_array_is_replaced_only_with_mode_w(tmp_path):
    a, values = small(tmp_path)
    da.zeros(5).to_sharded_zarr(tmp_path / "b")
    with pytest.raises(SpecError, match="exists"):
        shardwrite.shard(a, tmp_path / "b", 4)
    shardwrite.shard(a, tmp_path / "b", 4, mode="w")
    same(open_sharded(tmp_path / "b")[...], values)


@pytest.mark.long
def test_a_source_that_changes_meanwhile_is_an_error(tmp_path, monkeypatch):
    a = tmp_path / "a"
    da.arange(64).to_sharded_zarr(a, shards=8, chunks=1)
    monkeypatch.setattr(shardwrite.write.copying, "_MAX_OPEN", 1)
    real = shardwrite.write.copying.open_shard

    def opening(metadata, store, index):
        found = real(metadata, store, index)
        if index == (1,):
            (a / "c/0").write_bytes((a / "c/0").read_bytes() + b"")
            (a / "c/0").touch()
        return found

    monkeypatch.setattr(shardwrite.write.copying, "open_shard", opening)
    with pytest.raises(StoreError, match="was changed meanwhile"):
        shardwrite.shard(a, tmp_path / "b", 32)


@pytest.mark.parametrize("scheduler", some(["sync", "threads", "processes"], "sync", "processes"))
def test_on_every_engine(tmp_path, scheduler):
    a, values = small(tmp_path)
    with dask.config.set(scheduler=scheduler, num_workers=2):
        shardwrite.shard(a, tmp_path / "b", 2)
        shardwrite.reshard(a, tmp_path / "c", 2, chunks=4)
    assert payloads(a) == payloads(tmp_path / "b")
    same(open_sharded(tmp_path / "c")[...], values)


@pytest.mark.parametrize("is_again", [False, True], ids=["in one call", "in the next call"])
@pytest.mark.parametrize("how", [{}, {"chunks": 4}], ids=["copied", "encoded again"])
@pytest.mark.parametrize("was", [{}, {"shards": 16}], ids=["plain", "sharded"])
def test_a_source_that_is_written_meanwhile_is_converted_as_it_is_in_the_end(
    tmp_path, was, how, is_again
):
    """Shards of old and shards of new values would be no array that ever was."""
    a, values = small(tmp_path, compressors=None, **was)
    n_reports = 0

    def change(report):
        nonlocal n_reports
        n_reports += 1
        if n_reports == 1:
            zarr.open_array(a, mode="r+")[...] = values + 1
            if is_again:
                raise KeyboardInterrupt

    def convert():
        shardwrite.reshard(a, tmp_path / "b", 4, progress=change, memory_limit="40kB", **how)

    with dask.config.set(scheduler="sync", num_workers=1):
        if is_again:
            with pytest.raises(KeyboardInterrupt):
                convert()
        convert()
    assert n_reports > 2
    same(open_sharded(tmp_path / "b")[...], values + 1)


def test_a_source_that_never_rests_is_an_error(tmp_path):
    a, values = small(tmp_path)

    def change(report):
        zarr.open_array(a, mode="r+")[:8, :8] = values[:8, :8] + 1

    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(StoreError, match=r"c/0/0' of the source is changed again and again"),
    ):
        shardwrite.reshard(a, tmp_path / "b", 4, progress=change)
    assert not (tmp_path / "b" / "zarr.json").exists()
    shardwrite.reshard(a, tmp_path / "b", 4, restart=True)
    same(open_sharded(tmp_path / "b")[:8, :8], values[:8, :8] + 1)


@pytest.mark.parametrize("how", [{}, {"compressors": "gzip"}], ids=["copied", "encoded again"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_source_that_is_removed_meanwhile_is_an_error(tmp_path, zarr_format, how):
    """What was not read yet would be copied as holes."""
    a, n_reports = tmp_path / "a", []
    zarr.create_array(a, data=np.ones((16, 16), "i4"), chunks=(4, 4), zarr_format=zarr_format)

    def remove(report):
        n_reports.append(report)
        if len(n_reports) == 1:
            a.rename(tmp_path / "moved")

    with (
        dask.config.set(scheduler="sync"),
        pytest.raises(StoreError, match=r"' of the source is gone while"),
    ):
        shardwrite.reshard(a, tmp_path / "b", 2, progress=remove, **how)
    assert not (tmp_path / "b" / "zarr.json").exists()
    (tmp_path / "moved").rename(a)
    shardwrite.reshard(a, tmp_path / "b", 2, restart=True, **how)
    same(open_sharded(tmp_path / "b")[...], np.ones((16, 16), "i4"))


@pytest.mark.parametrize("how", [{}, {"compressors": "gzip"}], ids=["copied", "encoded again"])
@pytest.mark.parametrize(
    "other", [{"compressors": None}, {"fill_value": 9}], ids=["codecs", "fill value"]
)
def test_a_source_that_is_another_array_by_then_is_an_error(tmp_path, other, how):
    """The document that was read does not say what the chunks are that stand there now."""
    a, values = small(tmp_path)

    def replace():
        shutil.rmtree(a)
        small(tmp_path, **other)

    errors = (StoreError, CorruptShardError)
    with (
        seams.once_before("begin runs", replace),
        pytest.raises(errors, match=r"source describes another array now|crc32c"),
    ):
        shardwrite.reshard(a, tmp_path / "b", 4, **how)
    assert not (tmp_path / "b" / "zarr.json").exists()
    shardwrite.reshard(a, tmp_path / "b", 4, restart=True, **how)
    same(open_sharded(tmp_path / "b")[...], values)


@pytest.mark.long
def test_on_a_cluster(tmp_path):
    from distributed import Client

    a, values = small(tmp_path)
    with Client(n_workers=1, threads_per_worker=2, dashboard_address=None):
        shardwrite.shard(a, tmp_path / "b", 2)
        shardwrite.reshard(a, tmp_path / "c", 2, compressors="gzip")
    assert payloads(a) == payloads(tmp_path / "b")
    same(open_sharded(tmp_path / "c")[...], values)
    assert (2, 2) in payloads(tmp_path / "c")


def test_between_stores(tmp_path):
    a, values = small(tmp_path)
    memory = zarr.storage.MemoryStore()
    shardwrite.shard(a, memory, 4)
    same(zarr.open_array(memory, mode="r")[...], values)
    shardwrite.unshard(memory, tmp_path / "b")
    assert payloads(a) == payloads(tmp_path / "b")
    with pytest.raises(SpecError, match="is the source"):
        shardwrite.shard(memory, memory, 2, mode="w")


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1,)])
def test_odd_shapes(tmp_path, shape):
    source = zarr.create_array(
        str(tmp_path / "a"), shape=shape, dtype="i4", chunks=(2,) * len(shape), fill_value=3
    )
    source[...] = 5
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    shardwrite.unshard(tmp_path / "b", tmp_path / "c")
    for name in "bc":
        same(zarr.open_array(tmp_path / name, mode="r")[...], source[...])


@pytest.mark.parametrize(
    ("dtype", "item"),
    [("string", "ä"), pytest.param(zarr.dtype.VariableLengthBytes(), b"\x00a", id="bytes")],
)
def test_elements_of_variable_length(tmp_path, dtype, item):
    source = zarr.create_array(str(tmp_path / "a"), shape=7, dtype=dtype, chunks=1)
    wanted = np.array([item * n for n in (0, 0, 1, 0, 0, 100, 0)], dtype=object)
    source[...] = wanted
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 4)
    assert payloads(tmp_path / "a") == payloads(tmp_path / "b")
    same(zarr.open_array(tmp_path / "b", mode="r")[...], wanted)
    shardwrite.reshard(tmp_path / "b", tmp_path / "c", 2, chunks=2, compressors="gzip")
    same(zarr.open_array(tmp_path / "c", mode="r")[...], wanted)


def test_strategies_that_must_know_all_sizes(tmp_path, monkeypatch):
    a, values = small(tmp_path)
    monkeypatch.setattr(shardwrite.FixedOrder, "streams", lambda self, fixed: False)
    shardwrite.shard(a, tmp_path / "b", 4, checksum=True, strategy="morton")
    same(open_sharded(tmp_path / "b")[...], values)
    monkeypatch.undo()
    shardwrite.shard(a, tmp_path / "c", 4, checksum=True, strategy="morton")
    for file in (tmp_path / "b" / "c").rglob("*"):
        if file.is_file():
            other = tmp_path / "c" / file.relative_to(tmp_path / "b")
            assert file.read_bytes() == other.read_bytes()


def test_arrays_with_codecs_around_their_sharding_are_encoded_again(tmp_path):
    a, values = small(tmp_path, shards=16)
    document = json.loads((a / "zarr.json").read_text())
    for file in (a / "c").rglob("*"):
        if file.is_file():
            import crc32c

            data = file.read_bytes()
            file.write_bytes(data + crc32c.crc32c(data).to_bytes(4, "little"))
    document["codecs"].append({"name": "crc32c"})
    (a / "zarr.json").write_text(json.dumps(document))
    done = shardwrite.reshard(a, tmp_path / "b", 4)
    assert done.n_chunks_copied == 0
    assert "the codecs of the inner chunks differ" in str(done)
    same(open_sharded(tmp_path / "b")[...], values)


@pytest.mark.parametrize("strategy", ["fixed-order", "hdf5"])
def test_a_copy_holds_no_shard(tmp_path, strategy):
    """Chunks are copied one after the other, into files of HDF5, too."""
    shardwrite.create(
        tmp_path / "a", (2**27,), "u1", shards=2**26, chunks=2**20, compressors=["zstd"]
    )
    wanted, options = ConversionOptions(shards=64), PlanOptions(strategy=strategy)
    with dask.config.set(num_workers=2):
        source = open_stored(tmp_path / "a")
        made = convert_array(source, LocalEngine("threads"), wanted, options, source.array.store)
    assert made.passage is not None
    assert 0 <= made.memory_nbytes < 2 * 2**23


@pytest.mark.parametrize(
    "how",
    some(
        [{}, {"checksum": True}, {"drop_empty": True}, {"compressors": "gzip"}],
        {"checksum": True},
        {"compressors": "gzip"},
    ),
)
def test_verification_against_the_source(tmp_path, monkeypatch, how):
    a, _ = small(tmp_path, compressors=None)
    b = tmp_path / "b"
    shardwrite.reshard(a, b, 4, **how)
    passes = "compressors" not in how
    report = shardwrite.verify(b, against=a)
    assert (report.is_good, report.against, report.is_encoded) == (True, True, passes)
    assert ("every encoded chunk against" in str(report)) == passes
    if passes and "drop_empty" not in how:
        make_blind(monkeypatch)
        assert shardwrite.verify(b, against=str(a)).is_good
        monkeypatch.undo()
    data = (a / "c/0/1").read_bytes()
    (a / "c/0/1").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    (a / "c/8/6").unlink()
    report = shardwrite.verify(b, against=a)
    assert [problem.index for problem in report.problems] == [(0, 0), (2, 1)]
    if passes:
        assert "1 encoded inner chunks differ from those of the source, first (0, 1)" in str(report)
    (a / "c/0/1").write_bytes(b"short")
    (a / "c/8/5").write_bytes(b"")
    with pytest.raises(SpecError):
        shardwrite.verify(b, against=tmp_path / "nothing")
    if not passes:
        with pytest.raises(CorruptShardError, match="c/0/1"):
            shardwrite.verify(b, against=a)
        return
    report = shardwrite.verify(b, against=a)
    assert [problem.index for problem in report.problems] == [(0, 0), (2, 1)]
    assert "cannot be compared" in str(report)
    with dask.config.set(scheduler="processes", num_workers=2):
        assert not shardwrite.verify(b, against=a).is_good


def test_wrong_arguments(tmp_path):
    a, _ = small(tmp_path)
    b = tmp_path / "b"
    for wrong in (
        {"checksum": "yes"},
        {"check": 1},
        {"index_location": "middle"},
        {"dimension_names": ["x"]},
        {"compressors": "nosuch"},
        {"chunks": (8, 8, 8)},
        {"mode": "r+"},
        {"memory_limit": 0},
    ):
        with pytest.raises(SpecError):
            shardwrite.reshard(a, b, 4, **wrong)
    with pytest.raises(PlanError):
        shardwrite.reshard(a, b, 4, compressors="gzip", memory_limit="1kB")
    with pytest.raises(TypeError):
        shardwrite.unshard(a, b, chunks=3)
    with pytest.raises(SpecError):
        shardwrite.shard(tmp_path / "nothing", b)
    assert not b.exists()


@pytest.mark.parametrize("source", ["", "/", "s3://", "nosuch://x", "a/zarr.json"])
def test_a_source_that_is_no_path_is_named_as_the_source(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    for call in (shardwrite.shard, shardwrite.plan_reshard):
        with pytest.raises(SpecError, match=r"^src=") as caught:
            call(source, tmp_path / "b")
        assert "can be made" not in str(caught.value)
    ended = CliRunner().invoke(main, ["shard", source, "b"])
    assert ended.exit_code == 2
    assert "Error: SRC " in ended.output


def test_a_chunk_without_bytes_is_refused(tmp_path):
    """Programs that ran out of room leave files without a byte, which no reader can decode."""
    source = zarr.create_array(str(tmp_path / "a"), shape=(4,), chunks=(2,), dtype="i4")
    source[...] = 1
    (tmp_path / "a/c/1").write_bytes(b"")
    with pytest.raises(CorruptShardError, match=r"'c/1'.* is empty"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    assert not (tmp_path / "b/zarr.json").exists()


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(SpecError, match=r"src=.*no such directory.* array or of a group"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    (tmp_path / "a").mkdir()
    with pytest.raises(SpecError, match=r"src=.*no zarr.json, .zarray or .zgroup"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)


def test_shards_that_are_mostly_outside_of_the_array_are_told(tmp_path):
    source = zarr.create_array(str(tmp_path / "a"), shape=(4, 4), chunks=(2, 2), dtype="i4")
    source[...] = 1
    assert "outside" not in str(shardwrite.plan_reshard(tmp_path / "a", 4))
    assert "99% of all entries" in str(shardwrite.plan_reshard(tmp_path / "a", 20))


def test_a_link_in_the_place_of_a_chunk_is_named_as_one(tmp_path):
    """As in the stores of git-annex. The message was "Too many levels of symbolic links"."""
    source = zarr.create_array(tmp_path / "a", shape=(4, 4), chunks=(2, 2), dtype="u2")
    source[...] = 1
    chunk = tmp_path / "a" / "c" / "0" / "0"
    chunk.rename(tmp_path / "object")
    chunk.symlink_to(tmp_path / "object")
    with pytest.raises(StoreError, match="'c/0/0': it is a symbolic link"):
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    chunk.unlink()
    (tmp_path / "object").rename(chunk)
    assert shardwrite.shard(tmp_path / "a", tmp_path / "b", 2).n_chunks_copied == 4


def test_a_storage_that_does_not_tell_where_a_place_lies_is_told(tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "Input/output error")

    da.ones(8, chunks=4).to_sharded_zarr(tmp_path / "a", shards=None, chunks=4)
    (tmp_path / "b").mkdir()
    monkeypatch.setattr("os.path.samestat", fails)
    with pytest.raises(StoreError, match=r"cannot look at.*b.*Input/output error") as caught:
        shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("text", ["NaN", '"0x7fc00000"', '"nan"'])
@pytest.mark.parametrize("way", ["copy", "in place", "consume"])
def test_a_nan_in_any_form_is_the_same_fill_value(tmp_path, text, way):
    """JSON has no NaN, and programs write it all the same; it is equal to nothing."""
    values = np.array([1, np.nan, np.nan, np.nan, 5, 6], "f4")
    a = tmp_path / "a"
    zarr.create_array(a, shape=(6,), chunks=(2,), dtype="f4", fill_value=np.nan)[...] = values
    document = (a / "zarr.json").read_text()
    (a / "zarr.json").write_text(document.replace('"fill_value": "NaN"', f'"fill_value": {text}'))
    before = payloads(a)
    b = a if way == "in place" else tmp_path / "b"
    if way == "in place":
        done = shardwrite.reshard(a, shards=4)
    else:
        done = shardwrite.shard(a, b, 4, consume=way == "consume")
    assert (done.n_chunks_encoded, payloads(b)) == (0, before)
    same(zarr.open_array(b, mode="r")[...], values)
    updated = a if way == "copy" else b
    shardwrite.write_region(da.ones(2, chunks=2, dtype="f4"), updated, region=(slice(2, 4),))
    same(open_sharded(updated)[...], np.array([1, np.nan, 1, 1, 5, 6], "f4"))
