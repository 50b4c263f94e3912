"""ZIP files as sources: what passes, and what is refused before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import signal
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import CorruptShardError, ShardwriteError, SpecError, StoreError, open_sharded
from shardwrite.cli import main
from shardwrite.legacy.zip import Inflated, ZippedStore

sys.path.insert(0, str(Path(__file__).parent))
import seams
from test_convert import by_tensorstore, payloads, same

METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}
VALUES = np.arange(1000, dtype="i4").reshape(25, 40)


def fill(store, zarr_format=3, shards=None):
    """A group with an array of 3 x 4 chunks, one of them missing."""
    root = zarr.create_group(store, zarr_format=zarr_format, attributes={"title": "all"})
    more = {} if shards is None else {"shards": shards}
    array = root.create_array("g/x", shape=(25, 40), chunks=(10, 10), dtype="i4", **more)
    array[...] = values()
    return root


def values():
    wanted = VALUES.copy()
    wanted[:10, 10:20] = 0
    return wanted


def zipped(path, method="stored", **how):
    with zarr.storage.ZipStore(path, mode="w", compression=METHODS[method]) as store:
        fill(store, **how)
    return path


def packed(path, members, method=zipfile.ZIP_STORED):
    """A ZIP file of names and bytes, in their order."""
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def refused(path, tmp_path, match, error=SpecError):
    with pytest.raises(error, match=match) as caught:
        shardwrite.shard(path, tmp_path / "out", 2)
    assert not (tmp_path / "out").exists()
    return caught.value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "how", [{"zarr_format": 2}, {}, {"shards": (20, 20)}], ids=["v2", "v3", "sharded"]
)
def test_what_passes(tmp_path, method, how):
    path = zipped(tmp_path / "a.zip", method, **how)
    plan = shardwrite.plan_reshard(path, 3)
    assert (plan.n_files_before, plan.n_chunks_copied, plan.n_chunks_encoded) == (1, 11, 0)
    done = shardwrite.shard(path, tmp_path / "b", 3)
    assert (done.n_chunks_copied, done.n_chunks_encoded, done.n_shards) == (11, 0, 2)
    root = zarr.open_group(tmp_path / "b", mode="r")
    assert dict(root.attrs) == {"title": "all"}
    same(root["g/x"][...], values())
    same(by_tensorstore(tmp_path / "b/g/x"), values())
    if "shards" not in how:
        separator = "." if how.get("zarr_format") == 2 else "/"
        prefix = "g/x/" if how.get("zarr_format") == 2 else "g/x/c/"
        before = {
            tuple(map(int, name.removeprefix(prefix).split(separator))): hashlib.sha256(
                data
            ).hexdigest()
            for name, data in members_of(path).items()
            if name.removeprefix(prefix)[0].isdigit()
        }
        assert payloads(tmp_path / "b/g/x") == before
    assert shardwrite.verify(tmp_path / "b/g/x", deep=True, against=f"{path}::g/x").is_good


def test_stores_and_nodes_of_zarr(tmp_path):
    path = zipped(tmp_path / "a.zip")
    with zarr.storage.ZipStore(path, mode="r") as store:
        root = zarr.open_group(store, mode="r")
        for number, src in enumerate((store, root, root["g"])):
            assert shardwrite.shard(src, tmp_path / f"b{number}", 2).n_chunks_copied == 11
        assert shardwrite.shard(root["g/x"], tmp_path / "c", 2).n_chunks_copied == 11
    same(open_sharded(tmp_path / "b2/x")[...], values())
    same(open_sharded(tmp_path / "c")[...], values())


def test_a_directory_that_was_packed_with_its_name(tmp_path):
    fill(tmp_path / "all.zarr")
    files = sorted(p for p in (tmp_path / "all.zarr").rglob("*"))
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("all.zarr")
        archive.writestr("README.txt", "nothing of Zarr")
        for file in files:
            archive.write(file, file.relative_to(tmp_path))
    done = shardwrite.shard(f"{tmp_path}/a.zip::all.zarr/g", tmp_path / "b", 2)
    assert [array.name for array in done.arrays] == ["x"]
    same(open_sharded(tmp_path / "b/x")[...], values())
    with pytest.raises(SpecError, match="no such array or group"):
        shardwrite.shard(f"{tmp_path}/a.zip::nowhere", tmp_path / "c")
    prefixed = tmp_path / "prefixed.zip"  # such as a self-extracting one
    prefixed.write_bytes(b"#!/bin/sh\n" + (tmp_path / "a.zip").read_bytes())
    assert shardwrite.shard(f"{prefixed}::all.zarr", tmp_path / "d", 2).n_chunks_copied == 11
    with pytest.raises(SpecError, match="at its top") as caught:
        shardwrite.shard(prefixed, tmp_path / "e", 2)
    assert f"{prefixed}::all.zarr" in str(caught.value)


def test_zip64(tmp_path):
    fill(tmp_path / "x")
    with zipfile.ZipFile(tmp_path / "a.zip", "w", allowZip64=True) as archive:
        for file in (tmp_path / "x").rglob("*"):
            if file.is_file():
                name = str(file.relative_to(tmp_path / "x"))
                with archive.open(name, "w", force_zip64=True) as member:
                    member.write(file.read_bytes())
    assert shardwrite.shard(tmp_path / "a.zip", tmp_path / "b", 2).n_chunks_copied == 11
    same(open_sharded(tmp_path / "b/g/x")[...], values())


def test_the_last_member_of_a_name_counts(tmp_path):
    path = zipped(tmp_path / "a.zip")
    with (
        pytest.warns(UserWarning, match="Duplicate name"),
        zarr.storage.ZipStore(path, mode="a") as store,
    ):
        zarr.open_array(store, path="g/x")[:10, :10] = 7
    wanted = values()
    wanted[:10, :10] = 7
    assert "g/x/c/0/0" in str(shardwrite.plan_reshard(path, 2))
    shardwrite.shard(path, tmp_path / "b", 2)
    same(open_sharded(tmp_path / "b/g/x")[...], wanted)


def test_a_newer_member_that_is_listed_first(tmp_path):
    path = packed(tmp_path / "a.zip", [("zarr.json", b"{}"), ("zarr.jsom", b"[]")])
    data = path.read_bytes()
    at = data.index(b"PK\1\2")
    second = data.index(b"PK\1\2", at + 1)
    end = data.index(b"PK\5\6")
    swapped = data[:at] + data[second:end] + data[at:second] + data[end:]
    path.write_bytes(swapped.replace(b"zarr.jsom", b"zarr.json"))
    refused(path, tmp_path, "lists the newer one first")


@pytest.mark.parametrize(
    "name",
    ["/etc/c/0", "../c/0", "g/../../c/0", "g//c/0", "./c/0", "c/\0/0", "g\\x\\c", "../"],
)
def test_names(tmp_path, name):
    path = zipped(tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = info.orig_filename = name
        archive.writestr(info, b"")
    assert refused(path, tmp_path, "name").fields["field"] == "src"


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR])
def test_links_and_devices(tmp_path, kind):
    path = zipped(tmp_path / "a.zip")
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("g/x/c/0/1")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    refused(path, tmp_path, "a link, or no file")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods(tmp_path, method):
    path = packed(tmp_path / "a.zip", [("zarr.json", b"{}" * 99)], method)
    refused(path, tmp_path, "compressed by (bzip2|lzma)")


def patched(path, name, **fields):
    """Change fields of a member, in the directory and in its header."""
    data = bytearray(path.read_bytes())
    raw = name.encode()
    at = {"flags": (8, 6, "<H"), "crc": (16, 14, "<L"), "size": (24, 22, "<L")}
    here = -1
    while (here := data.find(b"PK\1\2", here + 1)) >= 0:
        if data[here + 46 : here + 46 + len(raw)] == raw:
            break
    start = struct.unpack_from("<L", data, here + 42)[0]
    for field, value in fields.items():
        if field == "start":
            struct.pack_into("<L", data, here + 42, value)
            continue
        in_directory, in_header, code = at[field]
        struct.pack_into(code, data, here + in_directory, value)
        struct.pack_into(code, data, start + in_header, value)
    path.write_bytes(bytes(data))
    return start


def test_encrypted(tmp_path):
    path = zipped(tmp_path / "a.zip")
    patched(path, "g/x/c/0/0", flags=1)
    refused(path, tmp_path, "encrypted")


def test_members_that_overlap(tmp_path):
    path = zipped(tmp_path / "a.zip")
    start = patched(path, "g/x/c/0/0", flags=0)
    patched(path, "g/x/c/0/2", start=start + 10)
    refused(path, tmp_path, "overlaps another")


def test_a_header_of_another_name(tmp_path):
    path = zipped(tmp_path / "a.zip")
    start = patched(path, "g/x/c/0/2", flags=0)
    data = bytearray(path.read_bytes())
    data[start + 30 : start + 39] = b"g/x/c/0/9"
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptShardError, match="something else stands"):
        shardwrite.shard(path, tmp_path / "out", 2)


@pytest.mark.long
def test_stored_and_deflated_bombs(tmp_path):
    fill(tmp_path / "x")
    document = (tmp_path / "x/g/x/zarr.json").read_bytes()
    bomb = packed(
        tmp_path / "bomb.zip",
        [("zarr.json", document), ("c/0/0", bytes(2**24 - 2**20))],
        zipfile.ZIP_DEFLATED,
    )
    assert bomb.stat().st_size < 20_000
    error = refused(bomb, tmp_path, "15,728,640 bytes", CorruptShardError)
    assert error.fields["key"] == "c/0/0"
    patched(bomb, "c/0/0", size=100)  # it claims to be small
    with pytest.raises(CorruptShardError, match="more than it claims"):
        shardwrite.shard(bomb, tmp_path / "liar", 2)
    patched(bomb, "c/0/0", size=2**31)
    refused(bomb, tmp_path, "cannot hold")
    stored = packed(tmp_path / "s.zip", [("zarr.json", document), ("c/0/0", b"abc")])
    patched(stored, "c/0/0", size=2**31)
    refused(stored, tmp_path, "cannot hold")
    documents = packed(
        tmp_path / "d.zip", [("zarr.json", b" " * 2**26 + document)], zipfile.ZIP_DEFLATED
    )
    refused(documents, tmp_path, "at most", StoreError)


@pytest.mark.parametrize("method", METHODS)
def test_a_byte_that_is_wrong(tmp_path, method):
    path = zipped(tmp_path / "a.zip", method)
    start = patched(path, "g/x/c/1/1", flags=0)
    data = bytearray(path.read_bytes())
    data[start + 30 + len("g/x/c/1/1") + 20] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CorruptShardError, match=r"CRC-32|inflated|claims"):
        shardwrite.shard(path, tmp_path / "out", 2)
    assert not (tmp_path / "out/g/x/zarr.json").exists()


def test_files_that_are_not_whole(tmp_path):
    path = zipped(tmp_path / "a.zip")
    data = path.read_bytes()
    for name, content in {
        "cut.zip": data[: len(data) // 2],
        "tail.zip": data[len(data) // 2 :],
        "empty.zip": b"PK\5\6" + bytes(18),
        "text.zip": b"no archive",
    }.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, tmp_path, "ZIP file|unknown format")
    packed(tmp_path / "other.npz", [("a.npy", b"\x93NUMPY")])
    refused(tmp_path / "other.npz", tmp_path, "without a Zarr array")
    open_ = zarr.storage.ZipStore(tmp_path / "open.zip", mode="w")
    fill(open_)
    refused(open_, tmp_path, "close the store")
    open_.close()
    assert shardwrite.shard(tmp_path / "open.zip", tmp_path / "out", 2).n_chunks_copied == 11


@pytest.mark.long
def test_any_damage_is_an_error_or_is_not_seen(tmp_path):
    """No mutant is anything but read in full or refused by a typed error."""
    rng, n_refused = random.Random(0), 0
    for method in METHODS:
        path = zipped(tmp_path / f"{method}.zip", method)
        data = path.read_bytes()
        at_end = data.index(b"PK\1\2")
        for number in range(40):
            mutant = bytearray(data)
            for _ in range(rng.choice([1, 1, 3])):
                where = rng.randrange(at_end, len(data)) if number % 2 else rng.randrange(len(data))
                mutant[where] = rng.randrange(256)
            file = tmp_path / f"{method}{number}.zip"
            file.write_bytes(bytes(mutant))
            try:
                shardwrite.plan_reshard(file, 2)
                ZippedStore(file).read_whole("g/x/c/0/0", 10**6)
            except shardwrite.ShardwriteError:
                n_refused += 1
    assert n_refused > 15


@pytest.mark.long
def test_ranges_of_what_was_deflated():
    rng = np.random.default_rng(0)
    for n in (0, 1, 100_000, 12_000_000):
        data = rng.integers(0, 3, n, dtype="u1").tobytes()
        deflater = zlib.compressobj(1, zlib.DEFLATED, -15)
        deflated = deflater.compress(data) + deflater.flush()
        n_read = [0]

        def read(at, nbytes, deflated=deflated, n_read=n_read):
            n_read[0] += nbytes
            return deflated[at : at + nbytes]

        ranges = Inflated("a", read, len(deflated), n, zlib.crc32(data))
        for _ in range(6):
            start, end = sorted(rng.integers(0, n + 1, 2).tolist())
            end = min(end, start + 2_000_000)
            assert ranges.read(start, end - start) == data[start:end]
        n_read[0] = 0
        for start in range(0, n, 100_000):  # one after the other costs little more than once
            assert ranges.read(start, min(n - start, 100_000)) == data[start : start + 100_000]
        assert n_read[0] <= 2 * len(deflated)
        for wrong in (
            Inflated("a", read, len(deflated), n, zlib.crc32(data) ^ 1),
            Inflated("a", read, len(deflated), n + 1, zlib.crc32(data)),
            Inflated("a", read, len(deflated) - 1, n, zlib.crc32(data)),
        ):
            with pytest.raises(CorruptShardError):
                wrong.read(0, 0)


@pytest.mark.long
def test_processes_and_a_file_that_changes(tmp_path, monkeypatch):
    import dask

    path = zipped(tmp_path / "a.zip", "deflated")
    with dask.config.set(scheduler="processes", num_workers=1):
        shardwrite.shard(path, tmp_path / "b", 1)
    same(open_sharded(tmp_path / "b/g/x")[...], values())
    store = pickle.loads(pickle.dumps(ZippedStore(path).at("g/x")))
    assert store.open("c/1/1").nbytes
    seams.before(monkeypatch, "convert arrays", lambda *_: os.utime(path, ns=(0, 0)))
    with pytest.raises(StoreError, match="changed meanwhile"):
        shardwrite.shard(path, tmp_path / "c", 1)
    assert not (tmp_path / "c/g/x/zarr.json").exists()


def test_the_file_is_no_target(tmp_path):
    path = zipped(tmp_path / "a.zip")
    before = path.read_bytes()
    for call in (shardwrite.shard, shardwrite.unshard):
        with pytest.raises(SpecError, match="a file, which is only read") as caught:
            call(path)
        assert caught.value.fields["field"] == "dst"
    for dst in (path, tmp_path):
        with pytest.raises(SpecError):
            shardwrite.shard(path, dst, 2, mode="w")
    assert path.read_bytes() == before


KILLED = """
import os, signal, sys
import dask, shardwrite
real, left = os.rename, int(sys.argv[3])
def rename(*arguments):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
os.rename = rename
with dask.config.set(scheduler="sync"):
    shardwrite.shard(sys.argv[1], sys.argv[2], 1)
