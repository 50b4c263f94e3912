"""Regions mean what they mean in numpy and zarr, in every operation that takes one."""

from __future__ import annotations

import random
import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from tiers import some

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main

SHAPE = (11, 9, 5)


pytestmark = pytest.mark.usefixtures("one_thread")


def make(path, shape=SHAPE, dtype="i4", **more):
    shardwrite.create(path, shape, dtype, shards=4, chunks=2, **more)
    return path


def random_index(rng, n):
    kind = rng.choice(["int", "negative", "slice", "open", "clipped"])
    a, b = sorted(rng.sample(range(n + 1), 2))
    return {
        "int": rng.randrange(n),
        "negative": -rng.randrange(1, n + 1),
        "slice": slice(a, b),
        "open": rng.choice([slice(a, None), slice(None, b), slice(None), slice(a - n - 1, None)]),
        "clipped": slice(a, b + 100),
    }[kind]


@pytest.mark.parametrize("seed", some(range(20), *range(8)))
def test_random_expressions_assign_as_numpy_does(tmp_path, seed):
    rng = random.Random(seed)
    path, wanted = make(tmp_path / "x"), np.zeros(SHAPE, "i4")
    for number in range(1, 4):
        key = tuple(random_index(rng, n) for n in SHAPE)
        if rng.random() < 0.5:
            at = rng.randrange(4)
            key = (*key[:at], ..., *key[rng.randrange(at, 4) :])
        key = key[0] if len(key) == 1 else key
        shape = wanted[key].shape
        if not wanted[key].size:
            continue
        values = np.arange(np.prod(shape), dtype="i4").reshape(shape) + 1000 * number
        x = da.from_array(values, chunks=3) if shape else da.from_array(values)
        if rng.random() < 0.3:
            values = x = number
        shardwrite.write_region(x, path, key)
        wanted[key] = values
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)


def test_an_integer_drops_its_axis(tmp_path):
    path = make(tmp_path / "x")
    plane = np.arange(11 * 5, dtype="i4").reshape(11, 5)
    shardwrite.write_region(da.from_array(plane, chunks=4), path, (slice(None), -2))
    np.testing.assert_array_equal(zarr.open_array(path)[:, 7], plane)
    kept = da.from_array(plane[:, None] + 1, chunks=4)
    shardwrite.write_region(kept, path, (slice(None), 0))
    np.testing.assert_array_equal(zarr.open_array(path)[:, 0], plane + 1)
    plan = shardwrite.plan_region(da.from_array(plane, chunks=4), path, np.s_[:, np.int64(3)])
    assert plan.raw_nbytes == plane.nbytes
    with pytest.raises(SpecError, match=r"x.shape=\(5, 11\): is not the region's; .* \(11, 5\)"):
        shardwrite.write_region(da.from_array(plane.T, chunks=4), path, (slice(None), -2))


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (0, "u1", 0),
        (200, "u1", 200),
        (True, "i2", 1),
        (3, "f4", 3.0),
        (0.1, "f4", np.float32(0.1)),
        (float("nan"), "f4", np.nan),
        (float("-inf"), "f8", -np.inf),
        (1j, "c8", 1j),
        (np.int16(7), "i4", 7),
        (np.array(7, "i2"), "i4", 7),
        (np.datetime64("2020-01-01"), "M8[s]", np.datetime64("2020-01-01", "s")),
        ("ab", "U3", "ab"),
        (2**63, "u8", 2**63),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:The data type")
