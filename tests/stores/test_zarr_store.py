"""Stores of zarr-python behind the adapter: their errors, their event loop, and their versions."""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import pickle
import signal
import subprocess
import threading

import cloudpickle
import dask
import fsspec
import numpy as np
import obstore
import pytest
import zarr
import zarr.storage
from forks import python
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from zarr.storage import LoggingStore

import shardwrite
from shardwrite import SpecError, StoreError
from shardwrite.stores import Capability, MemoryStore, WholeStore, zarr_store
from shardwrite.stores.contract import check_store
from shardwrite.stores.zarr_store import ZarrStore

LOOP = "shardwrite-zarr-stores"


def put(store, key, data):
    with store.transaction("none", "run.1") as transaction:
        writer = transaction.create(key)
        writer.write([data])
        writer.finish()


class Failing(zarr.storage.MemoryStore):
    """A store whose calls raise, or never end."""

    error: BaseException | None = None

    async def _fail(self):
        if self.error is None:
            await asyncio.sleep(3600)
        raise self.error

    async def set(self, *arguments):
        await self._fail()

    async def get(self, *arguments):
        await self._fail()

    async def delete(self, *arguments):
        await self._fail()

    async def list_prefix(self, prefix):
        await self._fail()
        yield prefix


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (PermissionError(errno.EACCES, "no"), errno.EACCES),
        (ConnectionResetError(errno.ECONNRESET, "gone"), errno.ECONNRESET),
        (TimeoutError("too slow"), errno.ETIMEDOUT),
        (RuntimeError("a client's own error"), None),
        (ValueError("no"), None),
    ],
)
def test_whatever_a_store_raises_is_a_store_error_with_its_key(error, number):
    zarr_store_ = Failing()
    zarr_store_.error = error
    store = ZarrStore(zarr_store_)
    for call in (
        lambda: put(store, "c/0", b"abc"),
        lambda: store.open("c/0"),
        lambda: store.version("c/0"),
        lambda: store.remove_object("c/0"),
        lambda: list(store.list_keys("c/0/")),
    ):
        with pytest.raises(StoreError, match=type(error).__name__) as caught:
            call()
        assert caught.value.fields["errno"] == number
        assert caught.value.fields["key"].startswith("c/0")
        assert repr(caught.value.__cause__) == repr(error)


def test_a_call_that_never_ends_is_given_up():
    with pytest.raises(StoreError, match="cannot read") as caught:
        ZarrStore(Failing(), timeout_seconds=0.05).open("c/0")
    assert caught.value.fields["errno"] == errno.ETIMEDOUT


def test_an_interrupt_passes_and_cancels_the_call(monkeypatch):
    begun, cancelled = threading.Event(), threading.Event()

    class Endless(zarr.storage.MemoryStore):
        async def get(self, *arguments):
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled.set()
                raise

    def interrupted(coroutine, loop):
        future = real(coroutine, loop)

        def interrupt(seconds):
            assert begun.wait(60)
            raise KeyboardInterrupt

        future.result = interrupt
        return future

    store = ZarrStore(Endless())
    assert list(store.list_keys()) == []
    real = asyncio.run_coroutine_threadsafe
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.open("c/0")
    assert cancelled.wait(60)


def test_there_is_one_loop_for_all_stores_and_it_starts_with_the_first_call():
    program = """
import threading, zarr.storage
from shardwrite.stores.zarr_store import ZarrStore
def loops():
    return [t for t in threading.enumerate() if t.name == "shardwrite-zarr-stores"]
stores = [ZarrStore(zarr.storage.MemoryStore()) for _ in range(3)]
assert not loops()
threads = [threading.Thread(target=store.open, args=("c/0",)) for store in stores * 5]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(loops()) == 1 and loops()[0].daemon
"""
    subprocess.run([*python(), "-c", program], check=True)


def test_a_process_that_was_forked_makes_its_own_loop(tmp_path):
    store = ZarrStore(zarr.storage.LocalStore(tmp_path))
    put(store, "c/0", b"before")
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than wait for a thread that is not here
        try:
            good = store.open("c/0").read(0, 6) == b"before"
            put(store, "c/1", b"child")
            os._exit(0 if good else 3)
        finally:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0
    assert store.open("c/1").read(0, 5) == b"child"


