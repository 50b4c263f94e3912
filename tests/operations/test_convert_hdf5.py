"""Datasets of HDF5 and NetCDF-4: which chunks pass as they are, and that all values stay."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiers import some

import shardwrite
from shardwrite import CorruptShardError, ShardwriteError, SpecError, StoreError, open_sharded
from shardwrite.cli import main
from shardwrite.hdf5.format import Filter, mapped
from shardwrite.hdf5.reading import Hdf5Store

sys.path.insert(0, str(Path(__file__).parent))
import seams
from test_convert import by_tensorstore, payloads, same

h5py = pytest.importorskip("h5py")
hdf5plugin = pytest.importorskip("hdf5plugin")

SHAPE, CHUNKS = (25, 40), (10, 10)
VALUES = np.arange(1000).reshape(SHAPE)
FEW = VALUES // 250  # which every filter makes smaller, so that none is left out

# How a dataset is made, the codecs that its chunks get, and the bytes after each chunk in the file.
PASSING = {
    "plain": ({}, ["bytes"], 0),
    "deflate": ({"compression": "gzip"}, ["bytes", "numcodecs.zlib"], 0),
    "shuffle": (
        {"compression": "gzip", "shuffle": True},
        ["bytes", "numcodecs.shuffle", "numcodecs.zlib"],
        0,
    ),
    "zstd": (dict(hdf5plugin.Zstd(clevel=3)), ["bytes", "zstd"], 0),
    "shuffle+zstd": (
        {"shuffle": True, **hdf5plugin.Zstd()},
        ["bytes", "numcodecs.shuffle", "zstd"],
        0,
    ),
    "blosc": (dict(hdf5plugin.Blosc(cname="lz4")), ["bytes", "blosc"], 0),
    "blosc+bits": (
        dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
        ["bytes", "blosc"],
        0,
    ),
    "bzip2": (dict(hdf5plugin.BZip2()), ["bytes", "numcodecs.bz2"], 0),
    "fletcher32": ({"fletcher32": True}, ["bytes"], 4),
    "deflate+fletcher32": (
        {"compression": "gzip", "fletcher32": True},
        ["bytes", "numcodecs.zlib"],
        4,
    ),
}
DECODED = {
    "contiguous": ({"chunks": None}, "contiguous"),
    "lzf": ({"compression": "lzf"}, "lzf"),
    "scale-offset": ({"scaleoffset": 0}, "scale-offset"),
    "bitshuffle": (dict(hdf5plugin.Bitshuffle()), "bitshuffle"),
}
DTYPES = ["bool", "i1", "u2", "<i4", ">i4", "f2", "<f4", ">f8", "c8", "S3"]


def make(path, name="x", values=VALUES, **how):
    with h5py.File(path, "a") as file:
        file.create_dataset(name, data=values, **{"chunks": CHUNKS, **how})
    return f"{path}::/{name}"


def in_file(path, name="x", n_cut=0) -> dict[tuple[int, ...], str]:
    """sha256 of the encoded bytes of each chunk, as the HDF5 library gives them."""
    with h5py.File(path) as file:
        dataset = file[name]
        found = {}
        for number in range(dataset.id.get_num_chunks()):
            info = dataset.id.get_chunk_info(number)
            _, data = dataset.id.read_direct_chunk(info.chunk_offset)
            at = tuple(a // c for a, c in zip(info.chunk_offset, dataset.chunks, strict=True))
            found[at] = hashlib.sha256(data[: len(data) - n_cut]).hexdigest()
        return found


def not_surely_filtered(dataset) -> set[tuple[int, ...]]:
    """Positions of chunks with a mask, and of those at the edge that have their decoded size."""
    if not dataset.id.get_create_plist().get_nfilters():
        return set()
    raw = int(np.prod(dataset.chunks)) * dataset.dtype.itemsize
    found = set()
    for number in range(dataset.id.get_num_chunks()):
        info = dataset.id.get_chunk_info(number)
        ends = np.array(info.chunk_offset) + dataset.chunks
        if info.filter_mask or (info.size == raw and (ends > dataset.shape).any()):
            found.add(tuple(a // c for a, c in zip(info.chunk_offset, dataset.chunks, strict=True)))
    return found


def codecs_of(path) -> list[str]:
    codecs = json.loads((Path(path) / "zarr.json").read_text())["codecs"]
    inner = codecs[0].get("configuration", {}).get("codecs", codecs)
    return [codec["name"] for codec in inner]


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("dtype", some(["<f4", ">i2"], ">i2"))
def test_what_passes(tmp_path, name, dtype):
    how, codecs, n_cut = PASSING[name]
    path = tmp_path / "a.h5"
    src = make(path, values=FEW.astype(dtype), **how)
    plan = shardwrite.plan_reshard(src, 2)
    assert (plan.n_chunks_copied, plan.n_chunks_encoded) == (12, 0)
    assert (plan.n_files_before, plan.n_files_after) == (1, 4)
    assert ("not every reader" in str(plan)) == any("numcodecs" in codec for codec in codecs)
    done = shardwrite.shard(src, tmp_path / "b", 2)
    assert (done.n_chunks_copied, done.n_chunks_encoded, done.n_shards) == (12, 0, 4)
    assert codecs_of(tmp_path / "b") == codecs
    assert payloads(tmp_path / "b") == in_file(path, n_cut=n_cut)
    array = zarr.open_array(tmp_path / "b", mode="r")
    same(array[...], FEW.astype(dtype))
    if not any("numcodecs" in codec for codec in codecs):
        same(by_tensorstore(tmp_path / "b"), FEW.astype(dtype))
    same(open_sharded(tmp_path / "b")[...], FEW.astype(dtype))
    assert shardwrite.verify(tmp_path / "b", deep=True, against=src).is_good


@pytest.mark.parametrize("name", DECODED)
def test_what_is_decoded(tmp_path, name):
    how, why = DECODED[name]
    src = make(tmp_path / "a.h5", values=VALUES.astype("i4"), **how)
    plan = shardwrite.plan_reshard(src, chunks=(10, 10), shards=2)
    assert plan.n_chunks_copied == 0
    assert why in str(plan)
    done = shardwrite.reshard(src, tmp_path / "b", 2, chunks=(10, 10))
    assert (done.n_chunks_copied, done.n_chunks_encoded) == (0, 12)
    assert why in done.arrays[0].why[0]
    assert codecs_of(tmp_path / "b") == ["bytes", "zstd", "crc32c"]
    same(zarr.open_array(tmp_path / "b", mode="r")[...], VALUES.astype("i4"))
    assert shardwrite.verify(tmp_path / "b", against=src).is_good


@pytest.mark.long
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None
)
@given(
    shape=st.lists(st.integers(0, 13), min_size=1, max_size=3),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from([*PASSING, "contiguous"]),
    is_part=st.booleans(),
    shards=st.sampled_from([1, 2, "auto", None]),
    check=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_dataset(shape, dtype, name, is_part, shards, check, seed):
    rng = np.random.default_rng(seed)
    chunks = tuple(int(rng.integers(1, 6)) for _ in shape)
    values = rng.integers(0, 2, shape).astype(dtype)
    how = {"chunks": chunks, **(PASSING | DECODED)[name][0]}
    with tempfile.TemporaryDirectory() as directory:
        path, out = Path(directory, "a.nc"), Path(directory, "b")
        with h5py.File(path, "w", userblock_size=512 if seed % 2 else 0) as file:
            unlimited = None if how["chunks"] is None else (None,) * len(shape)
            fill = None if dtype == "S3" else values.dtype.type(1)
            x = file.create_dataset(
                "x", shape, values.dtype, fillvalue=fill, maxshape=unlimited, **how
            )
            if not is_part:
                x[...] = values
            elif values.size:
                x[: shape[0] // 2] = values[: shape[0] // 2]
            wanted = x[...]
            odd = not_surely_filtered(x) if x.chunks else set()
        done = shardwrite.shard(f"{path}::x", out, shards, check=check, durability="none")
        same(open_sharded(out)[...], wanted)
        array = zarr.open_array(out, mode="r")
        same(array[...], wanted)
        assert array.dtype.newbyteorder("=") == wanted.dtype.newbyteorder("=")
        if how["chunks"] is not None:
            found, before = payloads(out), in_file(path, n_cut=PASSING[name][2])
            assert set(found) == set(before)
            assert done.n_chunks_encoded == len(odd)
            assert done.n_chunks_copied == len(before) - len(odd)
            assert [at for at in found if found[at] != before[at] and at not in odd] == []


def test_missing_chunks_and_chunks_with_a_mask(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        x = file.create_dataset(
            "x", SHAPE, "i4", chunks=CHUNKS, compression="gzip", shuffle=True, fillvalue=7
        )
        x[10:20, 10:20] = 3
        odd = np.arange(100, dtype="i4").reshape(10, 10)
        x.id.write_direct_chunk((0, 0), odd.tobytes(), filter_mask=3)
        edge = np.full((10, 10), 5, "i4")
        x.id.write_direct_chunk((20, 30), edge.tobytes(), filter_mask=3)
        wanted = x[...]
    plan = shardwrite.plan_reshard(f"{path}::x", 2)
    assert (plan.n_chunks_copied, plan.n_chunks_encoded) == (1, 2)
    assert "2 decoded and re-encoded, since filters" in str(plan)
    done = shardwrite.shard(f"{path}::x", tmp_path / "b", 2)
    assert (done.n_chunks_copied, done.n_chunks_encoded) == (1, 2)
    assert "filters" in str(done)
    found = payloads(tmp_path / "b")
    assert set(found) == {(0, 0), (1, 1), (2, 3)}
    assert found[1, 1] == in_file(path)[1, 1]
    array = zarr.open_array(tmp_path / "b", mode="r")
    assert array.fill_value == 7
    same(array[...], wanted)
    assert (open_sharded(tmp_path / "b")[:10, :10] == odd).all()
    given = f"{path}::x", tmp_path / "in parts"
    shardwrite.prepare_conversion(*given, 2)
    parts = [shardwrite.convert_part(*given, k, 2, 2) for k in range(2)]
    assert sum(part.n_chunks_copied for part in parts) == 3, "a part does not tell them apart"
    done = shardwrite.finalize_conversion(*given, 2)
    assert (done.n_chunks_copied, done.n_chunks_encoded) == (1, 2)
    assert payloads(given[1]) == found


def test_a_chunk_whose_checksum_is_wrong(tmp_path):
    path = tmp_path / "a.h5"
    src = make(path, values=VALUES.astype("i4"), fletcher32=True)
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info(3)
    data = bytearray(path.read_bytes())
    data[info.byte_offset + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match="fletcher32"):
        shardwrite.shard(src, tmp_path / "b", 2)
    assert not (tmp_path / "b/zarr.json").exists()


@pytest.mark.parametrize("chunks", [CHUNKS, None])
def test_a_file_that_changes_is_found_out(tmp_path, monkeypatch, chunks):
    path = tmp_path / "a.h5"
    src = make(path, values=VALUES.astype("i4"), chunks=chunks)
    seams.before(monkeypatch, "convert arrays", lambda *_: os.utime(path, ns=(0, 0)))
    with pytest.raises(StoreError, match="changed meanwhile"):
        shardwrite.shard(src, tmp_path / "b", 1)
    assert not (tmp_path / "b/zarr.json").exists()


def test_a_store_of_another_state_of_the_file(tmp_path):
    src = make(tmp_path / "a.h5", values=VALUES.astype("i4"))
    store = Hdf5Store(src.partition("::")[0])
    copied = pickle.loads(pickle.dumps(store.at("x")))
    assert copied.open("c/1/1").read(0, 4) == store.open("x/c/1/1").read(0, 4)
    os.utime(store.local_path, ns=(0, 0))
    with pytest.raises(StoreError, match="changed meanwhile"):
        copied.open("c/1/1").read(0, 4)
    assert (
        pickle.loads(pickle.dumps(Hdf5Store(store.local_path).at("x"))).open("c/1/1").nbytes == 400
    )
    with pytest.raises(SpecError, match="only read"):
        store.transaction("none", "a.b")


def test_processes(tmp_path):
    import dask

    path = tmp_path / "a.h5"
    src = make(path, values=VALUES.astype("i4"), compression="gzip")
    with dask.config.set(scheduler="processes", num_workers=2):
        shardwrite.shard(src, tmp_path / "b", 1)
    assert payloads(tmp_path / "b") == in_file(path)


def make_netcdf(path):
    """As the NetCDF-4 library does it: scales, a dimension without values, and attributes."""
    with h5py.File(path, "w") as file:
        file.attrs["title"] = "a file"
        file.attrs["_NCProperties"] = "version=2"
        for name, n in (("lat", 4), ("lon", 6)):
            scale = file.create_dataset(name, data=np.arange(n) * 0.5)
            scale.make_scale(name)
        nothing = file.create_dataset("bnds", shape=(2,), dtype=">f4")
        nothing.make_scale("This is a netCDF dimension but not a netCDF variable.         2")
        t = file.create_dataset(
            "g/t",
            data=np.arange(48, dtype="i2").reshape(4, 6, 2),
            chunks=(2, 3, 2),
            fillvalue=-99,
            compression="gzip",
            shuffle=True,
        )
        for axis, name in enumerate(("lat", "lon", "bnds")):
            t.dims[axis].attach_scale(file[name])
        t.attrs["_FillValue"] = np.array([-99], "i2")
        t.attrs["scale_factor"] = np.array([0.5])
        t.attrs["units"] = "K"
        file["again"] = file["g/t"]
        file["h"] = file["g"]
        file["soft"] = h5py.SoftLink("/g/t")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
        file["none"] = h5py.Empty("f4")


def test_a_netcdf_file(tmp_path):
    path = tmp_path / "a.nc"
    make_netcdf(path)
    done = shardwrite.shard(path, tmp_path / "b", 2)
    told = dict(done.left_out)
    assert told["bnds"] == "a dimension without values"
    assert told["soft"] == told["elsewhere"] == "a link"
    assert told["none"] == "a dataset without a shape"
    assert told["h"] == "another name of the group 'g'"
    name = "g/t"
    assert sorted(a.name for a in done.arrays) == ["again", "g/t", "lat", "lon"]
    root = zarr.open_group(tmp_path / "b", mode="r")
    assert dict(root.attrs) == {"title": "a file"}
    t = root[name]
    assert t.metadata.dimension_names == ("lat", "lon", "bnds")
    assert root["lat"].metadata.dimension_names == ("lat",)
    assert dict(t.attrs) == {"_FillValue": -99, "scale_factor": 0.5, "units": "K"}
    assert t.fill_value == -99
    assert t[1, 2, 0] == 16
    assert payloads(tmp_path / "b" / name) == in_file(path, "g/t")


def test_xarray_reads_what_it_read_before(tmp_path):
    xarray = pytest.importorskip("xarray")
    make_netcdf(tmp_path / "a.nc")
    shardwrite.shard(tmp_path / "a.nc", tmp_path / "b", 2)
    t = xarray.open_zarr(tmp_path / "b", group="g", consolidated=False)["t"]
    assert t.dims == ("lat", "lon", "bnds")
    np.testing.assert_array_equal(t.values, np.arange(48).reshape(4, 6, 2) * 0.5)
    top = xarray.open_zarr(tmp_path / "b")
    np.testing.assert_array_equal(top["lat"].values, np.arange(4) * 0.5)


def test_names_in_the_file(tmp_path):
    path = tmp_path / "a.nc"
    make_netcdf(path)
    with pytest.raises(SpecError, match="no such array or group") as caught:
        shardwrite.shard(f"{path}::nowhere", tmp_path / "b")
    assert "lat" in str(caught.value)
    with pytest.raises(SpecError, match="it is a link"):
        shardwrite.shard(f"{path}::soft", tmp_path / "b")
    with pytest.raises(SpecError):
        shardwrite.shard(f"{path}::../lat", tmp_path / "b")
    assert [a.name for a in shardwrite.shard(f"{path}::g", tmp_path / "g", 2).arrays] == ["t"]
    assert shardwrite.shard(f"file://{path}::lat", tmp_path / "c", 1).n_shards == 1


@pytest.mark.parametrize("mode", ["w-", "w"])
def test_the_file_is_no_target(tmp_path, mode):
    (tmp_path / "d").mkdir()
    path = tmp_path / "d/a.h5"
    src = make(path, values=VALUES)
    before = path.read_bytes()
    for dst in (path, tmp_path / "d"):
        with pytest.raises(SpecError):
            shardwrite.shard(src, dst, 2, mode=mode)
    with pytest.raises(SpecError, match="in its place"):
        shardwrite.unshard(src)
    assert path.read_bytes() == before


def test_other_files_are_refused(tmp_path):
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY")
    (tmp_path / "a.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"broken")
    (tmp_path / "a.txt").write_text("a")
    for name in ("a.npy", "a.h5", "a.txt"):
        with pytest.raises(SpecError) as caught:
            shardwrite.shard(tmp_path / name, tmp_path / "b")
        assert caught.value.field == "src"


def test_elements_without_a_fixed_size_are_named(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["text"] = ["a", "bc"]
        file["x"] = VALUES
    with pytest.raises(SpecError, match="no fixed size") as caught:
        shardwrite.shard(tmp_path / "a.h5", tmp_path / "b")
    assert "exclude='text'" in caught.value.__notes__[0]
    assert not (tmp_path / "b").exists()
    done = shardwrite.shard(tmp_path / "a.h5", tmp_path / "b", exclude="text")
    assert [a.name for a in done.arrays] == ["x"]


def test_structures(tmp_path):
    for name, is_aligned in (("packed", False), ("gaps", True)):
        values = np.zeros(6, np.dtype([("a", "<i2"), ("b", "<f8")], align=is_aligned))
        values["a"], values["b"] = range(6), np.arange(6) / 2
        src = make(tmp_path / f"{name}.h5", values=values, chunks=(2,))
        with pytest.warns(UserWarning, match="zarr-python before"):
            done = shardwrite.shard(src, tmp_path / name, 2)
        assert done.n_chunks_copied == (0 if is_aligned else 3)
        found = open_sharded(tmp_path / name)[...]
        assert (found["a"] == values["a"]).all()
        assert (found["b"] == values["b"]).all()


def test_the_command(tmp_path):
    src = make(tmp_path / "a.h5", values=VALUES.astype("i4"), compression="gzip")
    ended = CliRunner().invoke(
        main, ["shard", src, str(tmp_path / "b"), "--shards", "2", "--dry-run"]
    )
    assert ended.exit_code == 0, ended.output
    assert "12 copied, unchanged" in ended.output
    ended = CliRunner().invoke(main, ["shard", src, str(tmp_path / "b"), "--shards", "2", "--json"])
    assert ended.exit_code == 0, ended.output
    assert json.loads(ended.output)["n_chunks_copied"] == 12
    ended = CliRunner().invoke(main, ["verify", str(tmp_path / "b"), "--deep", "--against", src])
    assert ended.exit_code == 0, ended.output


@pytest.mark.parametrize(
    ("filters", "itemsize", "names", "is_checked"),
    [
        ([(1, (4,))], 4, ["numcodecs.zlib"], False),
        ([(2, (1,)), (1, (4,))], 1, ["numcodecs.zlib"], False),
        (
            [(3, ()), (2, (4,)), (1, (4,))],
            4,
            ["numcodecs.fletcher32", "numcodecs.shuffle", "numcodecs.zlib"],
            False,
        ),
        ([(3, ()), (2, (8,)), (1, (4,))], 8, None, False),
        ([(3, ()), (3, ())], 4, ["numcodecs.fletcher32"], True),
        ([(32001, (2, 2, 4, 400))], 4, ["blosc"], False),
        ([(32001, (2, 2, 4, 400, 5, 1, 3))], 4, None, False),
        ([(32001, (2, 2, 4, 400, 5, 9, 1))], 4, None, False),
        ([(99999, ())], 4, None, False),
        ([(1, (4,)), (4, (1, 2))], 4, None, False),
    ],
)
def test_filters_that_map(filters, itemsize, names, is_checked):
    found = mapped([Filter(*one) for one in filters], itemsize)
    if names is None:
        assert found.why_not
        assert not found.codecs
        return
    assert [codec["name"] for codec in found.codecs] == names
    assert found.is_checked == is_checked


def test_a_checksum_before_other_filters(tmp_path):
    """The NetCDF-4 library puts fletcher32 first."""
    path = tmp_path / "a.nc"
    with h5py.File(path, "w") as file:
        for name, dtype in (("x", h5py.h5t.NATIVE_INT32), ("y", h5py.h5t.NATIVE_DOUBLE)):
            how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            how.set_chunk(CHUNKS)
            how.set_fletcher32()
            how.set_shuffle()
            how.set_deflate(4)
            h5py.h5d.create(file.id, name.encode(), dtype, h5py.h5s.create_simple(SHAPE), how)
            file[name][...] = VALUES
    done = shardwrite.shard(path, tmp_path / "b", 2)
    assert {a.name: a.how for a in done.arrays} == {"x": "copied", "y": "re-encoded"}
    for name in ("x", "y"):
        same(zarr.open_array(tmp_path / "b" / name, mode="r")[...].astype(int), VALUES)
    assert payloads(tmp_path / "b/x") == in_file(path)


def test_a_damaged_file_is_named(tmp_path):
    """h5py gives RuntimeError, KeyError and others for damage, which went to the user as they were."""
    with h5py.File(tmp_path / "whole.h5", "w") as file:
        file.create_dataset("a", data=np.arange(4200).reshape(60, 70), chunks=(10, 7))
        file["b"] = np.arange(10)
    whole = (tmp_path / "whole.h5").read_bytes()
    rng, damaged, n_refused = np.random.default_rng(0), tmp_path / "damaged.h5", 0
    for _ in range(25):
        data = bytearray(whole)
        for place in rng.integers(0, 3000, 12):
            data[place] = rng.integers(256)
        damaged.write_bytes(data)
        for source in (damaged, f"{damaged}::/a"):
            try:
                shardwrite.plan_reshard(source, 2)
            except ShardwriteError as error:
                n_refused += f"src='{damaged}': it cannot be read as hdf5" in str(error)
    assert n_refused > 10
