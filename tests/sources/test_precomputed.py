"""Volumes of Neuroglancer precomputed: read whole and in parts, damaged, and refused."""

from __future__ import annotations

import gzip
import json
import re
import struct
import tracemalloc
import zlib

import dask
import dask.array as da
import numpy as np
import obstore
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.sources import open_source
from shardwrite.volumes.info import parse_info
from shardwrite.volumes.sharding import MortonCode

SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "identity",
    "preshift_bits": 1,
    "minishard_bits": 1,
    "shard_bits": 3,
    "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}
SHAPE, CHUNK, OFFSET = (11, 7, 5), (4, 2, 3), (10, 0, -5)


def make_precomputed(path, values, **changes):
    """Write a volume of one scale, without this package's code where there are no shards."""
    scale = {
        "key": "4_4_40",
        "size": list(values.shape[:3]),
        "resolution": [4, 4, 40],
        "voxel_offset": list(OFFSET),
        "chunk_sizes": [list(CHUNK)],
        "encoding": "raw",
        "sharding": SHARDING,
    } | changes
    info = {
        "@type": "neuroglancer_multiscale_volume",
        "type": "image",
        "data_type": str(values.dtype),
        "num_channels": values.shape[3],
        "scales": [scale],
        "mesh": "not known here",
    }
    path.mkdir(exist_ok=True)
    (path / "info").write_text(json.dumps(info))
    grid = tuple(-(-n // c) for n, c in zip(values.shape, CHUNK, strict=False))
    chunks = {}
    for cell in np.ndindex(grid):
        corner = [i * c for i, c in zip(cell, CHUNK, strict=True)]
        ends = zip(corner, CHUNK, values.shape, strict=False)
        box = [slice(a, min(a + c, n)) for a, c, n in ends]
        name = "_".join(f"{b.start + o}-{b.stop + o}" for b, o in zip(box, OFFSET, strict=True))
        chunks[cell] = name, values[tuple(box)].tobytes(order="F")
    if scale.get("sharding") is None:
        (path / "4_4_40").mkdir()
        for name, data in chunks.values():
            (path / "4_4_40" / name).write_bytes(data)
    else:
        (ids,) = [MortonCode(grid).encode(list(chunks)).tolist()]
        found = dict(zip(ids, (data for _, data in chunks.values()), strict=True))
        shardwrite.UInt64Shards(path / "4_4_40", scale["sharding"]).write(found, durability="none")
    return path


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(1, 2**15, (*SHAPE, 1), dtype="uint16")


@pytest.mark.compat
@pytest.mark.parametrize(
    "sharding",
    [SHARDING, {**SHARDING, "hash": "murmurhash3_x86_128"}, None],
    ids=["identity", "murmur", "files"],
)
def test_read(tmp_path, values, sharding):
    path = make_precomputed(tmp_path / "v", values, sharding=sharding)
    x = shardwrite.from_precomputed(path)
    np.testing.assert_array_equal(x, values[..., 0])
    x = shardwrite.from_precomputed(path, axes="zyx", chunks=(2, 3, 5))
    assert x.chunks == ((2, 2, 1), (3, 3, 1), (5, 5, 1))
    np.testing.assert_array_equal(x, values[..., 0].T)
    np.testing.assert_array_equal(x[1:4, ::2, [0, 3]], values[..., 0].T[1:4, ::2, [0, 3]])
    with dask.config.set(scheduler="processes", num_workers=2):
        np.testing.assert_array_equal(x[:2], values[..., 0].T[:2])
    assert shardwrite.from_precomputed(path, axes="czyx").shape == (1, 5, 7, 11)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float32"])
@pytest.mark.parametrize("sharding", [SHARDING, None], ids=["shards", "files"])
def test_channels(tmp_path, dtype, sharding):
    values = np.random.default_rng(0).integers(0, 100, (*SHAPE, 3)).astype(dtype)
    path = make_precomputed(tmp_path / "v", values, sharding=sharding)
    np.testing.assert_array_equal(shardwrite.from_precomputed(path), values)
    x = shardwrite.from_precomputed(path, axes="cyxz")
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, values.transpose(3, 1, 0, 2))
    with pytest.raises(SpecError, match="and c among them"):
        shardwrite.from_precomputed(path, axes="zyx")


def test_missing_chunks_are_zeros_and_gzipped_files_are_read(tmp_path, values):
    path = make_precomputed(tmp_path / "v", values, sharding=None)
    (path / "4_4_40" / "10-14_0-2_-5--2").unlink()
    zipped = path / "4_4_40" / "14-18_0-2_-5--2"
    zipped.with_name(zipped.name + ".gz").write_bytes(gzip.compress(zipped.read_bytes()))
    zipped.unlink()
    wanted = values[..., 0].copy()
    wanted[:4, :2, :3] = 0
    np.testing.assert_array_equal(shardwrite.from_precomputed(path), wanted)
    zipped.with_name(zipped.name + ".gz").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(CorruptShardError, match="gzip"):
        shardwrite.from_precomputed(path).compute()
    zipped.with_name(zipped.name + ".gz").rename(zipped.with_name(zipped.name + ".br"))
    with pytest.raises(StoreError, match="is not read"):
        shardwrite.from_precomputed(path).compute()


def test_a_missing_shard_is_zeros(tmp_path, values):
    path = make_precomputed(tmp_path / "v", values)
    (path / "4_4_40" / "0.shard").unlink()
    found = shardwrite.from_precomputed(path).compute()
    box = MortonCode((3, 4, 2)).low_box(2)
    wanted = values[..., 0].copy()
    wanted[tuple(slice(0, n * c) for n, c in zip(box, CHUNK, strict=True))] = 0
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("sharding", [SHARDING, None], ids=["shards", "files"])
def test_a_chunk_of_another_size(tmp_path, values, sharding):
    path = make_precomputed(tmp_path / "v", values, sharding=sharding)
    document = json.loads((path / "info").read_text())
    document["data_type"] = "uint32"
    (path / "info").write_text(json.dumps(document))
    with pytest.raises(CorruptShardError, match="decodes to 48 bytes, not 96"):
        shardwrite.from_precomputed(path)[:2, :2, :2].compute()


def test_a_shard_in_a_bucket_that_was_written_anew(values):
    """A reader keeps the ends of objects, and asks whether they are still the same."""
    one, two = (obstore.store.MemoryStore() for _ in range(2))
    new = {"axes": "zyx", "resolution": (1, 1, 1), "chunks": 16, "encoding": "raw"}
    random = np.random.default_rng(0)
    first = random.integers(1, 9, (32, 64, 64), dtype="u1")
    second = np.where(np.arange(64) < 32, first + 10, 0).astype("u1")  # and lacks chunks
    for bucket, data in ((one, first), (two, second)):
        made = shardwrite.to_precomputed(data, bucket, **new, shard_nbytes="70kB")
    assert made.n_shards == 2
    x = shardwrite.from_precomputed(one, axes="zyx", chunks=-1)
    assert (x == first).all()
    for found in obstore.list(two, "1_1_1").collect():
        if found["path"].endswith(".shard"):
            obstore.put(one, found["path"], obstore.get(two, found["path"]).bytes())
    assert (x == second).all()


def test_scales(tmp_path, values):
    path = make_precomputed(tmp_path / "v", values, sharding=None)
    document = json.loads((path / "info").read_text())
    document["scales"].append(document["scales"][0] | {"key": "8", "size": [2, 2, 2]})
    (path / "info").write_text(json.dumps(document))
    for scale in (1, -1, "8"):
        assert shardwrite.from_precomputed(path, scale=scale).shape == (2, 2, 2)
    assert shardwrite.from_precomputed(path, scale="4_4_40").shape == SHAPE
    for wrong in (2, "4", True, 0.0):
        with pytest.raises(SpecError, match="no such scale"):
            shardwrite.from_precomputed(path, scale=wrong)


def test_a_store_of_zarr(tmp_path, values):
    path = make_precomputed(tmp_path / "v", values)
    memory = zarr.storage.MemoryStore()
    for file in path.rglob("*"):
        if file.is_file():
            data = zarr.core.buffer.cpu.Buffer.from_bytes(file.read_bytes())
            memory._store_dict[str(file.relative_to(path))] = data
    np.testing.assert_array_equal(shardwrite.from_precomputed(memory), values[..., 0])


def test_from_a_volume_to_an_array(tmp_path, values, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_precomputed(tmp_path / "v", values)
    source = open_source("v")
    assert source.metadata.dimension_names == ("x", "y", "z")
    assert source.metadata.attributes["precomputed"]["voxel_offset"] == list(OFFSET)
    for command in (
        ["write", "v", "x.zarr", "--chunks", "2,2,2", "--shards", "6,4,4"],
        ["verify", "x.zarr", "--deep", "--against", "v"],
        ["write", "v::4_4_40", "y.zarr"],
    ):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr("x.zarr"), values[..., 0])
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr("y.zarr"), values[..., 0])
    attributes = json.loads((tmp_path / "x.zarr" / "zarr.json").read_text())["attributes"]
    assert attributes["precomputed"]["resolution"] == [4, 4, 40]