def test_scalars_are_repeated(tmp_path, value, dtype, stored):
    path = make(tmp_path / "x", (6, 9), dtype)
    before = zarr.open_array(path)[...]
    shardwrite.write_region(value, path, np.s_[1:6, 3:])
    found = zarr.open_array(path)[...]
    np.testing.assert_array_equal(found[1:6, 3:], np.full((5, 6), stored, dtype))
    np.testing.assert_array_equal(found[:1], before[:1])
    np.testing.assert_array_equal(found[:, :3], before[:, :3])


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (300, "u1", r"x=300: cannot be held by the array's uint8; give a number"),
        (-1, "u1", r"x=-1: cannot be held"),
        (2**70, "i8", r"x=\d+: cannot be held"),
        (2**24 + 1, "f4", r"x=16777217: cannot be held by the array's float32"),
        (1e300, "f4", r"x=1e\+300: cannot be held by the array's float32"),
        (0.5, "i4", r"x.dtype='float64': cannot be cast to the array's int32"),
        (1j, "f8", r"x.dtype='complex128': cannot be cast"),
        (np.float64(0.5), "f4", r"x.dtype='float64': cannot be cast to the array's float32"),
        ("a", "i4", r"x.dtype='<U1': cannot be cast"),
        ("abcd", "U3", r"x.dtype='<U4': cannot be cast"),
        (None, "i4", r"x='NoneType': not an array"),
        (np.ma.masked, "f8", r"x="),
        ([1, 2], "i4", r"x='list': not an array"),
    ],
    ids=repr,
)
@pytest.mark.filterwarnings("ignore:The data type")
def test_scalars_that_an_array_cannot_hold(tmp_path, value, dtype, message):
    path = make(tmp_path / "x", (6, 9), dtype)
    before = {p: p.stat().st_mtime_ns for p in sorted(tmp_path.rglob("*"))}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(SpecError, match=message):
            shardwrite.write_region(value, path, ...)
    assert {p: p.stat().st_mtime_ns for p in sorted(tmp_path.rglob("*"))} == before


def test_a_scalar_without_shards_axes_or_directory(tmp_path):
    store = zarr.storage.MemoryStore()
    zarr.create_array(store, name="plain", shape=(7, 7), chunks=(3, 3), dtype="i2")
    shardwrite.write_region(5, store, np.s_[2:4, 6], name="plain")
    found = zarr.open_array(store, path="plain")[...]
    assert (found[2:4, 6] == 5).all()
    assert np.count_nonzero(found) == 2
    shardwrite.create(tmp_path / "0d", (), "f8", shards=(), chunks=())
    for region, value in (((), 2.5), (..., 3.5)):
        shardwrite.write_region(value, tmp_path / "0d", region)
        assert zarr.open_array(tmp_path / "0d")[()] == value


def test_text_of_variable_length_is_a_scalar(tmp_path):
    path = tmp_path / "x"
    text = da.from_array(np.array(["a"] * 6, dtype=object), chunks=3)
    text.to_sharded_zarr(path, shards=4, chunks=2, serializer="vlen-utf8")
    shardwrite.write_region("läng", path, slice(2, 5))
    assert zarr.open_array(path)[...].tolist() == ["a", "a", "läng", "läng", "läng", "a"]


def test_a_scalar_covers_whole_shards_without_reading_them(tmp_path):
    path = make(tmp_path / "x")
    shardwrite.write_region(1, path, ...)
    (path / "c/1/1/0").write_bytes(b"rubbish")
    shardwrite.write_region(2, path, np.s_[1:8, 4:8, :])
    assert (zarr.open_array(path)[1:8, 4:8] == 2).all()


def test_a_scalar_is_written_once_for_one_source_id(tmp_path):
    path = make(tmp_path / "x")
    first = shardwrite.write_region(4, path, np.s_[:4], source_id="four")
    again = shardwrite.write_region(4, path, np.s_[:4], source_id="four")
    assert first.seconds > 0 == again.seconds


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (np.s_[::2], "a slice with the step 2 along axis 0; write box by box, with slices"),
        (np.s_[:, ::-1], "a slice with the step -1 along axis 1"),
        (np.s_[:, :, 0:5:0], "a slice with the step 0 along axis 2"),
        (np.s_[0.5:2], "a slice whose ends are no integers along axis 0"),
        (np.s_[:, 9], "the index 9 is out of bounds for 9 elements along axis 1"),
        (-12, "the index -12 is out of bounds for 11 elements along axis 0"),
        ([1, 2], "a list of single elements along axis 0"),
        (np.s_[:, [1, 2]], "a list of single elements along axis 1"),
        (np.s_[:, np.array([1, 2])], "a list of single elements along axis 1"),
        (np.ones(11, bool), "a mask along axis 0"),
        (np.ones(SHAPE, bool), "a mask along axis 0"),
        (da.ones(11, dtype=bool), "a mask along axis 0"),
        (True, "a mask along axis 0"),
        (np.s_[None], "None, which would add an axis, along axis 0"),
        (np.s_[0, 0, 0, 0], "4 indices, and the array has 3 axes"),
        (np.s_[..., 0, ...], "2 ellipses, where one can stand"),
        (1.5, "float, which is no integer and no slice, along axis 0"),
        ("x", "no region; give slices"),
    ],
    ids=lambda value: None if isinstance(value, str) else str(value)[:30].replace("\n", " "),
)
@pytest.mark.parametrize("operation", ["write", "plan", "erase", "method"])
def test_what_is_no_box_is_refused_by_name(tmp_path, region, message, operation):
    path = make(tmp_path / "x")
    x = da.ones(SHAPE, dtype="i4")
    run = {
        "write": lambda: shardwrite.write_region(1, path, region),
        "plan": lambda: shardwrite.plan_region(1, path, region),
        "erase": lambda: shardwrite.erase(path, region),
        "method": lambda: x.to_sharded_zarr(path, region=region),
    }[operation]
    if region is None:
        pytest.skip("no region at all")
    with pytest.raises(SpecError, match=message) as raised:
        run()
    assert raised.value.field == "region"


