"""Shapes that hurt get one line with better ones."""

from __future__ import annotations

import warnings

import dask
import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.runs import array_plan


@pytest.fixture(autouse=True)
def told_anew():
    array_plan._warn_once.cache_clear()


def zeros(shape, chunks, dtype="u1"):
    return da.zeros(shape, chunks=chunks, dtype=dtype)


HURTING = {
    "very many files": (zeros((2**21,), 2**20), {"shards": 1, "chunks": 1}, "2,097,152 files"),
    "small files": (zeros((2**24,), 2**20), {"shards": 2**13, "chunks": 2**13}, "2,048 files of 8.19 kB"),
    "small chunks without shards": (
        zeros((2**24,), 2**20), {"shards": None, "chunks": 2**13}, "2,048 files of 8.19 kB",
    ),
    "a large index": (
        zeros((2**24,), 2**24), {"shards": 2**24, "chunks": 2**10}, "takes an index of 262 kB",
    ),
    "shards that nearly fit": (
        zeros((1000, 1000, 1000), 100), {"shards": 96, "chunks": 32}, "source chunks of 100 on axis 0",
    ),
    "two source chunks, nearly": (
        zeros((1000, 1000, 1000), 100), {"shards": 192, "chunks": 32}, "nearly fit source chunks",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("x", "shapes", "told"), HURTING.values(), ids=HURTING)
def test_better_shapes_are_named_once(x, shapes, told):
    with pytest.warns(UserWarning, match=told) as caught:
        shardwrite.plan(x, memory_limit="64GB", **shapes)
    assert len(caught) == 1
    message = str(caught[0].message)
    better = message.partition("Better: ")[2].partition(", which")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardwrite.plan(x, memory_limit="64GB", **shapes)  # it was told
        kwargs = eval(f"dict({better})")
        shardwrite.plan(x, memory_limit="64GB", **kwargs)


def test_shards_that_do_not_fit_into_the_memory():
    x = zeros((2**30,), 2**26)
    with pytest.warns(UserWarning, match=r"a shard has 1.07 GB, and a process 1 GB"):
        shardwrite.plan(x, shards=2**30, chunks=2**20, memory_limit="1GB")


@pytest.mark.parametrize(
    ("x", "shapes"),
    [
        (zeros((64, 64), 16), {"shards": 4, "chunks": 2}),  # small, but few
        (zeros((1000, 1000, 1000), 100), {"shards": 200, "chunks": 50}),
        (zeros((1000, 1000, 1000), 100), {"shards": 256, "chunks": 64}),
        (zeros((1000, 1000, 1000), 50), {"shards": 256, "chunks": 64}),  # 5.12 source chunks
        (zeros((1000, 1000, 1000), (1, 1000, 1000)), {"shards": 250, "chunks": 50}),
        (zeros((2**24,), 2**20), {}),
        (zeros((0, 4), 4), {"shards": 4, "chunks": 2}),
    ],
)
def test_other_shapes_are_not_told_of(x, shapes):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shardwrite.plan(x, memory_limit="64GB", **shapes)


@pytest.mark.long
def test_a_write_tells_too_and_a_setting_silences_it(tmp_path):
    x = da.from_array(np.ones((1100, 2), "u1"), chunks=(550, 2))
    with dask.config.set({"shardwrite.array.advice": False}), warnings.catch_warnings():
        warnings.simplefilter("error")
        x.to_sharded_zarr(tmp_path / "silent.zarr", shards=1, chunks=1, durability="none")
    with pytest.warns(UserWarning, match=r"shardwrite\.array\.advice: false silences this"):
        x.to_sharded_zarr(tmp_path / "told.zarr", shards=1, chunks=1, durability="none")
