"""Pipes, devices and sockets where files should be: an error at once, and nothing waits or is filled."""

from __future__ import annotations

import os
import socket
import threading

import dask.array as da
import numpy as np
import pytest
import zarr

import shardwrite
from shardwrite import ShardwriteError
from shardwrite.sources import open_source

X = np.arange(64, dtype="u4").reshape(8, 8)
GOOD = {"shards": 8, "chunks": 4}


def promptly(call, pipes=()):
    """The error of a call, which must not wait."""
    errors = []

    def run():
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    waits = thread.is_alive()
    while thread.is_alive():  # let it go
        for pipe in pipes:
            with open(os.open(pipe, os.O_RDWR | os.O_NONBLOCK), "wb") as file:
                thread.join(0.2)
                file.write(b"{}")
                thread.join(0.2)
    assert not waits, "it waits for somebody to write into the pipe"
    assert errors, "it returned"
    return errors[0]


def pipe(path):
    os.mkfifo(path)
    return path


def device(path):
    path.symlink_to("/dev/zero")
    return path


def listener(path):
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # since names of sockets must be short
        one.bind(path.name)
        os.chdir(here)
    return path


def write(source, out):
    shardwrite.to_sharded_zarr(open_source(source), out, **GOOD)


CALLS = {
    "write": write,
    "shard": lambda source, out: shardwrite.shard(source, out, shards=8),
    "reshard": lambda source, out: shardwrite.reshard(source, out, shards=8, chunks=2),
    "in place": lambda source, out: shardwrite.shard(source, shards=8),
    "plan": lambda source, out: shardwrite.plan_reshard(source, 8),
    "against": lambda source, out: shardwrite.verify(out.with_name("good"), against=source),
    "verify": lambda source, out: shardwrite.verify(source),
    "open": lambda source, out: shardwrite.open_sharded(source),
    "census": lambda source, out: shardwrite.census(source),
    "into": lambda source, out: da.from_array(X).to_sharded_zarr(source, **GOOD),
    "upload": lambda source, out: shardwrite.upload(source, "memory://never"),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", [pipe, device, listener])
def test_a_document(tmp_path, make, call):
    da.from_array(X).to_sharded_zarr(tmp_path / "good", **GOOD)
    zarr.create_array(tmp_path / "a", data=X, chunks=(4, 4))
    (tmp_path / "a/zarr.json").unlink()
    made = make(tmp_path / "a/zarr.json")
    error = promptly(lambda: CALLS[call](tmp_path / "a", tmp_path / "out"), [made])
    assert isinstance(error, ShardwriteError), repr(error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("leaf", [".zarray", ".zattrs", ".zgroup", ".zmetadata"])
@pytest.mark.parametrize("call", ["write", "shard"])
def test_a_document_of_version_2(tmp_path, leaf, call):
    group = zarr.create_group(tmp_path / "g", zarr_format=2)
    group.create_array("a", data=X, chunks=(4, 4))
    zarr.consolidate_metadata(tmp_path / "g", zarr_format=2)
    at = tmp_path / "g/a" if leaf in (".zarray", ".zattrs") else tmp_path / "g"
    (at / leaf).unlink()
    made = pipe(at / leaf)
    if call == "shard" and leaf in (".zmetadata", ".zgroup"):
        pytest.skip("it is not read, or counts as missing")
    error = promptly(lambda: CALLS[call](tmp_path / "g", tmp_path / "out"), [made])
    assert isinstance(error, ShardwriteError), repr(error)


def test_a_document_of_an_array_below(tmp_path):
    group = zarr.create_group(tmp_path / "g")
    for name in ("a", "deep/b"):
        group.create_array(name, data=X, chunks=(4, 4))
    (tmp_path / "g/deep/b/zarr.json").unlink()
    made = pipe(tmp_path / "g/deep/b/zarr.json")
    error = promptly(lambda: open_source(tmp_path / "g"), [made])
    assert isinstance(error, ShardwriteError)
    assert "named pipe" in str(error)
    assert open_source(tmp_path / "g", dataset="a").shape == (8, 8), "which is not looked at"


@pytest.mark.parametrize("shards", [None, (8, 8)])
@pytest.mark.parametrize("call", ["write", "shard", "against"])
def test_a_chunk(tmp_path, shards, call):
    da.from_array(X).to_sharded_zarr(tmp_path / "good", **GOOD)
    zarr.create_array(tmp_path / "a", data=X + 1, chunks=(4, 4), shards=shards)
    (tmp_path / "a/c/0/0").unlink()
    made = pipe(tmp_path / "a/c/0/0")

    def run():
        CALLS[call](tmp_path / "a", tmp_path / "out")
        if call == "against":
            raise shardwrite.StoreError("told in the report", key="")

    error = promptly(run, [made])
    assert isinstance(error, ShardwriteError), repr(error)


@pytest.mark.parametrize(
    "name", ["x.npy", "x.tif", "x.nii", "x.nii.gz", "x.h5", "x.nc", "x.zip", "x.raw", "x"]
)
@pytest.mark.parametrize("call", ["write", "shard", "against", "adopt"])
def test_a_file(tmp_path, name, call):
    da.from_array(X).to_sharded_zarr(tmp_path / "good", **GOOD)
    made = pipe(tmp_path / name)
    calls = {**CALLS, "adopt": lambda source, out: shardwrite.adopt([source], out)}
    error = promptly(lambda: calls[call](made, tmp_path / "out"), [made])
    assert isinstance(error, ShardwriteError), repr(error)
    assert not (tmp_path / "out").exists()


def test_a_pipe_of_a_shell(tmp_path):
    """Its name lies in /dev/fd, and is nothing to remove."""
    reader, writer = os.pipe()
    try:
        error = promptly(
            lambda: open_source(f"/dev/fd/{reader}", format="raw", shape=(8, 8), dtype="u4")
        )
        assert "write its data into a file first" in str(error)
        assert "remove" not in str(error)
        X.tofile(tmp_path / "x")
        source = open_source(tmp_path / "x", format="raw", shape=(8, 8), dtype="u4")
        np.testing.assert_array_equal(source[...], X)
    finally:
        os.close(reader)
        os.close(writer)


def test_a_page_of_a_stack(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    for number in range(3):
        tifffile.imwrite(tmp_path / f"{number}.tif", X)
    (tmp_path / "1.tif").unlink()
    made = pipe(tmp_path / "1.tif")
    for source in (tmp_path, f"{tmp_path}/*.tif"):
        error = promptly(lambda source=source: open_source(source), [made])
        assert "named pipe" in str(error), "and the page is not left out"


def test_a_document_that_is_too_large(tmp_path):
    import dask

    zarr.create_array(tmp_path / "a", data=X, chunks=(4, 4))
    with (tmp_path / "a/zarr.json").open("r+b") as file:
        file.truncate(2**20)
    with dask.config.set({"shardwrite.read.limit": "64KiB"}):
        for call in ("write", "shard", "verify"):
            error = promptly(lambda call=call: CALLS[call](tmp_path / "a", tmp_path / "out"))
            assert "larger than what is read" in str(error)