def test_erase_takes_the_same_expressions(tmp_path):
    path = make(tmp_path / "x")
    shardwrite.write_region(1, path, ...)
    shardwrite.erase(path, -1)
    shardwrite.erase(path, (..., 0))
    wanted = np.ones(SHAPE, "i4")
    wanted[-1], wanted[..., 0] = 0, 0
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)


def test_a_stream_takes_the_same_expressions(tmp_path):
    path = make(tmp_path / "x")
    with shardwrite.ShardWriter(path) as writer:
        writer[2] = 5
        writer[3:5, -1] = np.full((2, 5), 6, "i4")
        writer[:11, ..., 0] = 7
        writer[12, 0, 0] = 8
        with pytest.raises(SpecError, match="a slice with the step 2 along axis 1"):
            writer[:, ::2] = 1
        with pytest.raises(SpecError, match="is not the region's"):
            writer[3:] = 1  # it would have no end
    wanted = np.zeros((13, 9, 5), "i4")
    wanted[2], wanted[3:5, -1] = 5, 6
    wanted[:11, :, 0] = 7
    wanted[12, 0, 0] = 8
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)


def test_reading_and_writing_share_one_parser(tmp_path):
    array = shardwrite.open_sharded(make(tmp_path / "x"))
    for key, message in ((np.s_[..., ...], "2 ellipses"), (np.s_[0, 0, 0, 0], "4 indices")):
        with pytest.raises(IndexError, match=message):
            array[key]
        with pytest.raises(SpecError, match=message):
            shardwrite.write_region(1, tmp_path / "x", key)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("0:4,10:2000,:", np.s_[0:4, 1:9, :]),
        ("3", np.s_[3]),
        ("-1,...", np.s_[-1, ...]),
        ("..., -2", np.s_[..., -2]),
        (":,4:-1", np.s_[:, 4:-1]),
        ("0:2:1", np.s_[0:2:1]),
    ],
)
def test_regions_of_the_command_line(tmp_path, text, key):
    path = make(tmp_path / "x")
    text = text.replace("10:2000", "1:2000")
    wanted = np.zeros(SHAPE, "i4")
    values = np.arange(1, wanted[key].size + 1, dtype="i4").reshape(wanted[key].shape)
    np.save(tmp_path / "new.npy", values)
    done = CliRunner().invoke(
        main, ["update", str(tmp_path / "new.npy"), str(path), "--region", text]
    )
    assert done.exit_code == 0, done.output
    wanted[key] = values
    np.testing.assert_array_equal(zarr.open_array(path)[...], wanted)
    done = CliRunner().invoke(main, ["erase", str(path), "--region", text])
    assert done.exit_code == 0, done.output
    assert not zarr.open_array(path)[...].any()


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("0:4:2", 2, "a slice with the step 2 along axis 0"),
        ("99", 2, "the index 99 is out of bounds for 11 elements along axis 0"),
        ("", 2, "is no region"),
        ("a:b", 2, "is no region"),
        ("1:2:3:4", 2, "is no region"),
        ("1.5", 2, "is no region"),
        ("1,,2", 2, "is no region"),
    ],
)
def test_what_the_command_line_refuses(tmp_path, text, code, message):
    path = make(tmp_path / "x")
    done = CliRunner().invoke(main, ["erase", str(path), "--region", text])
    assert done.exit_code == code, done.output
    assert message in " ".join(done.output.split())
