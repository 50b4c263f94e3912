"""Files in buckets as sources: npy, raw, HDF5 and TIFF, of which only ranges are read."""

from __future__ import annotations

import errno
import io
import os
import pickle
import signal
import subprocess

import dask
import numpy as np
import obstore
import proxy
import pytest
import servers
import zarr
from click.testing import CliRunner
from forks import python

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.cli import main
from shardwrite.sources import as_dask, inside, open_source
from shardwrite.sources.common import FILES
from shardwrite.stores.bucket_url import open_bucket

h5py = pytest.importorskip("h5py")
tifffile = pytest.importorskip("tifffile")

VALUES = np.random.default_rng(0).integers(1, 2**31, (96, 200), dtype="i4").astype(">i4")
NATIVE = VALUES.astype("i4")
TEXT = VALUES.astype("U").astype(np.dtypes.StringDType())
CHUNKS = (16, 50)  # of which there are 24
# After a file, so that its values are not known from the first request, which reads the last bytes.
NOISE = np.random.default_rng(1).bytes(2**17)


def npy(values):
    file = io.BytesIO()
    np.save(file, values)
    return file.getvalue()


def hdf5(values=VALUES):
    """Datasets whose chunks are copied, which lie in one piece, and which only h5py can decode."""
    file = io.BytesIO()
    with h5py.File(file, "w", userblock_size=512) as made:
        more = {"compression": "gzip", "shuffle": True, "fletcher32": True}
        made.create_dataset("deep/chunks", data=values, chunks=CHUNKS, **more)
        made.create_dataset("piece", data=values)
        made.create_dataset("odd", data=values.astype("i4"), chunks=CHUNKS, scaleoffset=0)
        made["deep"].attrs["of"] = "cells"
    return file.getvalue()


def hdf5_turned():
    """A dataset whose chunks HDF5 lists at wrong positions, since its second axis is unlimited."""
    file = io.BytesIO()
    with h5py.File(file, "w", libver="v110") as made:
        made.create_dataset("x", data=VALUES, chunks=CHUNKS, maxshape=(96, None))
    return file.getvalue()


def hdf5_text():
    file = io.BytesIO()
    with h5py.File(file, "w") as made:
        made.create_dataset("x", data=TEXT, dtype=h5py.string_dtype())
    return file.getvalue()


def tiff(**how):
    file = io.BytesIO()
    tifffile.imwrite(file, np.stack([NATIVE, NATIVE + 1]), photometric="minisblack", **how)
    return file.getvalue()


KINDS = {
    "a.npy": (npy(VALUES), {}, VALUES),
    "f.npy": (npy(np.asfortranarray(VALUES)), {}, VALUES),
    "x.raw": (
        b"head" + VALUES.tobytes(),
        {"shape": (96, 200), "dtype": ">i4", "offset": 4},
        VALUES,
    ),
    "chunks.h5": (hdf5(), {"dataset": "deep/chunks"}, VALUES),
    "piece.nc": (hdf5(), {"dataset": "piece"}, VALUES),
    "odd": (hdf5(), {"dataset": "odd"}, VALUES),
    "turned.h5": (hdf5_turned(), {}, VALUES),
    "text.h5": (hdf5_text(), {}, TEXT),
    "plain.tif": (tiff(), {}, np.stack([NATIVE, NATIVE + 1])),
    "zlib.tif": (tiff(compression="zlib"), {}, np.stack([NATIVE, NATIVE + 1])),
}


@pytest.fixture
def folder(url):
    return url.removesuffix("/x.zarr")


def put(server, url, data):
    obstore.put(server.client(), servers.below_bucket(url), data)


def forget():
    """Have this process know no more of files than one that has just begun."""
    FILES._entries.clear()
    inside._readers._kept.clear()


@servers.on("moto", long=["seaweed", "azurite", "gcs"])
def test_each_kind(service, folder):
    for name, (data, options, wanted) in KINDS.items():
        put(service, f"{folder}/{name}", data)
        source = pickle.loads(pickle.dumps(open_source(f"{folder}/{name}", **options)))
        forget()
        assert (source.shape, source.dtype) == (wanted.shape, as_dask(source).dtype)
        np.testing.assert_array_equal(as_dask(source).compute(scheduler="threads"), wanted)
        part = (*[slice(0, 1)] * (wanted.ndim - 2), slice(5, 60), slice(40, 140, 3))
        np.testing.assert_array_equal(source[part], wanted[part])


def test_no_key_is_in_a_source(moto, folder):
    put(moto, f"{folder}/chunks.h5", hdf5())
    source = open_source(f"{folder}/chunks.h5", dataset="piece")
    source[:1]
    assert servers.SECRET not in f"{source!r}{source.identity}"
    assert servers.SECRET.encode() not in pickle.dumps(source)


# ---- requests


def n_of(faults, path):
    """Requests for a file."""
    return sum(path in asked for _, asked in faults.seen)


