"""Shards that wait in files without a name until they are put into a bucket."""

from __future__ import annotations

import errno
import mmap
import os
import tempfile

import numpy as np
import pytest
from obstore.store import LocalStore, MemoryStore, S3Store

from shardwrite import PlanError, SpecError, StoreError
from shardwrite.runs.begin import check_scratch
from shardwrite.stores import bucket, whole
from shardwrite.stores.bucket import BucketStore, Room, ScratchWriter, room_in
from shardwrite.stores.bucket_kinds import KINDS
from shardwrite.stores.whole import WholeTransaction
from shardwrite.write.context import Scratch, scratch_here

MIB = 2**20
DATA = np.random.default_rng(0).integers(0, 256, 1000, dtype="u1")


class Puts:
    """A store as a transaction sees it."""

    capabilities, prefix, is_remote = frozenset(), "x/", False

    def __init__(self, directory):
        self.directory, self.put, self.given = directory, {}, []

    def put_object(self, name, data):
        assert isinstance(data, memoryview)
        self.given.append(data.obj)
        self.put[name] = bytes(data)

    def described(self, metadata):
        self.metadata = metadata
        return self

    def writer(self, transaction, key):
        return ScratchWriter(transaction, key, str(self.directory))


def files_of_this_process(directory):
    """Files of a directory that this process has open or mapped; each stands there once."""
    shown = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if is_fd(fd)]
    with open("/proc/self/maps") as maps:
        shown += {line.split(maxsplit=5)[5].strip() for line in maps if len(line.split()) > 5}
    return [path for path in shown if path.startswith(f"{directory}/")]


def is_fd(name):
    return os.path.lexists(f"/proc/self/fd/{name}")


@pytest.mark.parametrize("has_unnamed", [True, False])
def test_an_object_lies_in_a_file_without_a_name(tmp_path, monkeypatch, has_unnamed):
    monkeypatch.setattr(tempfile, "_O_TMPFILE_WORKS", has_unnamed)
    store, wanted = Puts(tmp_path), bytes(4) + bytes(DATA[10:110]) + bytes(30) + bytes(DATA)
    with WholeTransaction(store, None, None) as made:
        writer = made.create("c/0")
        assert writer.write([bytes(4), b"", DATA[10:110]]) == 104
        writer.skip(30)
        writer.write([DATA.reshape(10, 100)[:5], memoryview(DATA)[500:]])
        writer.write_at(0, b"head")
        assert os.listdir(tmp_path) == []
        assert len(files_of_this_process(tmp_path)) == 1
        writer.finish()
        left = made.create("c/1")
        left.write([DATA])
    assert store.put == {"x/c/0": b"head" + wanted[4:]}
    assert isinstance(store.given.pop(), mmap.mmap), "and no copy in memory"
    assert os.listdir(tmp_path) == [] == files_of_this_process(tmp_path)
    for call in (lambda: left.write([b"1"]), lambda: left.write_at(0, b"1"), left.finish):
        with pytest.raises(StoreError, match="not being written"):
            call()


def test_an_empty_object_and_one_that_is_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(whole, "COPIED_AT_ONCE_NBYTES", 30)
    asked = []

    class Reader:
        def read(self, offset, nbytes):
            asked.append((offset, nbytes))
            return bytes(DATA[offset : offset + nbytes])

    store = Puts(tmp_path)
    with WholeTransaction(store, None, None) as made:
        made.create("c/0").finish()
        writer = made.create("c/1")
        writer.copy(Reader(), 10, 70)
        writer.finish()
    assert store.put == {"x/c/0": b"", "x/c/1": bytes(DATA[10:80])}
    assert asked == [(10, 30), (40, 30), (70, 10)]


def test_a_disk_that_is_full(tmp_path, monkeypatch):
    def full(fd, buffers):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(bucket, "writev_all", full)
    store = Puts(tmp_path)
    with (
        pytest.raises(StoreError, match=f"cannot keep a shard in {tmp_path}.*No space") as caught,
        WholeTransaction(store, None, None) as made,
    ):
        made.create("c/0").write([DATA])
    assert caught.value.errno == errno.ENOSPC
    assert store.put == {}
    assert files_of_this_process(tmp_path) == []


def test_room_is_looked_up_where_a_variable_says(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_DISK", str(tmp_path))
    found = room_in("$MY_DISK")
    assert found.disk == os.stat(tmp_path).st_dev
    assert 0 < found.free_nbytes <= os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert os.listdir(tmp_path) == []
    for bad in (tmp_path / "missing", "/proc", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="cannot write to"):
            room_in(str(bad))
        assert scratch_here(str(bad)).room is None


def test_all_processes_of_a_machine_share_its_disk():
    one, other = Scratch("a", Room(1, 100)), Scratch("b", Room(1, 100))
    check_scratch({"w1": one, "w2": one, "w3": other}, "/d", 50, n_processes=3)
    with pytest.raises(PlanError, match=r"may take 102 bytes in /d on a, and 100 are") as caught:
        check_scratch({"w1": one, "w2": one, "w3": other}, "/d", 51, n_processes=3)
    assert (caught.value.needed_nbytes, caught.value.allowed_nbytes) == (102, 100)
    with pytest.raises(PlanError, match="may take 102 bytes"):
        check_scratch({"this process": one}, "/d", 34, n_processes=3)
    with pytest.raises(SpecError, match=r"via='/d'.*b \(w2\): it is read-only.*give a directory"):
        check_scratch({"w1": one, "w2": Scratch("b", None, "it is read-only")}, "/d", 1, 2)


def test_memory_beside_the_file():
    store = BucketStore(S3Store("bucket", region="here"))
    assert [store.held_nbytes(n) for n in (MIB, 2**40)] == [MIB, 2**40]
    on_disk = store.via("/local/scratch")
    assert [on_disk.held_nbytes(n) for n in (MIB, 2**40)] == [MIB, 16 * MIB]


@pytest.mark.parametrize("kind", [MemoryStore, LocalStore])
def test_metadata_where_objects_have_some(tmp_path, kind):
    store = BucketStore(MemoryStore() if kind is MemoryStore else LocalStore(tmp_path))
    with store.transaction("none", "run.1") as made:
        writer = made.create("c/0")
        writer.describe("run", "abc")
        writer.describe("index-crc32c", "00000001")
        writer.write([b"123"])
        writer.finish()
        plain = made.create("c/1")
        plain.write([b"456"])
        plain.finish()
    found = [store._obstore.get(f"c/{n}") for n in range(2)]
    assert [bytes(one.bytes()) for one in found] == [b"123", b"456"]
    if kind is MemoryStore:
        wanted = {"shardwrite-run": "abc", "shardwrite-index-crc32c": "00000001"}
        assert [dict(one.attributes) for one in found] == [wanted, {}]


def test_names_of_metadata_are_those_that_a_service_takes():
    given = {"index-crc32c": "1"}
    assert KINDS["AzureStore"].metadata(given) == {"shardwrite_index_crc32c": "1"}
    assert KINDS["GCSStore"].metadata(given) == {"shardwrite-index-crc32c": "1"}
    assert KINDS["LocalStore"].metadata(given) == {}
