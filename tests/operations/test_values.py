"""Every dtype and fill value, to the bit; what is empty is not stored, and only that."""

from __future__ import annotations

import math
import re
import warnings

import dask.array as da
import numcodecs
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from packaging.version import Version

import shardwrite
from shardwrite.cli import main
from shardwrite.format.metadata import parse_metadata
from shardwrite.sources import open_source

GOOD = {"shards": 8, "chunks": 4, "durability": "none"}
pytestmark = pytest.mark.filterwarnings("ignore:The data type:FutureWarning")

IS_MENDED = Version(zarr.__version__) >= Version("3.4")  # zarr-python, for dtypes of kind V
ARRAYS = {
    "bool": np.arange(100).reshape(10, 10) % 3 == 0,
    **{
        k: np.arange(100).reshape(10, 10).astype(k)
        for k in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16")
    },
    "big-endian": np.arange(100, dtype=">i4").reshape(10, 10),
    "big-endian float": np.arange(100, dtype=">f8").reshape(10, 10),
    "datetime": np.arange(100).reshape(10, 10).astype("M8[ms]"),
    "timedelta": np.arange(100).reshape(10, 10).astype("m8[us]"),
    "bytes": np.array([b"a", b"bcd", b""] * 20, dtype="S5").reshape(6, 10),
    "text": np.array(["a", "bcd", "é"] * 20, dtype="U3").reshape(6, 10),
    "structured": np.array(
        [(n, n / 3) for n in range(100)], dtype=[("a", "<i4"), ("b", "<f8")]
    ).reshape(10, 10),
    "structured, big-endian": np.array(
        [(n, n / 3) for n in range(100)], dtype=[("a", ">i4"), ("b", "<f8")]
    ).reshape(10, 10),
    "datetime without a time": np.array(
        ["NaT", "2020-01-01", "1969-12-31", "1970-01-01"] * 9, dtype="M8[D]"
    ).reshape(6, 6),
    "big-endian datetime": np.arange(100).reshape(10, 10).astype(">M8[ns]"),
    **{
        f"odd bits of {k}": np.random.default_rng(1)
        .integers(0, 256, 100 * np.dtype(k).itemsize, "u1")
        .view(k)
        .reshape(10, 10)
        for k in ("f2", "f4", "f8", ">f4", "c8", "c16")
    },
}
# zarr-python before 3.4 cannot shard structured dtypes, so it cannot read them either
UNREADABLE = set() if IS_MENDED else {"structured", "structured, big-endian"}


@pytest.mark.compat
@pytest.mark.parametrize("kind", ARRAYS)
def test_dtypes(tmp_path, kind):
    a = ARRAYS[kind]
    da.from_array(a, chunks=3).to_sharded_zarr(tmp_path / "x", **GOOD)
    back = shardwrite.from_sharded_zarr(tmp_path / "x").compute()
    np.testing.assert_array_equal(back, a)
    assert back.dtype == a.dtype.newbyteorder("<")
    assert back.tobytes() == a.astype(back.dtype).tobytes(), "every bit comes back"
    if kind not in UNREADABLE:
        np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], a)
    assert shardwrite.verify(tmp_path / "x", deep=True).is_good


def test_a_dtype_with_titles_is_refused_before_any_task(tmp_path):
    """zarr would store a title as a field more, which no value has."""
    titled = np.dtype([(("what it is", "a"), "<i4"), ("b", "<f8")])
    for dtype in (titled, np.dtype([("in", titled, (2,)), ("c", "<i2")])):
        for make in (
            lambda dtype=dtype: shardwrite.to_sharded_zarr(np.zeros(12, dtype), tmp_path / "x"),
            lambda dtype=dtype: shardwrite.create(tmp_path / "x", (12,), dtype, **GOOD),
            lambda dtype=dtype: shardwrite.plan(da.zeros(12, dtype=dtype)),
        ):
            with pytest.raises(
                shardwrite.SpecError, match="fields with titles have no stored form"
            ) as caught:
                make()
            assert caught.value.fields["field"] == "dtype"
    assert not list(tmp_path.iterdir())
    plain = np.zeros(12, titled).astype([("a", "<i4"), ("b", "<f8")])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shardwrite.to_sharded_zarr(plain, tmp_path / "x", **GOOD)
    assert shardwrite.from_sharded_zarr(tmp_path / "x").dtype == plain.dtype


