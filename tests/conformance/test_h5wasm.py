"""h5wasm, which is the library of HDF5 in JavaScript, finds every value in shards that are HDF5
files.

Without its plugins it gives other values and says nothing. So each value is compared.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite import Hdf5

pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

HERE = Path(__file__).parent
if shutil.which("node") is None or not (HERE / "node_modules" / "h5wasm-plugins").exists():
    pytest.skip(
        "h5wasm is not here: needs node and `npm install` in tests/conformance (make test does it)",
        allow_module_level=True,
    )

SHAPE, SHARDS, CHUNKS = (50, 23), (32, 16), (8, 4)


def named(name, **configuration):
    return {"name": name, "configuration": configuration}


def blosc(cname, shuffle):
    return lambda size: [
        named("blosc", cname=cname, clevel=5, shuffle=shuffle, typesize=size, blocksize=0)
    ]


def shuffled(size):
    return named("numcodecs.shuffle", elementsize=size)


ZLIB, FLETCHER = named("numcodecs.zlib", level=4), named("numcodecs.fletcher32")
CODECS = {
    "none": lambda size: None,
    "zstd": lambda size: [named("zstd", level=3, checksum=False)],
    "zlib": lambda size: [ZLIB],
    "bz2": lambda size: [named("numcodecs.bz2", level=3)],
    "fletcher32": lambda size: [FLETCHER],
    "shuffle, zlib, fletcher32": lambda size: [shuffled(size), ZLIB, FLETCHER],
    "blosc lz4": blosc("lz4", "shuffle"),
    "blosc zstd": blosc("zstd", "bitshuffle"),
    "blosc blosclz": blosc("blosclz", "noshuffle"),
    "blosc lz4hc": blosc("lz4hc", "shuffle"),
}
# Not here: blosc with zlib, since the plugin of h5wasm-plugins 0.2.1 was linked without `uncompress`.
# It has no values for numbers of half precision.
DTYPES = ["?", "i1", "u2", ">u2", "i4", "u8", "f4", ">f8", "c8", "c16"]
FILLS = {"f": np.nan, "c": complex(np.nan, 1), "b": True}


def write(path, codec, dtype, index):
    """Shards with random values, inside the array and at its edges, with an empty inner chunk."""
    kind = np.dtype(dtype)
    fill = FILLS.get(kind.kind, 7)
    x = np.random.default_rng(0).integers(0, 2 if dtype == "?" else 100, SHAPE).astype(kind)
    x[: CHUNKS[0], : CHUNKS[1]] = fill
    order = named("bytes", endian="big" if dtype[0] == ">" else "little")
    da.from_array(x, chunks=(20, 23)).to_sharded_zarr(
        path,
        shards=SHARDS,
        chunks=CHUNKS,
        compressors=CODECS[codec](kind.itemsize),
        serializer=order if kind.itemsize > 1 else "auto",
        fill_value=fill,
        strategy=Hdf5(index),
        durability="none",
    )
    return x


def read(files, **environment):
    done = subprocess.run(
        ["node", str(HERE / "read_hdf5.mjs"), *map(str, files)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, **environment},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def values_of(answer, dtype):
    """Values as an array of the dtype."""
    data, kind = base64.b64decode(answer["data"]), np.dtype(dtype).newbyteorder("<")
    if answer["doubles"]:
        kind = np.dtype("<c16")
    elif dtype == "?":
        kind = np.dtype("i1")
    return np.frombuffer(data, kind).reshape(answer["shape"]).astype(dtype)


def in_shard(x, file):
    at = [int(part) for part in file.parts[-2:]]
    return x[tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, SHARDS, strict=True))]


def check(tmp_path, cells):
    """Shards of some arrays, all read by one process."""
    files = {}
    for number, (codec, dtype, index) in enumerate(cells):
        path = tmp_path / str(number)
        x = write(path, codec, dtype, index)
        for file in sorted((path / "c").glob("*/*")):
            files[file] = (codec, dtype, index), in_shard(x, file)
    assert len(files) == 4 * len(cells)
    for (cell, wanted), answer in zip(files.values(), read(files), strict=True):
        assert "error" not in answer, (cell, answer)
        found = values_of(answer, cell[1])
        np.testing.assert_array_equal(found, wanted, err_msg=str(cell))


@pytest.mark.long
def test_every_codec_and_every_dtype(tmp_path):
    """Each codec with one dtype, and each dtype with one codec, by turns at both index places."""
    n = max(len(CODECS), len(DTYPES))
    codecs = list(CODECS)
    check(
        tmp_path,
        [
            (codecs[i % len(codecs)], DTYPES[i % len(DTYPES)], ("start", "end")[i % 2])
            for i in range(n)
        ],
    )


@pytest.mark.long
def test_every_codec_with_every_dtype(tmp_path):
    check(
        tmp_path,
        [
            (codec, dtype, ("start", "end")[(i + j) % 2])
            for i, codec in enumerate(CODECS)
            for j, dtype in enumerate(DTYPES)
        ],
    )


def test_without_plugins_the_values_are_others(tmp_path):
    """A control: it is not enough that a file opens."""
    x = write(tmp_path / "x", "zstd", "i4", "end")
    file = tmp_path / "x" / "c" / "0" / "0"
    (answer,) = read([file], WITHOUT_PLUGINS="1")
    assert "error" in answer or (values_of(answer, "i4") != in_shard(x, file)).any()
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good