def test_a_store_that_wraps_one_of_obstore_refuses_the_child_of_a_fork(tmp_path):
    inner = zarr.storage.ObjectStore(obstore.store.LocalStore(tmp_path))
    store = ZarrStore(zarr.storage.LoggingStore(zarr.storage.WrapperStore(inner)))
    assert store.open("c/0") is None
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than wait for threads that are not here
        try:
            store.open("c/0")
        except StoreError as error:
            os._exit(0 if "forked" in str(error) else 3)
        finally:
            os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


def test_a_lock_held_by_another_thread_at_the_fork_does_not_stop_the_child(tmp_path):
    store = ZarrStore(zarr.storage.LocalStore(tmp_path))
    with zarr_store._loop._lock, zarr_store._loop.opening:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                put(store, "c/1", b"child")
                os._exit(0)
            finally:
                os._exit(4)
    assert os.waitpid(child, 0)[1] == 0


def test_a_store_that_is_pickled_keeps_its_path_and_what_its_user_said(tmp_path):
    store = ZarrStore(
        zarr.storage.LocalStore(tmp_path), {Capability.SHARED, Capability.ATOMIC}, timeout_seconds=9
    ).at("images/raw")
    other = cloudpickle.loads(cloudpickle.dumps(store))
    put(other, "c/0", b"abc")
    assert (tmp_path / "images/raw/c/0").read_bytes() == b"abc"
    assert other.capabilities == store.capabilities
    assert (other._seconds, repr(other)) == (9, repr(store))