@pytest.mark.compat
@pytest.mark.parametrize("dtype", ["V4", [("a", "<i4"), ("b", "<f8")]], ids=["void", "structured"])
def test_whoever_writes_what_zarr_may_not_read_is_warned(tmp_path, dtype):
    a = np.frombuffer(bytes(range(12 * np.dtype(dtype).itemsize)), dtype)
    x, words = da.from_array(a, chunks=6), "zarr-python before 3.4 cannot read.*shards=None"
    with pytest.warns(UserWarning, match=words):
        x.to_sharded_zarr(tmp_path / "x", **GOOD)
    with pytest.warns(UserWarning, match=words):
        shardwrite.create(tmp_path / "y", a.shape, a.dtype, **GOOD)
    np.save(tmp_path / "a.npy", a)
    how = ["write", tmp_path / "a.npy", tmp_path / "z", "--shards", 8, "--chunks", 4]
    done = CliRunner().invoke(main, [str(word) for word in how])
    assert done.exit_code == 0
    assert re.search(words.replace("shards=None", "--shards none"), done.output)
    for name in "xz":
        back = shardwrite.from_sharded_zarr(tmp_path / name).compute()
        assert back.tobytes() == a.tobytes()
    if IS_MENDED:
        assert zarr.open_array(tmp_path / "x", mode="r")[...].tobytes() == a.tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The data type")  # zarr-python's own, of its format
        x.to_sharded_zarr(tmp_path / "w", shards=None, chunks=4)
    assert zarr.open_array(tmp_path / "w", mode="r")[...].tobytes() == a.tobytes()


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        pytest.param(kind, shape, marks=pytest.mark.long if (n + m) % 3 else ())
        for n, kind in enumerate(ARRAYS)
        for m, shape in enumerate([(), (0,), (3, 0), (1, 1, 1)])
    ],
    ids=str,
)
def test_dtypes_of_next_to_nothing(tmp_path, kind, shape):
    first = 3 if kind == "bool" else 1  # that is not the fill value
    a = ARRAYS[kind].reshape(-1)[first : first + math.prod(shape)].reshape(shape)
    sizes = {"shards": (2,) * a.ndim, "chunks": (1,) * a.ndim}
    da.from_array(a, chunks=-1).to_sharded_zarr(tmp_path / "x", durability="none", **sizes)
    back = shardwrite.from_sharded_zarr(tmp_path / "x").compute()
    back = np.asarray(back, dtype=a.dtype.newbyteorder("<"))
    assert back.shape == shape
    assert back.tobytes() == a.astype(back.dtype).tobytes()
    report = shardwrite.verify(tmp_path / "x", deep=True, against=da.from_array(a, chunks=-1))
    assert (report.is_good, report.n_present) == (True, a.size)


@pytest.mark.compat
@pytest.mark.parametrize("kind", ["StringDType", "vlen-utf8", "vlen-bytes"])
def test_variable_length(tmp_path, kind):
    words = ["", "a", "shard", "größer", "x" * 300] * 12
    if kind == "StringDType":
        a, keywords = np.array(words, dtype=np.dtypes.StringDType()).reshape(6, 10), {}
    else:
        items = words if kind == "vlen-utf8" else [w.encode() for w in words]
        a, keywords = np.array(items, dtype=object).reshape(6, 10), {"serializer": kind}
    da.from_array(a, chunks=4).to_sharded_zarr(tmp_path / "x", **GOOD, **keywords)
    assert zarr.open_array(tmp_path / "x", mode="r")[...].tolist() == a.tolist()
    assert shardwrite.from_sharded_zarr(tmp_path / "x").compute().tolist() == a.tolist()