@pytest.mark.parametrize(
    ("name", "n_chunks"), [("a.npy", 12), ("chunks.h5", 24), ("piece.nc", 12), ("plain.tif", 2)]
)
def test_few_requests(moto, environment, folder, name, n_chunks):
    """One for each chunk or slab, and few for what stands around them."""
    data, options, wanted = KINDS[name]
    put(moto, f"{folder}/{name}", data + NOISE)
    forget()
    slabs = {"shardwrite.source.chunk-size": "6400"}
    with proxy.before(moto) as (server, faults), dask.config.set(slabs, scheduler="threads"):
        environment(server)
        x = as_dask(open_source(f"{folder}/{name}", **options))
        n_opening = n_of(faults, name)
        np.testing.assert_array_equal(x.compute(), wanted)
    assert n_opening <= 5
    assert n_chunks <= n_of(faults, name) <= n_chunks + 12
    assert all(method in ("GET", "HEAD") for method, _ in faults.seen)


# ---- conversions


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)


LAYOUT = ["--shards", "32", "--chunks", "8"]


def read_at(url, name=""):
    store = open_bucket(url, {}, is_read=True).as_zarr()
    return zarr.open_array(store, path=name, mode="r")[...]


@pytest.mark.long
def test_a_file_that_has_changed_is_another_source(moto, folder):
    at, to = f"{folder}/a.npy", f"{folder}/x.zarr"
    put(moto, at, npy(VALUES))
    done = run("write", at, to, *LAYOUT)
    assert done.exit_code == 0, done.output
    np.testing.assert_array_equal(read_at(to), VALUES)
    put(moto, at, npy(VALUES + 1))
    changed = run("write", at, to, *LAYOUT)
    assert changed.exit_code == 2
    assert "of another run" in changed.output


@pytest.mark.long
def test_chunks_are_copied_as_they_are(moto, folder):
    at, to = f"{folder}/scan.h5", f"{folder}/made"
    put(moto, at, hdf5())
    plan = shardwrite.plan_reshard(at, shards=2)
    assert [(one.name, one.n_chunks_copied) for one in plan.arrays] == [
        ("deep/chunks", 24),
        ("odd", 0),
        ("piece", 0),
    ]
    done = shardwrite.shard(at, to, shards=2, exclude=["odd", "piece"])
    assert (done.n_chunks_copied, done.n_chunks_encoded) == (24, 0)
    np.testing.assert_array_equal(read_at(to, "deep/chunks"), VALUES)
    assert shardwrite.verify(
        to, name="deep/chunks", deep=True, against=f"{at}::deep/chunks"
    ).is_good
    part = shardwrite.reshard(f"{at}::piece", f"{folder}/piece.zarr", 1)
    assert part.arrays[0].why == ("a contiguous layout, without chunks",)
    np.testing.assert_array_equal(read_at(f"{folder}/piece.zarr"), VALUES)


def test_places_of_a_conversion_that_are_refused(moto, folder):
    at = f"{folder}/scan.h5"
    put(moto, at, hdf5())
    for to in (folder, folder.rpartition("/")[0]):
        with pytest.raises(SpecError, match="which is the source"):
            shardwrite.shard(at, to, shards=2, mode="w")
    with pytest.raises(SpecError, match="cannot be consumed: it is no directory"):
        shardwrite.shard(at, f"{folder}/x.zarr", shards=2, consume=True)
    with pytest.raises(SpecError, match="in its place: it lies in a file, which is only read"):
        shardwrite.shard(at, shards=2)


PROGRAM = """
import sys
from shardwrite.cli import main
sys.argv[1:1] = ["write"]
main()
"""


@pytest.mark.long
@servers.on("moto", long=["seaweed"])
@pytest.mark.parametrize("name", ["a.npy", "chunks.h5"])
def test_killed_and_resumed(service, environment, folder, name):
    """The process is killed when the server has half of the shards."""
    data, options, wanted = KINDS[name]
    put(service, f"{folder}/{name}", data)
    victim = []

    def plan(method, path, number):
        if method == "PUT" and "/c/" in path:
            n = sum(m == "PUT" and "/c/" in p for m, p in faults.seen)
            if victim and n == 12:
                os.kill(victim.pop(), signal.SIGKILL)
        return

    def write():
        source = f"{folder}/{name}" + (f"::{options['dataset']}" if options else "")
        words = [source, f"{folder}/x.zarr", *LAYOUT, "--threads", "1", "--source-chunks", "32"]
        return subprocess.Popen([*python(), "-c", PROGRAM, *words], stdout=subprocess.PIPE)

    with proxy.before(service, plan) as (server, faults):
        environment(server)
        process = write()
        victim.append(process.pid)
        process.communicate(timeout=100)
        assert process.returncode == -signal.SIGKILL
        told, _ = write().communicate(timeout=100)
        assert b"from an earlier" in told
        np.testing.assert_array_equal(read_at(f"{folder}/x.zarr"), wanted)


# ---- files that change, and bad ones