def test_a_run_is_resumed_only_with_the_same_info(tmp_path, values):
    path = make_precomputed(tmp_path / "v", values)
    first = shardwrite.from_precomputed(path)
    assert first.name == shardwrite.from_precomputed(path).name
    assert first.name != shardwrite.from_precomputed(path, axes="zyx").name
    document = json.loads((path / "info").read_text())
    (path / "info").write_text(json.dumps({**document, "type": "segmentation"}))
    assert first.name != shardwrite.from_precomputed(path).name


@pytest.mark.parametrize(
    ("where", "change", "field"),
    [
        ("info", {"@type": "neuroglancer_skeletons"}, "@type"),
        ("info", {"data_type": "float64"}, "data_type"),
        ("info", {"data_type": None}, "data_type"),
        ("info", {"num_channels": 0}, "num_channels"),
        ("info", {"num_channels": None}, "num_channels"),
        ("info", {"scales": []}, "scales"),
        ("info", {"scales": [5]}, "scales"),
        ("scale", {"key": None}, "scales"),
        ("scale", {"size": [1, 2]}, "size"),
        ("scale", {"size": [1, 2, 0]}, "size"),
        ("scale", {"size": [1, 2, True]}, "size"),
        ("scale", {"size": [2**40, 2**40, 2**40]}, "grid"),
        ("scale", {"chunk_sizes": []}, "chunk_sizes"),
        ("scale", {"chunk_sizes": [[0, 1, 1]]}, "chunk_sizes"),
        ("scale", {"voxel_offset": [0, 0, 0.5]}, "voxel_offset"),
        ("scale", {"resolution": None}, "resolution"),
        ("scale", {"resolution": [float("nan"), 1, 1]}, "resolution"),
        ("scale", {"resolution": [10**400, 1, 1]}, "resolution"),
        ("scale", {"key": "\ud800"}, "scales"),
        ("scale", {"size": [2**62, 2, 1], "sharding": None}, "size"),
        ("scale", {"encoding": "jpeg"}, "encoding"),
        ("scale", {"encoding": None}, "encoding"),
        ("scale", {"sharding": {}}, "@type"),
    ],
)
def test_documents_that_are_refused(tmp_path, values, where, change, field):
    path = make_precomputed(tmp_path / "v", values)
    document = json.loads((path / "info").read_text())
    (document if where == "info" else document["scales"][0]).update(change)
    (path / "info").write_text(json.dumps(document))
    with pytest.raises(SpecError) as caught:
        shardwrite.from_precomputed(path)
    assert caught.value.field == field


