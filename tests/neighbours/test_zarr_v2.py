"""Arrays of Zarr v2 that zarr-python 2.17 has written become sharded ones, chunk by chunk as they
were, and all readers find the same values."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import shardwrite

sys.path.insert(0, str(Path(__file__).parent.parent / "operations"))

from test_convert import by_tensorstore, by_zarrs, draw_values, payloads, same
from test_convert_v2 import COMPRESSORS, DTYPES, FILTERS, encoded

pytestmark = pytest.mark.long  # fetches what it needs
CONFIGS = {
    name: codec and codec.get_config()
    for name, codec in COMPRESSORS.items()
    if name != "zstd+checksum"  # which is newer
}
del CONFIGS["zstd"]["checksum"]  # whose default it is
BY_ALL = ("none", "zstd", "gzip", "blosc", "blosc lz4")
"""Compressors that tensorstore and zarrs know, too."""


@pytest.fixture(scope="module")
def zarr_python_2(old_python):
    """A function that has zarr-python 2.17 write an array."""
    program = Path(__file__).parent / "zarr_v2.py"
    command = [old_python, "-W", "ignore", program]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def write(**told):
            process.stdin.write(json.dumps(told) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "done\n", told

        yield write


@st.composite
def drawn(draw):
    """What an array is, and the part of it that is written."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=1, max_size=3)))
    names = list(FILTERS) if dtype.kind in "iu" and dtype.str[0] != ">" else ["none", "crc32"]
    bounds = [sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape]
    whole = [[0, n] for n in shape]
    part = draw(st.sampled_from([bounds, whole]))
    # Without a fill value, nobody knows what a missing chunk holds.
    fills = ["zero", "none"] if part == whole else ["zero"]
    fills += ["first"] if dtype.kind != "V" and 0 not in shape else []
    return {
        "dtype": dtype,
        "shape": shape,
        "chunks": [draw(st.integers(1, 5)) for _ in shape],
        "compressor": draw(st.sampled_from(list(CONFIGS))),
        "filters": draw(st.sampled_from(names)),
        "order": draw(st.sampled_from("CF")),
        "separator": draw(st.sampled_from("./")),
        "fill": draw(st.sampled_from(fills)),
        "write_empty_chunks": draw(st.booleans()),
        "part": part,
        "seed": draw(st.integers(0, 99)),
    }


def test_round_trips(zarr_python_2):
    seen = Counter()

    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        database=None,
    )
    @given(told=drawn(), shards=st.sampled_from([1, 2, 3, "auto", None]))
    def check(told, shards):
        dtype, seed = told.pop("dtype"), told.pop("seed")
        names = told["compressor"], told["filters"]
        codecs = {
            "compressor": CONFIGS[names[0]],
            "filters": [one.get_config() for one in FILTERS[names[1]](dtype) or []],
        }
        directory = Path(tempfile.mkdtemp())
        try:
            a, b = directory / "a", directory / "b"
            files = {name: str(directory / f"{name}.npy") for name in ("values", "wanted")}
            np.save(files["values"], draw_values(told.pop("shape"), dtype, seed))
            zarr_python_2(path=str(a), **told | codecs | files)
            wanted = np.load(files["wanted"])
            with dask.config.set(scheduler="sync"):
                done = shardwrite.reshard(a, b, shards, durability="none", check=True)
            assert done.n_chunks_encoded == 0
            assert payloads(b) == encoded(a)
            assert json.loads((b / "zarr.json").read_text())["attributes"] == {"units": "K"}
            same(shardwrite.open_sharded(b)[...], wanted)
            seen["chunks"] += done.n_chunks_copied
            seen["missing"] += done.n_chunks_copied < np.prod(
                [-(-n // c) for n, c in zip(wanted.shape, told["chunks"], strict=True)]
            )
            if dtype.kind != "V":  # which zarr-python cannot read from shards
                same(zarr.open_array(b, mode="r")[...], wanted)
                seen["zarr-python"] += 1
            if dtype.kind in "biuf" and names[1] == "none" and names[0] in BY_ALL:
                same(by_tensorstore(b), wanted)
                same(by_zarrs(b), wanted)
                seen["tensorstore and zarrs"] += 1
        finally:
            shutil.rmtree(directory)

    check()
    print(dict(seen))
    assert seen["chunks"] > 40
    assert seen["missing"] > 8
    assert seen["zarr-python"] > 40
    assert seen["tensorstore and zarrs"] > 4
