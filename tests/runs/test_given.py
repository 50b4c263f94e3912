"""What may be given as an array, by every operation that takes one."""

from __future__ import annotations

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
import tensorstore
import zarr

import shardwrite
from shardwrite import SpecError
from shardwrite.runs.source_array import as_source_array
from shardwrite.sources import open_source

VALUES = np.arange(20 * 30, dtype="i4").reshape(20, 30)
SIZES = {"shards": (10, 12), "chunks": (5, 4)}


class Duck:
    """Has values, and is no array of numpy."""

    def __init__(self, values):
        self.values = values
        self.shape = values.shape

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype=dtype)


class Sliced(Duck):
    """Can be sliced, and counts the elements that are read."""

    n_read = 0

    @property
    def dtype(self):
        return self.values.dtype

    def __getitem__(self, key):
        found = self.values[key]
        self.n_read += found.size
        return found

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("it is read by slices")


class Blocks:
    """A collection of dask that tells its chunks and is no dask array."""

    def __init__(self, x):
        self.x, self.name, self.chunks = x, x.name, x.chunks
        self.shape, self.dtype = x.shape, x.dtype

    def __dask_graph__(self):
        return self.x.dask

    def __dask_keys__(self):
        return self.x.__dask_keys__()


class Whole(Blocks):
    """A collection of dask that tells its shape and its dtype only."""

    def __init__(self, x):
        super().__init__(x)
        del self.name, self.chunks

    def __dask_postcompute__(self):
        return self.x.__dask_postcompute__()


def in_hdf5(values, root):
    return h5py.File(root / "x.h5", "w").create_dataset("x", data=values, chunks=(4, 30))


def in_tensorstore(values, root):
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(root / "ts.zarr")}}
    return open_written(
        tensorstore.open(spec, create=True, dtype="int32", shape=values.shape).result(), values
    )


def open_written(array, values):
    array[...] = values
    return array


def in_zarr(values, root, **more):
    made = zarr.create_array(
        root / "source.zarr", shape=values.shape, chunks=(5, 5), dtype=values.dtype, **more
    )
    return open_written(made, values)


def in_file(values, root):
    np.save(root / "x.npy", values)
    return open_source(str(root / "x.npy"))


def mapped(values, root):
    np.save(root / "mapped.npy", values)
    return np.load(root / "mapped.npy", mmap_mode="r")


def ours(values, root):
    shardwrite.to_sharded_zarr(values, root / "ours.zarr", **SIZES)
    return shardwrite.open_sharded(root / "ours.zarr")


KINDS = {
    "dask": lambda v, root: da.from_array(v, chunks=(7, 30)),
    "numpy": lambda v, root: v,
    "fortran": lambda v, root: np.asfortranarray(v),
    "big-endian": lambda v, root: v.astype(">i4"),
    "matrix": lambda v, root: np.asmatrix(v),
    "memmap": mapped,
    "duck": lambda v, root: Duck(v),
    "sliced": lambda v, root: Sliced(v),
    "blocks": lambda v, root: Blocks(da.from_array(v, chunks=(7, 30)) + 0),
    "whole": lambda v, root: Whole(da.from_array(v, chunks=(7, 30)) + 0),
    "hdf5": in_hdf5,
    "tensorstore": in_tensorstore,
    "zarr": in_zarr,
    "zarr in memory": lambda v, root: zarr.array(v, chunks=(5, 5)),
    "zarr v2": lambda v, root: in_zarr(v, root, zarr_format=2),
    "zarr with shards": lambda v, root: in_zarr(v, root, shards=(10, 10)),
    "a source": in_file,
    "ours": ours,
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_written(kind, tmp_path):
    x = KINDS[kind](VALUES, tmp_path)
    shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", **SIZES)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES)


@pytest.mark.parametrize("kind", ["numpy", "duck", "blocks", "zarr in memory"])
def test_every_operation_takes_it(kind, tmp_path):
    x, path = KINDS[kind](VALUES, tmp_path), tmp_path / "x.zarr"
    assert shardwrite.plan(x, **SIZES).n_shards == 6
    shardwrite.to_sharded_zarr(x, path, **SIZES)
    assert shardwrite.verify(path, against=x).is_good
    (path / "c" / "1" / "1").unlink()
    assert shardwrite.repair(path, x).is_done
    shardwrite.store([x, VALUES], [tmp_path / "all"] * 2, names=["one", "two"], **SIZES)
    shardwrite.create(tmp_path / "y.zarr", (40, 30), VALUES.dtype, **SIZES)
    shardwrite.write_region(x, tmp_path / "y.zarr", np.s_[20:])
    assert shardwrite.plan_region(x, tmp_path / "y.zarr", np.s_[:20]).n_shards == 6
    plan = shardwrite.plan(x, **SIZES)
    shardwrite.prepare(x, tmp_path / "z.zarr", plan)
    for part in range(2):
        shardwrite.write_part(x, tmp_path / "z.zarr", part, 2)
    shardwrite.finalize(tmp_path / "z.zarr")
    for made in ("all/one", "y.zarr", "z.zarr"):
        np.testing.assert_array_equal(zarr.open_array(tmp_path / made)[-20:], VALUES)


def test_what_can_be_sliced_is_read_when_it_is_needed():
    x = Sliced(VALUES)
    assert shardwrite.plan(x, **SIZES).n_shards == 6
    assert x.n_read == 0
    assert as_source_array(x).array[:2].compute().tolist() == VALUES[:2].tolist()
    assert x.n_read <= VALUES.size


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (3, 0, 2), (1,)])
@pytest.mark.parametrize("dtype", ["f4", "U3", "M8[ms]", "?", np.dtype([("a", "i2"), ("b", "f4")])])
def test_odd_shapes_and_dtypes(shape, dtype, tmp_path):
    values = np.zeros(shape, dtype)
    shardwrite.to_sharded_zarr(values, tmp_path / "x.zarr", shards=2, chunks=1)
    found = shardwrite.from_sharded_zarr(tmp_path / "x.zarr").compute()
    assert found.shape == shape
    assert found.dtype == values.dtype


