"""Keywords of a plan as a value: what is taken, what is replaced, and what is refused."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.plan.options import PlanOptions

BAD = [
    ("write_empty_chunks", 1),
    ("write_empty_chunks", None),
    ("compression_ratio", 0),
    ("compression_ratio", "2"),
    ("compression_ratio", True),
    ("max_graph_tasks", 0),
    ("max_graph_tasks", 2.5),
    ("max_graph_tasks", True),
    ("max_source_reruns", -1),
    ("source_id", ""),
    ("source_id", 3),
    ("strategy", "hilbert"),
    ("memory_limit", "much"),
    ("memory_limit", 0),
    ("memory_limit", True),
]


@pytest.mark.parametrize(("keyword", "value"), BAD, ids=repr)
def test_a_bad_value_is_refused_with_its_keyword(keyword, value):
    with pytest.raises(SpecError) as caught:
        PlanOptions(**{keyword: value})
    assert caught.value.field == keyword
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("keyword", "value"),
    [case for case in BAD if case[0] not in ("compression_ratio", "max_source_reruns")],
    ids=repr,
)
def test_updates_refuse_what_new_arrays_refuse(tmp_path, keyword, value):
    """Before any file is changed."""
    path = tmp_path / "x.zarr"
    x = da.ones((8, 8), chunks=4, dtype="u1")
    x.to_sharded_zarr(path, shards=4, chunks=2)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")}
    for update in (shardwrite.write_region, shardwrite.plan_region):
        with pytest.raises(SpecError) as caught:
            update(x[:4], path, slice(0, 4), **{keyword: value})
        assert caught.value.field == keyword
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("memory_limit", np.int64(10**9)),
        ("memory_limit", np.uint32(10**9)),
        ("max_graph_tasks", np.uint8(8)),
        ("max_graph_tasks", np.uint64(100)),
        ("compression_ratio", np.float32(2.5)),
        ("compression_ratio", Fraction(5, 2)),
        ("max_source_reruns", np.float16(1.25)),
    ],
    ids=repr,
)
def test_numbers_of_any_type_are_those_of_python(tmp_path, keyword, value):
    """A plan is written as JSON, and tells its numbers. Whole numbers of numpy would overflow."""
    x = da.ones((8, 8), chunks=4, dtype="u1")
    options = {"shards": 4, "chunks": 2, keyword: value}
    assert str(shardwrite.plan(x, **options))
    result = x.to_sharded_zarr(tmp_path / "x", durability="none", **options)
    assert result.n_shards == 4
    x[:4].to_sharded_zarr(tmp_path / "x", region=slice(0, 4), durability="none", **{keyword: value})
    assert shardwrite.verify(tmp_path / "x", against=x).is_good


def test_sizes_are_no_array_of_dask():
    x = da.ones((8, 8), chunks=4, dtype="u1")
    for field in ("shards", "chunks"):
        with pytest.raises(SpecError, match="sizes are positive integers"):
            shardwrite.plan(x, **{"shards": 4, "chunks": 2, field: x.mean(axis=0)})


def test_names_and_texts_are_replaced_by_values():
    options = PlanOptions(strategy="morton", memory_limit="4 kB")
    assert options.strategy == shardwrite.FixedOrder("morton")
    assert options.memory_limit_nbytes == 4000
    assert PlanOptions().memory_limit_nbytes is None
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.strategy = "C"
