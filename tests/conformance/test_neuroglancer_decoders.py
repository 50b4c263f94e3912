"""Neuroglancer's own code, run by node, fetches and decodes every chunk of volumes written here.

It finds shard and minishard by the hash, reads the indexes, and decodes the chunks.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite

HERE = Path(__file__).parent
if shutil.which("node") is None or not (HERE / "node_modules" / "neuroglancer").exists():
    pytest.skip(
        "Neuroglancer is not here: needs node and `npm install` in tests/conformance (make test "
        "does it)",
        allow_module_level=True,
    )

N_CASES, N_LONG = 14, 60
HASHES = ["identity", "murmurhash3_x86_128"]
KINDS = [
    ("raw", "uint8"),
    ("compressed_segmentation", "uint64"),
    ("raw", "uint64"),
    ("compressed_segmentation", "uint32"),
    ("png", "uint8"),
    ("raw", "int16"),
    ("raw", "float32"),
    ("png", "uint16"),
    ("raw", "uint32"),
    ("raw", "int8"),
]
CODINGS = list(itertools.product(["raw", "gzip"], repeat=2))


def case(number):
    """Values as x, y, z and channel, and keywords of the call."""
    rng = np.random.default_rng(number)
    encoding, dtype = KINDS[number % len(KINDS)]
    size, chunk = rng.integers(1, 30, 3).tolist(), rng.integers(2, 12, 3).tolist()
    # Neuroglancer 2.40.1 leaves the channels of a PNG interleaved, and knows no PNG of two.
    n_channels = 1 if encoding == "png" else int(rng.integers(1, 4))
    values = rng.integers(0, 120, (*size, n_channels)).astype(dtype)
    if dtype == "uint64":
        values *= np.uint64(2**57 + 1)
    for _ in range(2):  # boxes of zeros, whose chunks are left out
        start = [int(rng.integers(0, n)) for n in size]
        values[tuple(slice(a, a + 14) for a in start)] = 0
    bits = sum((-(-n // c) - 1).bit_length() for n, c in zip(size, chunk, strict=True))
    low = int(rng.integers(0, bits + 3))
    minishard = int(rng.integers(0, min(low, 8) + 1))
    of_index, of_data = CODINGS[number % 13 % 4]
    own = {}
    if encoding == "compressed_segmentation" and number % 3:
        own["compressed_segmentation_block_size"] = rng.integers(1, 9, 3).tolist()
    keywords = {
        "axes": "xyzc",
        "resolution": [4, 4, 40],
        "voxel_offset": rng.integers(-20, 20, 3).tolist(),
        "encoding": None if encoding == "raw" else encoding,
        "chunks": chunk,
        "sharding": {
            "hash": HASHES[(number + number // len(KINDS)) % 2],
            "preshift_bits": low - minishard,
            "minishard_bits": minishard,
            "shard_bits": max(0, bits - low) + int(rng.integers(0, 3)),
            "minishard_index_encoding": of_index,
            "data_encoding": of_data,
        },
        "durability": "none",
        **own,
    }
    return values, keywords


@pytest.mark.parametrize(
    "numbers",
    [range(N_CASES), pytest.param(range(N_CASES, N_LONG), marks=pytest.mark.long)],
    ids=["some", "all"],
)
def test_every_voxel_is_what_was_written(tmp_path, numbers):
    cases = {tmp_path / f"{number}": case(number) for number in numbers}
    for path, (values, keywords) in cases.items():
        shardwrite.to_precomputed(da.from_array(values, chunks=17), path, **keywords)
    done = subprocess.run(
        ["node", str(HERE / "read_precomputed.mjs"), *map(str, cases)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(cases), done.stderr
    for line, (path, (values, keywords)) in zip(lines, cases.items(), strict=True):
        found = json.loads(line)
        what = f"case {path.name}: {values.dtype}, {keywords}"
        assert "error" not in found, f"{what}: {found['error']}"
        assert found["shape"] == list(values.shape), what
        theirs = np.frombuffer(base64.b64decode(found["data"]), values.dtype)
        np.testing.assert_array_equal(theirs.reshape(values.shape, order="F"), values, err_msg=what)


@pytest.mark.long
def test_a_changed_byte_is_seen(tmp_path):
    """A value that is stored otherwise is decoded otherwise, and so the comparison can fail."""
    values = np.arange(1, 49, dtype="uint8").reshape(6, 4, 2, 1)
    sharding = {"preshift_bits": 1, "minishard_bits": 1, "shard_bits": 1, "data_encoding": "raw"}
    keywords = {"axes": "xyzc", "resolution": (4, 4, 40), "chunks": 2, "sharding": sharding}
    written = shardwrite.to_precomputed(da.from_array(values), tmp_path, **keywords)
    shard = Path(written.path) / "0.shard"
    data = shard.read_bytes()
    at = data.index(bytes([1, 9, 3, 11]))  # the first chunk
    shard.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    found = subprocess.run(
        ["node", str(HERE / "read_precomputed.mjs"), str(tmp_path)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    theirs = np.frombuffer(base64.b64decode(json.loads(found.stdout)["data"]), "uint8")
    assert np.count_nonzero(theirs.reshape(values.shape, order="F") != values) == 1