def test_what_is_not_text_is_refused_in_the_task(tmp_path):
    a = np.array([1, 2, 3, 4], dtype=object)
    with pytest.raises(shardwrite.SourceError, match="cannot be encoded") as caught:
        da.from_array(a, chunks=2).to_sharded_zarr(
            tmp_path / "x", shards=4, chunks=2, serializer="vlen-bytes"
        )
    assert caught.value.region == ((0, 4),)


def bits(value, dtype="f4"):
    return np.array(value, dtype=dtype).tobytes()


FILLS = {
    "zero": np.float32(0),
    "minus zero": np.float32(-0.0),
    "nan": np.float32("nan"),
    "nan with payload": np.array(0x7FC00123, "u4").view("f4")[()],
    "negative nan": np.array(0xFFC00000, "u4").view("f4")[()],
    "inf": np.float32("inf"),
    "minus inf": np.float32("-inf"),
    "a number": np.float32(0.1),
}


@pytest.mark.parametrize("kind", FILLS)
def test_emptiness_is_decided_on_bits(tmp_path, kind):
    fill = FILLS[kind]
    patterns = list(FILLS.values())
    a = np.empty((len(patterns) * 4, 4), "f4")
    for n, pattern in enumerate(patterns):
        a[n * 4 : n * 4 + 4] = pattern
    da.from_array(a, chunks=(8, 4)).to_sharded_zarr(
        tmp_path / "x", shards=(8, 4), chunks=4, fill_value=fill, durability="none"
    )
    array = shardwrite.open_sharded(tmp_path / "x")
    assert bits(array.metadata.fill_value) == bits(fill), "the metadata keep the fill value's bits"
    assert array[:, :].tobytes() == a.tobytes(), "every bit comes back"
    report = shardwrite.verify(tmp_path / "x", deep=True)
    assert report.n_inner_chunks - report.n_stored_chunks == 1, (
        "one chunk, the fill value's own, is not stored"
    )
    read = zarr.open_array(tmp_path / "x", mode="r")[...]
    np.testing.assert_array_equal(read, a)
    assert (np.signbit(read) == np.signbit(a))[~np.isnan(a)].all()


STRUCT = np.dtype([("a", "<i4"), ("b", "<f8")])
OTHER_FILLS = {
    "bool": (True, "?"),
    "largest integer": (2**64 - 1, "u8"),
    "float16 nan with payload": (np.array(0x7E01, "u2").view("f2")[()], "f2"),
    "float64 nan with payload": (np.array(0x7FF8000000000123, "u8").view("f8")[()], "f8"),
    "float64 signalling nan": (np.array(0x7FF0000000000001, "u8").view("f8")[()], "f8"),
    "big-endian minus zero": (-0.0, ">f8"),
    "complex of minus zeros": (complex(-0.0, -0.0), "c16"),
    "no time": (np.datetime64("NaT", "s"), "M8[s]"),
    "bytes": (b"ab", "S3"),
    "text": ("äb", "U3"),
    "structured": (np.array((7, -0.0), STRUCT)[()], STRUCT),
    "none": (None, "f8"),
}


@pytest.mark.parametrize("kind", OTHER_FILLS)
def test_only_the_fill_value_to_the_bit_is_empty(tmp_path, kind):
    """Two shards, of the fill value and of the same with one bit changed in one element."""
    fill, dtype = OTHER_FILLS[kind]
    a = np.zeros((16, 4), dtype)
    if fill is not None:
        a[...] = fill
    wanted = a.tobytes()[: a.itemsize]
    changed = bytearray(a.tobytes())
    changed[-a.itemsize if a.dtype.kind in "bSU" else -1] ^= 1
    a = np.frombuffer(bytes(changed), dtype).reshape(16, 4)
    keywords = {"shards": (8, 4), "chunks": 4, "durability": "none"}
    result = da.from_array(a, chunks=5).to_sharded_zarr(tmp_path / "x", fill_value=fill, **keywords)
    assert (result.n_shards, result.n_empty_shards) == (1, 1)
    array = shardwrite.open_sharded(tmp_path / "x")
    little = a.dtype.newbyteorder("<")
    assert (
        np.asarray(array.metadata.fill_value, little).tobytes()
        == np.frombuffer(wanted, dtype).astype(little).tobytes()
    )
    assert array[:, :].tobytes() == a.astype(little).tobytes()