def test_numbers_that_a_program_wrote_as_4_0_and_a_url(tmp_path, values):
    """JavaScript and tensorstore do not tell them from 4, and they were refused."""
    path = make_precomputed(tmp_path / "v", values, sharding=SHARDING)
    document = json.loads((path / "info").read_text())
    scale = document["scales"][0]
    scale.update({n: [float(i) for i in scale[n]] for n in ("size", "voxel_offset", "resolution")})
    scale["chunk_sizes"] = [[float(i) for i in CHUNK]]
    scale["sharding"] = {**SHARDING, "shard_bits": 3.0}
    document |= {"num_channels": 1.0, "type": "IMAGE", "data_type": "UINT16"}
    (path / "info").write_text(json.dumps(document))
    for address in (path.as_uri(), f"precomputed://{path}", f"precomputed://{path.as_uri()}"):
        x = shardwrite.from_precomputed(address)
        assert (x == values[..., 0]).all()
    shardwrite.reshard(f"precomputed://{path}", tmp_path / "z", shards=2)
    assert (shardwrite.from_sharded_zarr(tmp_path / "z", name="4_4_40") == values[..., 0]).all()
    written = ["precomputed", f"precomputed://{path}::0", f"precomputed://{tmp_path / 'w'}"]
    assert CliRunner().invoke(main, written).exit_code == 0
    assert json.loads((tmp_path / "w" / "info").read_text())["type"] == "image"
    assert (shardwrite.from_precomputed(tmp_path / "w") == values[..., 0]).all()
    told = CliRunner().invoke(main, ["precomputed", f"precomputed://{path}", path.as_uri()])
    assert "it is the source" in told.output
    labels = {
        "encoding": "compressed_segmentation",
        "compressed_segmentation_block_size": [8.0] * 3,
    }
    for encoding in (labels, {"encoding": "jpeg", "jpeg_quality": 75.0}):
        found = parse_info(document | {"scales": [scale | encoding]}).scales[0].encoding
        assert found.block_size == (8, 8, 8) or found.quality == 75
    (tmp_path / "mesh").mkdir()
    (tmp_path / "mesh" / "info").write_text(json.dumps({"sharding": scale["sharding"]}))
    assert shardwrite.UInt64Shards(tmp_path / "mesh").sharding.shard_bits == 3