@pytest.mark.parametrize("store", [MemoryStore(), ZarrStore(zarr.storage.MemoryStore())])
def test_a_store_in_memory_cannot_be_pickled(store):
    for make_copy in (cloudpickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(SpecError, match=r"cannot be used by several processes .*threads"):
            make_copy(store)


def test_one_copy_of_an_object_is_in_memory_while_it_is_written():
    kept = []

    class Kept(zarr.storage.MemoryStore):
        async def set(self, key, value, byte_range=None):
            kept.append(value)
            await super().set(key, value)

    store = ZarrStore(Kept())
    with store.transaction("none", "run.1") as transaction:
        writer = transaction.create("c/0")
        writer.write([np.arange(200, dtype="u1"), memoryview(b"abc"), np.empty(0, "u1")])
        buffer = writer._data
        writer.finish()
    assert np.shares_memory(kept[0].as_numpy_array(), np.frombuffer(buffer, "u1"))
    assert store.open("c/0").read(199, 4) == bytes([199]) + b"abc"


# ---- what is known of file systems of fsspec


def in_zip(path):
    """A store in a file, which fsspec reads; the path in it says nothing about which file."""
    files = fsspec.filesystem("zip", fo=str(path), skip_instance_cache=True)
    return zarr.storage.FsspecStore(AsyncFileSystemWrapper(files, asynchronous=True), path="")


def below(path):
    files = DirFileSystem(path=str(path), fs=fsspec.filesystem("file", auto_mkdir=True))
    return zarr.storage.FsspecStore(AsyncFileSystemWrapper(files, asynchronous=True), path="x.zarr")


@pytest.mark.parametrize("opened", [in_zip, below], ids=["zip", "directory"])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_stores_that_only_options_tell_apart_are_two(tmp_path, opened, is_wrapped):
    paths = [tmp_path / "one", tmp_path / "two"]
    for n, path in enumerate(paths):
        if opened is in_zip:
            with zarr.storage.ZipStore(path, mode="w") as store:
                zarr.create_array(store, data=np.full((4, 4), n + 1), chunks=(2, 2), shards=(4, 4))
        else:
            data = np.full((4, 4), n + 1)
            zarr.create_array(path / "x.zarr", data=data, chunks=(2, 2), shards=(4, 4))

    def store(path):
        return LoggingStore(opened(path)) if is_wrapped else opened(path)

    one, two = (shardwrite.from_sharded_zarr(store(path)) for path in paths)
    assert one.name != two.name
    assert dask.compute(one.sum(), two.sum()) == (16, 32)
    again = [ZarrStore(store(path)).token for path in paths]
    assert again == [ZarrStore(store(path)).token for path in paths], "a run is found again"
    assert again[0] != again[1]


def test_accounts_of_azure_are_told_apart_without_their_keys():
    class Azure(AsyncFileSystem):
        protocol = "abfs"

    def token(account, key):
        text = f"DefaultEndpointsProtocol=https;AccountName={account};AccountKey={key}"
        fs = Azure(connection_string=text, asynchronous=True, skip_instance_cache=True)
        return ZarrStore(zarr.storage.FsspecStore(fs, path="c/x")).token

    assert token("one", "secret") == token("one", "other")
    assert token("one", "secret") != token("two", "secret")
    assert "secret" not in token("one", "secret")


class Bucket(AsyncFileSystem):
    """A file system like s3fs: bound to an event loop, with tags, and with caches."""

    protocol = "s3"
    objects: dict[str, tuple[bytes, str]] = {}  # noqa: RUF012
    counts = {"whole": 0, "tag": 0}  # noqa: RUF012

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.used_on = None
        self.listed = None
        self.seen = {}

    def check_loop(self):
        here = asyncio.get_running_loop()
        self.used_on = self.used_on or here
        if self.used_on is not here:
            raise RuntimeError("attached to a different loop")

    def invalidate_cache(self, path=None):
        self.listed = None
        self.seen.pop(path, None)

    async def _pipe_file(self, path, value, **options):
        self.check_loop()
        self.counts["tag"] += 1
        self.objects[path] = bytes(value), f'"{self.counts["tag"]}"'

    async def _cat_file(self, path, start=None, end=None, **options):
        self.check_loop()
        if path not in self.objects:
            raise FileNotFoundError(path)
        self.counts["whole"] += start is None
        return self.objects[path][0][start:end]

    async def _info(self, path, **options):
        self.check_loop()
        if path not in self.seen:
            if path not in self.objects:
                raise FileNotFoundError(path)
            data, tag = self.objects[path]
            self.seen[path] = {"size": len(data), "ETag": tag, "type": "file"}
        return self.seen[path]

    async def _find(self, path, **options):
        self.check_loop()
        if self.listed is None:
            self.listed = [key for key in self.objects if key.startswith(path)]
        return self.listed

    async def _rm_file(self, path, **options):
        self.check_loop()
        self.objects.pop(path, None)  # S3 does not say whether there was one


@pytest.fixture
def bucket():
    """An empty bucket."""
    Bucket.objects.clear()
    Bucket.counts.update(whole=0)
    return Bucket


def store_in(kind, path="bucket/x"):
    return zarr.storage.FsspecStore(kind(asynchronous=True, skip_instance_cache=True), path=path)


def test_a_bucket_keeps_the_contract_by_its_tags(bucket):

    def make():
        bucket.objects.clear()
        return ZarrStore(store_in(bucket))

    store = make()
    assert Capability.DURABLE in store.capabilities
    assert Capability.SNAPSHOT not in store.capabilities
    check_store(make)


def test_only_ranges_are_read_from_a_bucket(bucket):
    store = ZarrStore(store_in(bucket))
    put(store, "c/0", bytes(1000))
    with store.open("c/0") as reader:
        assert reader.read(10, 5) == bytes(5)
        assert reader.version == store.version("c/0")
    assert bucket.counts["whole"] == 0


def test_what_another_machine_changes_in_a_bucket_is_seen(bucket):
    """File systems of fsspec remember what they have seen."""
    store = ZarrStore(store_in(bucket))
    put(store, "c/0", b"abc")
    version = store.version("c/0")
    bucket.objects["bucket/x/c/0"] = b"xyz", "another tag"
    assert store.version("c/0") not in (None, version)
    assert list(store.list_keys()) == ["c/0"]
    bucket.objects["bucket/x/c/1"] = b"new", "a tag"
    assert sorted(store.list_keys()) == ["c/0", "c/1"]


def test_an_array_in_a_bucket_is_updated_only_if_nobody_else_writes(bucket, tmp_path):
    """zarr-python's interface has no conditions, so what others write meanwhile would be lost."""
    store, values = store_in(bucket), np.ones((8, 8), "u4")
    given = {"name": "x", "run_dir": tmp_path}
    shardwrite.to_sharded_zarr(values, store, shards=4, chunks=2, **given)
    with pytest.raises(SpecError, match="exclusive=True"):
        shardwrite.write_region(7, store, np.s_[:2, :2], **given)
    assert (shardwrite.open_sharded(store, "x")[:, :] == 1).all()
    shardwrite.write_region(7, store, np.s_[:2, :2], exclusive=True, **given)
    assert shardwrite.open_sharded(store, "x")[:4, :4].sum() == 4 * 7 + 12
    for other in (zarr.storage.MemoryStore(), zarr.storage.LocalStore(tmp_path / "local")):
        assert not ZarrStore(other).loses_changes


def test_a_file_system_that_zarr_has_used_is_not_used_on_another_loop(bucket):
    given = store_in(bucket)
    zarr.create_array(given, name="a", shape=4, dtype="u1", chunks=4)
    store = ZarrStore(given)
    assert store.open("a/zarr.json") is not None
    assert zarr.open_group(given, mode="a")["a"].shape == (4,)


def test_all_adapters_of_a_process_share_their_connections(bucket):
    """Each task is given a copy of the store, and must not connect on its own."""
    store = ZarrStore(zarr.storage.FsspecStore(bucket(asynchronous=True), path="bucket/x"))
    copies = [cloudpickle.loads(cloudpickle.dumps(store)) for _ in range(3)]
    assert len({id(one._connected().store.fs) for one in (store, *copies)}) == 1
    assert store._connected().store.fs is not store._zarr.fs


class Web(Bucket):
    """A file system like that of fsspec for the web: a server that lists no directory has nothing."""

    protocol = ("http", "https")

    async def _find(self, path, **options):
        return []


def test_a_web_server_of_fsspec_is_read_after_zarr_and_not_listed(bucket):
    values = np.arange(1, 65, dtype="u4").reshape(8, 8)
    made, kind = zarr.storage.MemoryStore(), Web
    shardwrite.to_sharded_zarr(values, made, shards=4, chunks=2)
    for key, data in made._store_dict.items():
        kind.objects[f"http://here/x/{key}"] = data.to_bytes(), ""
    given = store_in(kind, "http://here/x")
    assert (zarr.open_array(given, mode="r")[:] == values).all()
    array = shardwrite.open_sharded(given)
    assert (array[:] == values).all(), "by connections of its own"
    assert (zarr.open_array(given, mode="r")[:] == values).all()
    assert len(array.present()) == 16
    assert (pickle.loads(pickle.dumps(array))[3] == values[3]).all()


def test_an_object_that_shrinks_after_it_was_opened_is_an_error(bucket):
    store = ZarrStore(store_in(bucket))
    put(store, "c/0", bytes(100))
    reader = store.open("c/0")
    put(store, "c/0", b"short")
    with pytest.raises(StoreError, match="was replaced"):
        reader.read(50, 50)


def test_nothing_is_assumed_of_an_unknown_store():
    class Unknown(zarr.storage.LocalStore):
        pass

    known = WholeStore.capabilities | {Capability.SNAPSHOT}
    assert ZarrStore(Unknown("/nowhere")).capabilities == known
    stated = ZarrStore(Unknown("/nowhere"), {Capability.SHARED})
    assert stated.capabilities == known | {Capability.SHARED}


def test_a_loop_whose_thread_could_not_start_is_made_again(monkeypatch):
    """A loop without its thread would never answer."""
    monkeypatch.setattr(zarr_store, "_loop", zarr_store._Loop())

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    store = ZarrStore(zarr.storage.MemoryStore())
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreError, match="new thread"):
            put(store, "a", b"1")
    put(store, "a", b"1")
    assert store.read_whole("a", 8) == b"1"