"""


@pytest.mark.long
def test_a_kill_and_the_same_call(tmp_path):
    path = zipped(tmp_path / "a.zip", "deflated")
    # Before the run is there, between two shards, and when all are written but the array is not yet there.
    for k in (1, 8, 14):
        target = tmp_path / f"b{k}"
        done = subprocess.run([sys.executable, "-c", KILLED, path, target, str(k)], check=False)
        assert done.returncode == -signal.SIGKILL
        assert not (target / "g/x/zarr.json").exists()
        n_resumed = shardwrite.shard(path, target, 1).arrays[0].result.n_resumed_shards
        same(open_sharded(target / "g/x")[...], values())
        assert shardwrite.verify(target / "g/x", deep=True, against=f"{path}::g/x").is_good
    assert not list(tmp_path.rglob("*.shardwrite"))
    assert n_resumed == 12


def test_the_command(tmp_path):
    path, runner = str(zipped(tmp_path / "a.zip")), CliRunner()
    ended = runner.invoke(main, ["shard", path, str(tmp_path / "b"), "--shards", "2", "--dry-run"])
    assert "11 copied, unchanged" in ended.output
    ended = runner.invoke(main, ["shard", path, str(tmp_path / "b"), "--shards", "2", "--json"])
    assert json.loads(ended.output)["n_chunks_copied"] == 11
    ended = runner.invoke(main, ["verify", f"{tmp_path}/b/g/x", "--against", f"{path}::g/x"])
    assert ended.exit_code == 0, ended.output
    assert "every encoded chunk against the source" in ended.output
    ended = runner.invoke(main, ["unshard", path, "--in-place"])
    assert (ended.exit_code, "give another place" in ended.output) == (2, True)


def test_a_filter_that_cannot_take_the_dtype_is_told_as_in_a_directory(tmp_path):
    """It raised the TypeError of the filter."""
    document = {
        "zarr_format": 2,
        "shape": [4, 4],
        "chunks": [2, 2],
        "dtype": "<u8",
        "order": "F",
        "compressor": None,
        "filters": [{"id": "bitround", "keepbits": 8}],
        "fill_value": 0,
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".zarray").write_text(json.dumps(document))
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as file:
        file.write(tmp_path / "a" / ".zarray", ".zarray")
    for name in ("a", "a.zip"):
        with pytest.raises(ShardwriteError, match=r"bitround.* Only float arrays"):
            shardwrite.shard(tmp_path / name, tmp_path / "b", 2)
        assert not (tmp_path / "b").exists()