@pytest.mark.parametrize("name", KINDS)
def test_a_file_that_is_replaced_while_it_is_read_is_an_error(moto, folder, name):
    data, options, wanted = KINDS[name]
    url = f"{folder}/{name}"
    put(moto, url, data + NOISE)
    source = open_source(url, **options)
    np.testing.assert_array_equal(source[..., :4, :4], wanted[..., :4, :4])
    put(moto, url, data + NOISE[::-1])
    for _ in range(2):
        with pytest.raises(StoreError, match="was replaced or removed while it was read") as caught:
            source[..., 40:, :]
        assert caught.value.errno == errno.ESTALE
        assert url in str(caught.value)
        forget()  # and so it is for a process that begins then


def test_bad_files_are_told_by_name(moto, folder):
    for name, data in {
        "short.npy": npy(VALUES)[:-1],
        "short.h5": hdf5()[:-1000],
        "none.h5": b"no HDF5 at all" * 99,
        "none.npy": b"\x93NUMPY\x09",
        "objects.npy": npy(np.array([None])),
        "x.zarr.zip": b"PK\x03\x04",
        "x.nii": b"0" * 400,
        "what.bin": b"0" * 400,
    }.items():
        put(moto, f"{folder}/{name}", data)
    for name, told in {
        "short.npy": "the file is too short",
        "short.h5::piece": "truncated file",
        "none.h5": "cannot be read as hdf5",
        "none.npy": "cannot be read as npy",
        "objects.npy": "Python objects",
        "x.zarr.zip": "a ZIP file is not read from a bucket.*copy it to a local file",
        "x.nii": "format nifti is not read from a bucket.*copy it to a local file",
        "what.bin": "does not say its shape",
        "short.h5::nothing": "truncated file",
        "*.tif": "no such object",
        "missing.h5": "no such object",
        "missing": "no Zarr array or group",
    }.items():
        with pytest.raises((SpecError, StoreError), match=told):
            open_source(f"{folder}/{name}")
    for name, told in {
        "none.h5": "check the file",
        "x.zarr.zip": "ZIP file is not read from a bucket",
        "what.bin": "a file of the format|chunks cannot be copied",
        "missing.h5": "no such object",
    }.items():
        with pytest.raises((SpecError, StoreError), match=told):
            shardwrite.plan_reshard(f"{folder}/{name}")
    assert run("write", f"{folder}/missing.npy", f"{folder}/y.zarr").exit_code == 2


def test_values_in_other_files_are_not_taken_for_empty(moto, folder, tmp_path):
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["there"] = VALUES
        layout = h5py.VirtualLayout(VALUES.shape, VALUES.dtype)
        layout[:] = h5py.VirtualSource(str(tmp_path / "v.h5"), "there", shape=VALUES.shape)
        file.create_virtual_dataset("virtual", layout)
        outside = [(str(tmp_path / "values"), 0, VALUES.nbytes)]
        file.create_dataset("outside", VALUES.shape, VALUES.dtype, external=outside)
        file["link"] = h5py.ExternalLink("other.h5", "/there")
        file["soft"] = h5py.SoftLink("/link")
    put(moto, f"{folder}/v.h5", (tmp_path / "v.h5").read_bytes())
    for name in ("virtual", "outside", "link", "soft"):
        with pytest.raises(SpecError, match=f"'{name}' has values in other files"):
            open_source(f"{folder}/v.h5", dataset=name)
        with pytest.raises(SpecError, match=f"'{name}' has values in other files|is a link"):
            shardwrite.plan_reshard(f"{folder}/v.h5::{name}")


@pytest.mark.long
def test_requests_that_fail_are_made_again_and_then_told(moto, environment, folder):
    put(moto, f"{folder}/chunks.h5", hdf5())
    few = {"max_retries": 1}
    with proxy.before(moto, lambda _, path, n: "503" if n % 3 == 0 else None) as (server, faults):
        environment(server)
        forget()
        source = open_source(f"{folder}/chunks.h5", dataset="deep/chunks")
        np.testing.assert_array_equal(source[...], VALUES)
        assert len(faults.broken) > 2
        faults.plan = lambda *_: "503"
        forget()
        with (
            dask.config.set({"shardwrite.storage": {"retry_config": few}}),
            pytest.raises(StoreError, match="overloaded or out of order"),
        ):
            source[...]


@pytest.mark.long
def test_a_key_without_rights_is_told(seaweed, folder, monkeypatch):
    put(seaweed, f"{folder}/a.npy", npy(VALUES))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    monkeypatch.setattr("shardwrite.stores.bucket_url._reached", set())
    with pytest.raises(StoreError, match="Set AWS_ACCESS_KEY_ID") as caught:
        open_source(f"{folder}/a.npy")
    assert caught.value.errno == errno.EACCES
    assert servers.SECRET not in str(caught.value)


@pytest.mark.long
def test_a_process_ends_well_that_has_a_file_open(moto, folder):
    put(moto, f"{folder}/odd.h5", hdf5())
    program = (
        "import sys\nfrom shardwrite.sources import open_source\n"
        "source = open_source(sys.argv[1], dataset='odd')\nprint(source[:2].sum())"
    )
    words = [*python(), "-c", program, f"{folder}/odd.h5"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{VALUES[:2].sum()}\n", "")