@pytest.mark.parametrize(
    ("x", "more"),
    [
        (np.float32(3), {}),
        (np.array(["a", "bc"], dtype=object), {"serializer": "vlen-utf8"}),
        (np.array(["a", "bc"], dtype="T"), {}),
    ],
    ids=["scalar", "objects", "strings"],
)
def test_scalars_and_texts(x, more, tmp_path):
    shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", shards=2, chunks=1, **more)
    found = shardwrite.from_sharded_zarr(tmp_path / "x.zarr").compute()
    assert found.tolist() == x.tolist()


def test_the_same_values_are_the_same_source(tmp_path):
    """So an interrupted write of a numpy array is continued, and a finished one is not repeated."""
    path = tmp_path / "x.zarr"
    shardwrite.to_sharded_zarr(VALUES, path, **SIZES)
    assert shardwrite.to_sharded_zarr(VALUES.copy(), path, **SIZES).seconds == 0
    with pytest.raises(SpecError, match="an array exists there"):
        shardwrite.to_sharded_zarr(VALUES + 1, path, **SIZES)


def test_what_a_zarr_array_knows_is_kept_unless_something_else_is_said(tmp_path):
    known = {"fill_value": 7, "dimension_names": ("y", "x"), "attributes": {"units": "K"}}
    x = in_zarr(VALUES, tmp_path, **known)
    shardwrite.to_sharded_zarr(x, tmp_path / "kept.zarr", **SIZES)
    shardwrite.store([x], [tmp_path / "stored.zarr"], **SIZES)
    shardwrite.prepare(x, tmp_path / "parts.zarr", shardwrite.plan(x, **SIZES))
    shardwrite.write_part(x, tmp_path / "parts.zarr", 0, 1)
    shardwrite.finalize(tmp_path / "parts.zarr")
    for name in ("kept", "stored", "parts"):
        made = zarr.open_array(tmp_path / f"{name}.zarr")
        assert (made.fill_value, made.metadata.dimension_names) == (7, ("y", "x"))
        assert dict(made.attrs) == {"units": "K"}
    said = {"fill_value": 0, "dimension_names": ("a", None), "attributes": {}}
    shardwrite.to_sharded_zarr(x, tmp_path / "said.zarr", **said, **SIZES)
    made = zarr.open_array(tmp_path / "said.zarr")
    assert (made.fill_value, made.metadata.dimension_names) == (0, ("a", None))
    assert dict(made.attrs) == {}


class Unsized:
    def __array__(self, dtype=None, copy=None):
        return VALUES


class Lying(Duck):
    def __init__(self, values):
        super().__init__(values)
        self.shape = (3, 3)


REFUSED = {
    "a list": (lambda: [[1, 2]], "not an array"),
    "a number": (lambda: 3, "not an array"),
    "nothing": (lambda: None, "not an array"),
    "a text": (lambda: "x.npy", "not an array"),
    "no shape": (Unsized, "not an array"),
    "another shape": (lambda: Lying(VALUES), r"shape is \(3, 3\)"),
    "masked": (lambda: np.ma.masked_equal(VALUES, 3), "masked values"),
    "masked, of dask": (lambda: da.ma.masked_equal(da.from_array(VALUES), 3), "masked values"),
    "a mapping": (lambda: {"a": VALUES}, r"one of its members, such as .*\['a'\]"),
    "a group": (lambda: zarr.group({}), "give one of its arrays"),
    "without a shape": (lambda: dask.delayed(np.ones)(3), "a collection of dask without a shape"),
    "unknown chunks": (lambda: da.arange(9, chunks=3)[da.arange(9, chunks=3) > 3], "unknown chunk"),
}