def test_complex_fill_with_payload(tmp_path):
    fill = np.array([0x7FC00123, 0x80000000], "u4").view("c8")[0]
    a = np.full((8, 8), fill)
    result = da.from_array(a, chunks=8).to_sharded_zarr(tmp_path / "x", fill_value=fill, **GOOD)
    assert (result.n_shards, result.n_empty_shards) == (0, 1)
    assert shardwrite.open_sharded(tmp_path / "x")[:, :].tobytes() == a.tobytes()


def test_no_fill_value_is_the_dtypes_own(tmp_path):
    da.zeros((8, 8), chunks=4, dtype="i4").to_sharded_zarr(tmp_path / "x", **GOOD)
    assert parse_metadata((tmp_path / "x" / "zarr.json").read_text()).fill_value == 0


@pytest.mark.parametrize("memory_limit", [None, "20kB"])
def test_empty_chunks_and_shards(tmp_path, memory_limit):
    a = np.zeros((20, 20), "u2")
    a[3, 3] = a[17, 18] = 1
    x = da.from_array(a, chunks=7)
    result = x.to_sharded_zarr(tmp_path / "x", memory_limit=memory_limit, **GOOD)
    assert (result.n_shards, result.n_empty_shards) == (2, 7)
    assert (result.n_chunks, result.n_empty_chunks) == (25, 23)
    assert sorted(
        str(p.relative_to(tmp_path / "x")) for p in (tmp_path / "x" / "c").rglob("*") if p.is_file()
    ) == [
        "c/0/0",
        "c/2/2",
    ]
    full = x.to_sharded_zarr(
        tmp_path / "y", memory_limit=memory_limit, write_empty_chunks=True, **GOOD
    )
    assert (full.n_shards, full.n_empty_shards, full.n_empty_chunks) == (9, 0, 0)
    report = shardwrite.verify(tmp_path / "y", deep=True)
    assert report.n_stored_chunks == 25, (
        "in-bounds chunks are stored, those beyond the array are not"
    )
    for path in ("x", "y"):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / path, mode="r")[...], a)