def test_what_else_is_refused(tmp_path, values):
    with pytest.raises(StoreError, match="there is no info"):
        shardwrite.from_precomputed(tmp_path)
    path = make_precomputed(tmp_path / "v", values)
    for axes in ("xy", "xxz", "zyxt", "xyzcc", 5):
        with pytest.raises(SpecError, match="x, y and z"):
            shardwrite.from_precomputed(path, axes=axes)
    document = json.loads((path / "info").read_text())
    for key in ("../elsewhere", "/4_4_40", "a//b", "./4_4_40", "4_4_40/"):
        document["scales"][0]["key"] = key
        (path / "info").write_text(json.dumps(document))
        for read in (shardwrite.from_precomputed, lambda v: shardwrite.reshard(v, tmp_path / "z")):
            with pytest.raises(SpecError, match="no plain path below the volume") as caught:
                read(path)
            assert caught.value.field == "key"
    (path / "4_4_40").rename(path / "named")  # as the remedy says
    document["scales"][0]["key"] = "named"
    (path / "info").write_text(json.dumps(document))
    assert (shardwrite.from_precomputed(path) == values[..., 0]).all()
    (path / "info").write_text("{")
    with pytest.raises(SpecError, match="not valid"):
        shardwrite.from_precomputed(path)


def test_a_huge_chunk_in_a_document_costs_nothing(tmp_path, values):
    path = make_precomputed(
        tmp_path / "v", values, chunk_sizes=[[2**40, 2**40, 2**40]], size=[2**30] * 3
    )
    x = shardwrite.from_precomputed(path)
    assert isinstance(x, da.Array)
    with pytest.raises((CorruptShardError, StoreError)):
        x[0, 0, 0].compute()


def test_the_text_of_a_document(tmp_path, values):
    """A mark of UTF-8 at its start is no part of it, and other encodings are no JSON."""
    path = make_precomputed(tmp_path / "v", values)
    text = (path / "info").read_text()
    first = shardwrite.from_precomputed(path)
    (path / "info").write_text(text, encoding="utf-8-sig")
    marked = shardwrite.from_precomputed(path)
    np.testing.assert_array_equal(marked, first)
    (path / "info").write_text(text, encoding="utf-16")
    with pytest.raises(SpecError, match="UTF-8"):
        shardwrite.from_precomputed(path)


@pytest.mark.parametrize("data_encoding", ["gzip", "raw"])
def test_a_chunk_is_decoded_up_to_the_size_that_it_can_have(tmp_path, values, data_encoding):
    """The limit of the configuration is for chunks whose size no document tells."""
    sharding = {**SHARDING, "data_encoding": data_encoding}
    path = make_precomputed(tmp_path / "v", values, sharding=sharding)
    shards = shardwrite.UInt64Shards(path / "4_4_40", sharding)
    shards.write({0: bytes(2**26)}, existing="update")
    says = (
        "takes 67108864 bytes where at most 48 can be" if data_encoding == "raw" else "more than 48"
    )
    tracemalloc.start()
    try:
        with pytest.raises(CorruptShardError, match=says):
            shardwrite.from_precomputed(path)[:2, :2, :2].compute(scheduler="sync")
        peak_nbytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_nbytes < 2**23


def test_an_image_of_too_many_bytes_is_bad_for_all_readers(tmp_path):
    """`verify` and a reader of the volume have the same limit."""
    values = np.ones((4, 4, 4), "u1")
    sharding = {"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 0, "hash": "identity"}
    new = {"axes": "zyx", "resolution": (1, 1, 1), "chunks": 4, "encoding": "png"}
    shardwrite.to_precomputed(values, tmp_path / "v", **new, sharding=sharding)
    shards = shardwrite.UInt64Shards(
        tmp_path / "v" / "1_1_1",
        {**SHARDING, **sharding, "data_encoding": "raw"},
    )
    image = shards[0]
    text = b"tEXt" + b"a\0" + b"b" * 300_000
    more = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    shards.write({0: image[:33] + more + image[33:]}, existing="update")
    says = r"takes \d{6} bytes where at most \d{5} can be"
    (problem,) = shardwrite.verify(tmp_path / "v" / "1_1_1", deep=True).problems
    found = re.search(says, problem.message)
    assert found
    with pytest.raises(CorruptShardError, match=found[0]):
        shardwrite.from_precomputed(tmp_path / "v").compute(scheduler="sync")