def test_what_is_no_array_is_refused_before_anything_is_written(tmp_path):
    there = tmp_path / "y.zarr"
    shardwrite.to_sharded_zarr(VALUES, there, **SIZES)
    for what, (make, why) in REFUSED.items():
        x = make()
        calls = [
            ("x", lambda x=x: shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr")),
            ("x", lambda x=x: shardwrite.store([x], [tmp_path / "x.zarr"])),
            ("x", lambda x=x: shardwrite.plan(x)),
        ]
        if not isinstance(x, int | str):  # a scalar is written to the whole region
            calls.append(("x", lambda x=x: shardwrite.write_region(x, there, ...)))
        if x is not None and not isinstance(x, str):  # a text is the path of a Zarr array
            calls.append(("against", lambda x=x: shardwrite.verify(there, against=x)))
        if x is not None:
            calls.append(("x", lambda x=x: shardwrite.repair(there, x)))
            calls.append(("x", lambda x=x: shardwrite.write_part(x, there, 0, 1)))
        for field, call in calls:
            with pytest.raises(SpecError, match=why) as caught:
                call()
            assert caught.value.fields["field"].partition(".")[0] == field, what
    assert [found.name for found in tmp_path.iterdir()] == ["y.zarr"]


@pytest.mark.long
def test_a_table_of_dask_says_what_to_do(tmp_path):
    pd, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    table = pd.DataFrame({"a": np.arange(6.0), "b": np.ones(6)})
    shardwrite.to_sharded_zarr(table, tmp_path / "pandas.zarr", shards=(4, 2), chunks=2)
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "pandas.zarr"), table)
    in_parts = dd.from_pandas(table, npartitions=2)
    with pytest.raises(SpecError, match=r"give x\.to_dask_array\(lengths=True\)"):
        shardwrite.plan(in_parts)
    assert shardwrite.plan(in_parts.to_dask_array(lengths=True)).metadata.grid.shape == (6, 2)


# ---- xarray


@pytest.fixture
def xr():
    return pytest.importorskip("xarray")


ATTRS = {"units": "K", "valid_range": np.array([0, 5], dtype="i2"), "n": np.int64(3), "bad": np.nan}
IN_JSON = {"units": "K", "valid_range": [0, 5], "n": 3, "bad": "NaN"}


@pytest.mark.parametrize("chunks", [None, {"y": 7}], ids=["in memory", "of dask"])
def test_dimensions_and_attributes_of_xarray_are_kept(xr, chunks, tmp_path):
    x = xr.DataArray(VALUES, dims=("y", "x"), coords={"y": np.arange(20)}, attrs=ATTRS, name="t")
    x = x if chunks is None else x.chunk(chunks)
    shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", **SIZES)
    made = zarr.open_array(tmp_path / "x.zarr")
    np.testing.assert_array_equal(made[...], VALUES)
    assert made.metadata.dimension_names == ("y", "x")
    assert dict(made.attrs) == IN_JSON
    assert shardwrite.verify(tmp_path / "x.zarr", against=x).is_good
    shardwrite.to_sharded_zarr(x.variable, tmp_path / "v.zarr", attributes={"a": 1}, **SIZES)
    made = zarr.open_array(tmp_path / "v.zarr")
    assert (made.metadata.dimension_names, dict(made.attrs)) == (("y", "x"), {"a": 1})


def test_an_attribute_that_json_cannot_hold_is_told(xr, tmp_path):
    x = xr.DataArray(VALUES, attrs={"when": object(), "units": "K"})
    with pytest.warns(UserWarning, match="'when' is left out"):
        shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", **SIZES)
    assert dict(zarr.open_array(tmp_path / "x.zarr").attrs) == {"units": "K"}


def test_axes_in_another_order_are_refused(xr, tmp_path):
    x = xr.DataArray(VALUES[:, :20], dims=("y", "x"))
    shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", shards=10, chunks=5)
    with pytest.raises(SpecError, match=r"transpose it: x\.transpose\('y', 'x'\)"):
        shardwrite.write_region(x.T, tmp_path / "x.zarr", ...)
    shardwrite.write_region(x.T.transpose("y", "x") + 1, tmp_path / "x.zarr", ...)
    shardwrite.write_region(x.rename(y="a", x="b")[:5], tmp_path / "x.zarr", np.s_[:5])
    made = zarr.open_array(tmp_path / "x.zarr")
    np.testing.assert_array_equal(made[:5], VALUES[:5, :20])
    np.testing.assert_array_equal(made[5:], VALUES[5:, :20] + 1)


def test_a_variable_that_is_not_loaded_is_not_loaded(xr, tmp_path):
    written = xr.Dataset({"t": (("y", "x"), VALUES)})
    written.to_zarr(tmp_path / "data.zarr", zarr_format=3, consolidated=False)
    x = xr.open_zarr(tmp_path / "data.zarr", chunks=None, consolidated=False)["t"]
    shardwrite.to_sharded_zarr(x, tmp_path / "x.zarr", **SIZES)
    assert not x._in_memory
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "x.zarr")[...], VALUES)


def test_of_a_dataset_one_variable_is_given(xr):
    with pytest.raises(SpecError, match="give one of its variables"):
        shardwrite.plan(xr.Dataset({"t": ("x", np.arange(3))}))