@pytest.mark.compat
@pytest.mark.parametrize("dtype", [STRUCT, "V5"], ids=str)
def test_what_zarr_python_cannot_read_is_told(tmp_path, dtype):
    x = da.zeros(8, dtype=dtype, chunks=4)
    with pytest.warns(UserWarning, match=r"zarr-python before 3\.4 cannot read"):
        shardwrite.plan(x, shards=4, chunks=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", "The data type", FutureWarning)
        shardwrite.plan(x, shards=None, chunks=2)


def test_sizes_left_to_the_planner(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = da.zeros((300, 400, 500), chunks=100, dtype="u2")
        plan = shardwrite.plan(x)
    assert all(
        s % c == 0
        for s, c in zip(plan.metadata.grid.shards, plan.metadata.grid.chunks, strict=True)
    )
    assert any("shards" in note for note in plan.notes)
    assert any("chunks" in note for note in plan.notes)
    big = shardwrite.plan(da.zeros((4096, 4096, 64), chunks=(512, 512, 64), dtype="u2"))
    assert 10e6 <= 2 * np.prod(big.metadata.grid.shards) <= 100e6
    given = shardwrite.plan(x, shards="16MB", chunks=50)
    assert 2 * np.prod(given.metadata.grid.shards) <= 16e6


FILTERS = {
    "delta": {"dtype": "<i4"},
    "fixedscaleoffset": {"dtype": "<i4", "scale": 1, "offset": 3},
    "delta, twice": {"dtype": "<i4"},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["C", "F"])
@pytest.mark.parametrize("order", [None, [1, 0, 2], [2, 1, 0]])
@pytest.mark.parametrize("name", FILTERS)
def test_filters_take_elements_in_the_order_of_the_chunk(tmp_path, name, order, layout):
    """Not in that of the memory, which is another one in a transposed or a Fortran array."""
    delta = {"name": f"numcodecs.{name.partition(',')[0]}", "configuration": FILTERS[name]}
    filters = [] if order is None else [{"name": "transpose", "configuration": {"order": order}}]
    filters += [delta] * (1 + ("twice" in name))
    a = np.arange(5 * 6 * 7, dtype="<i4").reshape(5, 6, 7)
    x = da.from_array(np.asarray(a, order=layout), chunks=4)
    x.to_sharded_zarr(tmp_path / "x", shards=4, chunks=2, filters=filters, compressors=None)
    for got in (zarr.open_array(tmp_path / "x", mode="r"), shardwrite.open_sharded(tmp_path / "x")):
        np.testing.assert_array_equal(got[...], a)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["delta", "fixedscaleoffset"])
def test_a_filter_and_a_serializer_of_two_orders_are_refused(tmp_path, name):
    """No program would give the values back."""
    filters = [{"name": f"numcodecs.{name}", "configuration": FILTERS[name]}]
    how = {"shards": 4, "chunks": 2, "filters": filters, "compressors": None}
    big = {"name": "bytes", "configuration": {"endian": "big"}}
    a = np.arange(16, dtype="<i4").reshape(4, 4)
    with pytest.raises(shardwrite.SpecError, match="order of bytes"):
        shardwrite.to_sharded_zarr(a, tmp_path / "x", serializer=big, **how)
    assert not (tmp_path / "x").exists()
    shardwrite.to_sharded_zarr(a, tmp_path / "x", **how)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x", mode="r")[...], a)


@pytest.mark.filterwarnings("ignore")
def test_filters_of_zarr_2_in_fortran_order_stay_right_in_other_chunks(tmp_path):
    a = np.arange(5 * 6, dtype="<i4").reshape(5, 6)
    source = zarr.create_array(
        tmp_path / "a", shape=a.shape, chunks=(3, 4), dtype=a.dtype, zarr_format=2, order="F",
        filters=[numcodecs.Delta("<i4")], compressors=None,
    )  # fmt: skip
    source[...] = a
    shardwrite.reshard(tmp_path / "a", tmp_path / "b", 2, chunks=(2, 2))
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b", mode="r")[...], a)
    assert shardwrite.verify(tmp_path / "b", against=tmp_path / "a").is_good


@pytest.mark.parametrize("dtype", [np.longlong, np.ulonglong, np.long, np.intc])
def test_integers_of_each_name(tmp_path, dtype):
    """numpy has two types of one size, and libraries such as tifffile give either."""
    a = np.arange(24, dtype=dtype).reshape(4, 6)
    shardwrite.to_sharded_zarr(a, tmp_path / "x", shards=4, chunks=2)
    shardwrite.write_region(a[:2], tmp_path / "x", slice(2, 4))
    got = zarr.open_array(tmp_path / "x", mode="r")
    assert (got.dtype.kind, got.dtype.itemsize) == (a.dtype.kind, a.itemsize)
    np.testing.assert_array_equal(got[...], np.concatenate([a[:2], a[:2]]))


@pytest.mark.parametrize("dtype", [">i4", "S3"])
def test_a_single_value_keeps_its_type(tmp_path, dtype):
    """A scalar of numpy loses the order of its bytes, and the length of its text."""
    source = zarr.create_array(tmp_path / "a", shape=(), dtype=dtype, zarr_format=2)
    source[...] = 7 if dtype == ">i4" else b"a"
    opened = open_source(tmp_path / "a")
    assert opened[()].dtype == np.dtype(dtype)
    shardwrite.to_sharded_zarr(opened, tmp_path / "b")
    assert shardwrite.open_sharded(tmp_path / "b")[()] == source[()]
    assert shardwrite.verify(tmp_path / "b", against=opened).is_good
