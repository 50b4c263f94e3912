"""Shards of which a transposition stands before the sharding, with sizes that differ by axis.

The chunk shape of the sharding is then that of the transposed shard. The first array is described
as `transposed_sharding.zarr` of GDAL's tests. All are made by hand from the specification.
"""

from __future__ import annotations

import json
from importlib.metadata import version

import dask.array as da
import numcodecs
import numpy as np
import pytest
from crc32c import crc32c

import shardwrite
from shardwrite import ShardWriter, SpecError

GDAL = "as in GDAL's tests"
CASES = {
    GDAL: ((24, 26), (10, 12), [(1, 0)], (6, 5)),
    "two axes": ((7, 11), (4, 10), [(1, 0)], (5, 2)),
    "one shard": ((5, 4), (5, 4), [(1, 0)], (2, 5)),
    "three axes": ((7, 11, 5), (4, 10, 6), [(2, 0, 1)], (3, 2, 5)),
    "two transpositions": ((7, 11, 5), (4, 10, 6), [(2, 0, 1), (1, 0, 2)], (2, 3, 5)),
    "the same sizes": ((7, 7), (4, 4), [(1, 0)], (2, 2)),
}


def make(path, shape, shards, orders, chunks, like_gdal=False):
    """Write an array, of which each shard is put together here."""
    data_type, dtype = ("float32", "<f4") if like_gdal else ("int32", "<i4")
    values = np.arange(1, 1 + np.prod(shape), dtype=dtype).reshape(shape)
    plain = {"name": "bytes", "configuration": {"endian": "little"}}
    zstd = {"name": "zstd", "configuration": {"level": 0, "checksum": False}}
    sharding = {
        "chunk_shape": chunks,
        "codecs": [plain, zstd] if like_gdal else [plain],
        "index_codecs": [plain, {"name": "crc32c"}],
        "index_location": "end",
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [
            *({"name": "transpose", "configuration": {"order": order}} for order in orders),
            {"name": "sharding_indexed", "configuration": sharding},
        ],
    }
    path.mkdir()
    (path / "zarr.json").write_text(json.dumps(document))
    counts = [-(-n // s) for n, s in zip(shape, shards, strict=True)]
    for index in np.ndindex(*counts):
        shard = np.zeros(shards, dtype)
        part = values[tuple(slice(i * s, (i + 1) * s) for i, s in zip(index, shards, strict=True))]
        shard[tuple(map(slice, part.shape))] = part
        for order in orders:
            shard = shard.transpose(order)
        data, table = b"", []
        for at in np.ndindex(*(n // c for n, c in zip(shard.shape, chunks, strict=True))):
            place = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))
            chunk = shard[place].tobytes()
            if like_gdal:
                chunk = bytes(numcodecs.Zstd(level=0).encode(chunk))
            table += [len(data), len(chunk)]
            data += chunk
        encoded = np.array(table, dtype="<u8").tobytes()
        target = path.joinpath("c", *map(str, index))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data + encoded + crc32c(encoded).to_bytes(4, "little"))
    return values


@pytest.fixture(params=CASES, ids=str)
def case(request, tmp_path):
    name, path = request.param, tmp_path / "x"
    return path, make(path, *CASES[name], like_gdal=name == GDAL)


def test_it_is_read(case):
    path, values = case
    array = shardwrite.open_sharded(path)
    np.testing.assert_array_equal(array[...], values)
    part = tuple(slice(n // 3, n - 1) for n in values.shape)
    np.testing.assert_array_equal(array[part], values[part])
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path).compute(), values)
    assert shardwrite.verify(path, deep=True, against=da.from_array(values)).is_good
    assert shardwrite.census(path).counts["bad"] == 0


def check_tensorstore(path, values):
    """Compare with what tensorstore reads. Older versions refuse some shards of three axes."""
    tensorstore = pytest.importorskip("tensorstore")
    is_older = tuple(map(int, version("tensorstore").split("."))) < (0, 1, 86)
    if is_older and values.ndim > 2:
        pytest.skip("this tensorstore refuses such shards")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), values)


def test_tensorstore_agrees(case):
    check_tensorstore(*case)


def test_it_is_changed_and_other_readers_agree(case):
    path, values = case
    part = tuple(slice(n // 3, n - 1) for n in values.shape)
    shardwrite.write_region(da.from_array(-values[part]), path, part)
    values[part] *= -1
    grown = np.concatenate([values, values[:3] + 1000])
    shardwrite.write_region(da.from_array(grown[len(values) :]), path, "append")
    first = (slice(0, 2),) * values.ndim
    shardwrite.erase(path, first)
    grown[first] = 0
    with ShardWriter(path) as writer:
        writer.append(values[:1])
    grown = np.concatenate([grown, values[:1]])
    shardwrite.compact(path)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], grown)
    assert shardwrite.verify(path, deep=True, against=da.from_array(grown)).is_good
    check_tensorstore(path, grown)


def test_it_is_converted(case, tmp_path):
    path, values = case
    out = tmp_path / "out"
    shardwrite.from_sharded_zarr(path).to_sharded_zarr(out, shards=4, chunks=2)
    np.testing.assert_array_equal(shardwrite.open_sharded(out)[...], values)


def test_chunks_that_do_not_divide_are_refused(tmp_path):
    make(tmp_path / "x", (4, 10), (4, 10), [(1, 0)], (5, 2))
    document = json.loads((tmp_path / "x/zarr.json").read_text())
    for wrong in ([2, 5], [5, 2, 1], [5]):
        document["codecs"][1]["configuration"]["chunk_shape"] = wrong
        (tmp_path / "x/zarr.json").write_text(json.dumps(document))
        with pytest.raises((SpecError, shardwrite.CodecError)):
            shardwrite.open_sharded(tmp_path / "x")[...]
