"""Arrays of Zarr v2, written by zarr-python 2.17 as lines of JSON on standard input say.

The program runs in an environment of its own, which `conftest.py` makes. It answers each line when
the array is written and read back.
"""

from __future__ import annotations

import json
import sys

import numcodecs
import numpy as np
import zarr


def codec(config):
    return None if config is None else numcodecs.get_codec(config)


def make(told):
    """Write one array, or only a part of it, and what it holds then beside it."""
    values = np.load(told["values"])
    fill = {"none": lambda: None, "zero": lambda: 0, "first": lambda: values.flat[0]}[told["fill"]]
    x = zarr.create(
        values.shape,
        chunks=told["chunks"],
        dtype=values.dtype,
        compressor=codec(told["compressor"]),
        filters=[codec(one) for one in told["filters"]] or None,
        order=told["order"],
        fill_value=fill(),
        store=zarr.DirectoryStore(told["path"]),
        dimension_separator=told["separator"],
        write_empty_chunks=told["write_empty_chunks"],
    )
    part = tuple(slice(*bounds) for bounds in told["part"])
    x[part] = values[part]
    x.attrs["units"] = "K"
    np.save(told["wanted"], x[...])


for line in sys.stdin:
    make(json.loads(line))
    print("done", flush=True)
