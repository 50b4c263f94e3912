"""The contract holds for every store that is here, and fails for each store that breaks it."""

from __future__ import annotations

import itertools
import time

import pytest
import zarr.storage

from shardwrite import StoreError
from shardwrite.stores import Capability, MemoryStore
from shardwrite.stores.base import ObjectWriter, Store, Transaction, check_key
from shardwrite.stores.bucket import BucketStore
from shardwrite.stores.contract import CLAUSES, BrokenContractError, check_store
from shardwrite.stores.posix import PosixStore
from shardwrite.stores.whole import SnapshotReader, WholeTransaction, WholeWriter
from shardwrite.stores.zarr_store import ZarrStore

NUMBERS = itertools.count()
BUCKETS = ("S3Store", "GCSStore", "AzureStore")


class Ignorant(Store):
    """A store that only does what every store does, from the protocols alone."""

    capabilities = frozenset()

    def __init__(self, prefix="", objects=None):
        self.prefix, self.objects = prefix, {} if objects is None else objects

    def __reduce__(self):
        return MemoryStore().__reduce__()

    def open(self, key):
        data = self.objects.get(self.prefix + check_key(key))
        return None if data is None else SnapshotReader(key, data, data)

    def version(self, key):
        return self.objects.get(self.prefix + check_key(key))

    def list_keys(self, prefix=""):
        start = self.prefix + prefix
        return (k.removeprefix(self.prefix) for k in list(self.objects) if k.startswith(start))

    def at(self, path):
        return Ignorant(f"{self.prefix}{path}/", self.objects)

    def transaction(self, durability, attempt, guard=None, *, proof=None, is_fresh=False):
        return IgnorantTransaction(
            self, guard, proof, MemoryStore().transaction(durability, attempt)
        )


class IgnorantTransaction(Transaction):
    def __init__(self, store, guard, proof, _):
        self.store, self.guard, self.proof, self.committed = store, guard, proof, set()

    def create(self, key):
        return IgnorantWriter(self, check_key(key))

    def remove(self, key, guard=None):
        if self.proof is None or not self.proof.names(check_key(key)):
            raise StoreError("not the run's own", key=key)
        self.check(guard)
        self.store.objects.pop(self.store.prefix + key, None)

    def check(self, guard):
        for one in (self.guard, guard):
            if one is not None:
                one()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info): ...


class IgnorantWriter(ObjectWriter):
    def __init__(self, transaction, key):
        self.transaction, self.key, self.data = transaction, key, b""

    def write(self, buffers):
        self.data += b"".join(buffers)
        return sum(map(len, buffers))

    def finish(self, guard=None):
        self.transaction.check(guard)
        self.transaction.store.objects[self.transaction.store.prefix + self.key] = self.data
        self.transaction.committed.add(self.key)

    def abort(self): ...


class OtherStore(zarr.storage.MemoryStore):
    """A store of zarr of which nothing is known."""


def fsspec(url, **options):
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    return zarr.storage.FsspecStore.from_url(url, storage_options=options)


def obstore(kind, *arguments, **options):
    stores = pytest.importorskip("obstore.store", reason="obstore is not installed")
    return getattr(stores, kind)(*arguments, **options)


MAKERS = {
    "posix": lambda path: PosixStore(path),
    "memory": lambda path: MemoryStore(),
    "only the protocols": lambda path: Ignorant(),
    "zarr's memory": lambda path: ZarrStore(zarr.storage.MemoryStore()),
    "zarr's files": lambda path: ZarrStore(zarr.storage.LocalStore(path)),
    "a wrapper": lambda path: ZarrStore(zarr.storage.WrapperStore(zarr.storage.MemoryStore())),
    "an unknown store of zarr": lambda path: ZarrStore(OtherStore()),
    "what the user knows": lambda path: ZarrStore(OtherStore(), {Capability.ATOMIC}),
    "a time limit": lambda path: ZarrStore(zarr.storage.MemoryStore(), timeout_seconds=60),
    "fsspec in memory": lambda path: ZarrStore(fsspec(f"memory://{path}")),
    "fsspec's files": lambda path: ZarrStore(fsspec(f"file://{path}", auto_mkdir=True)),
    "obstore in memory": lambda path: BucketStore(obstore("MemoryStore")),
    "obstore's files": lambda path: BucketStore(obstore("LocalStore", path, mkdir=True)),
}


@pytest.mark.compat
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_contract_holds(tmp_path, make):
    (tmp_path / "run").mkdir()
    check_store(lambda: make(tmp_path / str(next(NUMBERS))), run_path=tmp_path / "run")


@pytest.mark.parametrize("name", ["posix", "memory", "zarr's files", "fsspec in memory"])
def test_the_contract_holds_in_a_part_of_a_store(tmp_path, name):
    def make():
        path = tmp_path / str(next(NUMBERS))
        (path / "images").mkdir(parents=True)  # of groups above an array
        store = MAKERS[name](path)
        with store.transaction("none", "run.1") as transaction:
            writer = transaction.create("images/other")
            writer.write([b"another array"])
            writer.finish()
        return store.at("images").at("raw")

    (tmp_path / "run").mkdir()
    check_store(make, run_path=tmp_path / "run")


def test_the_checks_say_what_the_contract_says():
    for clause, check in list(CLAUSES.items())[: -len(Capability)]:
        assert check.__doc__ == clause


# ---- stores that break the contract, each in one way


class TornPut(MemoryStore):
    def put_object(self, name, data):
        super().put_object(name, data[: len(data) // 2])
        time.sleep(0.002)
        super().put_object(name, data)


class MissingWhileReplaced(MemoryStore):
    def put_object(self, name, data):
        self.remove_object(name)
        time.sleep(0.002)
        super().put_object(name, data)


class LostAbort(MemoryStore):
    """Publishes what is not finished."""

    def transaction(self, *arguments, **options):
        return _LostAbort(self, None, options.get("proof"))


class _LostAbort(WholeTransaction):
    def __exit__(self, *exc_info):
        for writer in self._writers:
            if writer._data is not None:
                writer.finish()


class AbortRemoves(MemoryStore):
    """An aborted object takes the old one with it."""

    def transaction(self, *arguments, **options):
        return _AbortRemoves(
            self, arguments[2] if len(arguments) > 2 else None, options.get("proof")
        )


class _AbortRemoves(WholeTransaction):
    def __exit__(self, *exc_info):
        for writer in self._writers:
            if writer._data is not None:
                self.store.remove_object(self.store.prefix + writer._key)


class StaleVersion(MemoryStore):
    def __init__(self):
        super().__init__()
        self._versions = itertools.repeat(1)


class SizeAsVersion(MemoryStore):
    def version_of_object(self, name):
        return None if name not in self._objects else len(self._objects[name][0])

    def open_object(self, name):
        reader = super().open_object(name)
        if reader is not None:
            reader.version = reader.nbytes
        return reader


class ShortRead(MemoryStore):
    def open_object(self, name):
        reader = super().open_object(name)
        if reader is not None:
            reader.read = lambda offset, n: bytes(reader._data[offset : offset + n])
        return reader


class ListMisses(MemoryStore):
    def list_names(self, prefix):
        return itertools.islice(super().list_names(prefix), 10)


class ListTakesPrefixForText(MemoryStore):
    def list_keys(self, prefix=""):
        return (
            super().list_keys()
            if not prefix
            else (name for name in self.list_names(prefix.rstrip("/")))
        )


class RemoveLies(MemoryStore):
    def remove_object(self, name): ...


class RemovesByPattern(MemoryStore):
    def remove_object(self, name):
        for other in list(self._objects):
            if other == name or other.startswith(name.partition("[")[0]):
                super().remove_object(other)


class RemovesWithoutProof(MemoryStore):
    def transaction(self, *arguments, **options):
        transaction = super().transaction(*arguments, **options)
        transaction.remove = lambda key, guard=None: self.remove_object(check_key(key))
        return transaction


class GuardIgnored(MemoryStore):
    def transaction(self, durability, attempt, guard=None, **options):
        return super().transaction(durability, attempt, None, **options)


class GuardTooLate(MemoryStore):
    def transaction(self, durability, attempt, guard=None, **options):
        return _GuardTooLate(self, guard, options.get("proof"))


class _GuardTooLate(WholeTransaction):
    def create(self, key):
        self._writers.append(_LateWriter(self, check_key(key)))
        return self._writers[-1]


class _LateWriter(WholeWriter):
    def finish(self, guard=None):
        self._transaction.store.put_object(self._key, bytearray(self._data))
        super().finish(guard)


class SharedAttempts(MemoryStore):
    """Two attempts grow one buffer."""

    def __init__(self):
        super().__init__()
        self.buffers = {}

    def transaction(self, durability, attempt, guard=None, **options):
        return _SharedAttempts(self, guard, options.get("proof"))


class _SharedAttempts(WholeTransaction):
    def create(self, key):
        writer = super().create(key)
        writer._data = self.store.buffers.setdefault(key, writer._data)
        finish = writer.finish

        def finish_and_forget(guard=None):
            finish(guard)
            self.store.buffers.pop(key, None)

        writer.finish = finish_and_forget
        return writer

    def __exit__(self, *exc_info):
        super().__exit__(*exc_info)
        for writer in self._writers:
            self.store.buffers.pop(writer._key, None)


class KeepsBuffers(MemoryStore):
    """Takes the caller's buffers, which are used for the next object."""

    def transaction(self, durability, attempt, guard=None, **options):
        return _KeepsBuffers(self, guard, options.get("proof"))


class _KeepsBuffers(WholeTransaction):
    def create(self, key):
        self._writers.append(_KeepingWriter(self, check_key(key)))
        return self._writers[-1]


class _KeepingWriter(WholeWriter):
    def write(self, buffers):
        vars(self).setdefault("kept", []).extend(buffers)
        return sum(map(len, buffers))

    def finish(self, guard=None):
        super().write(vars(self).get("kept", []))
        super().finish(guard)


class AnyKey(MemoryStore):
    def open(self, key):
        return self.open_object(self.prefix + key)


class LosesThreads(MemoryStore):
    """Copies its dict to change it."""

    def put_object(self, name, data):
        objects = dict(self._objects)
        time.sleep(0.001)
        super().put_object(name, data)
        objects[name] = self._objects[name]
        self._objects = objects


class ForgetsCommitted(MemoryStore):
    def transaction(self, *arguments, **options):
        transaction = super().transaction(*arguments, **options)
        transaction.committed = _Forgetful()
        return transaction


class _Forgetful(set):
    def add(self, key): ...


def claiming(capability, **methods):
    """A store in memory that claims one more capability."""
    return type(
        f"Claims{capability.name.title()}",
        (MemoryStore,),
        {"capabilities": MemoryStore.capabilities | {capability}, **methods},
    )


def silent(capability):
    """A store that has a capability and does not say so."""
    can = MemoryStore.capabilities - {capability}
    return type(f"Hides{capability.name.title()}", (MemoryStore,), {"capabilities": can})


class ClaimsCopies(claiming(Capability.SHARED)):
    """Can be pickled, as a copy of what it holds."""

    def __reduce__(self):
        return _copied, (type(self), dict(self._objects))


def _copied(kind, objects):
    store = kind()
    store._objects.update(objects)
    return store


class ClaimsDurableLate(claiming(Capability.DURABLE)):
    """Accepts all levels, and commits nothing."""

    def transaction(self, durability, attempt, guard=None, **options):
        transaction = super().transaction(durability, attempt, guard, **options)
        if durability != "none":
            transaction.committed = _Forgetful()
        return transaction


class NotDurableInSilence(MemoryStore):
    def transaction(self, durability, attempt, guard=None, **options):
        return super().transaction("none", attempt, guard, **options)


class PickledInSilence(MemoryStore):
    def __reduce__(self):
        return _copied, (type(self), dict(self._objects))


class NoSnapshot(MemoryStore):
    """Whoever has an object open that is replaced finds bytes of the new one in it."""

    def put_object(self, name, data):
        old, _ = self._objects.get(name, (bytearray(), 0))
        super().put_object(name, data)
        n = min(len(old), len(data))
        old[:n] = data[:n]


class NotExclusive(MemoryStore):
    def create_new(self, key, data):
        is_new = self.version(key) is None
        time.sleep(0.002)
        if is_new:
            self.put_object(self.prefix + key, bytearray(data))
        return is_new


class PatchMoves(MemoryStore):
    """Appends what should overwrite."""

    def transaction(self, *arguments, **options):
        transaction = super().transaction(*arguments, **options)
        create = transaction.create

        def create_moving(key):
            writer = create(key)
            writer.write_at = lambda offset, data: writer.write([data])
            return writer

        transaction.create = create_moving
        return transaction


BROKEN = {
    TornPut: "ATOMIC",
    MissingWhileReplaced: "ATOMIC",
    LostAbort: "An unfinished object",
    AbortRemoves: "An unfinished object",
    StaleVersion: "The version changes",
    SizeAsVersion: "The version changes",
    ShortRead: "Exactly the range",
    ListMisses: "Exactly the visible",
    ListTakesPrefixForText: "Exactly the visible",
    RemoveLies: "A removed object",
    RemovesByPattern: "A removed object",
    RemovesWithoutProof: "A guard that raises",
    GuardIgnored: "A guard that raises",
    GuardTooLate: "A guard that raises",
    SharedAttempts: "Two attempts",
    KeepsBuffers: "An object of any size",
    AnyKey: "Keys may have",
    LosesThreads: "Threads can write",
    ForgetsCommitted: "An object of any size",
    ClaimsCopies: "SHARED",
    claiming(Capability.SHARED): "SHARED",
    claiming(Capability.EDIT): "EDIT",
    ClaimsDurableLate: "DURABLE",
    NotDurableInSilence: "DURABLE",
    PickledInSilence: "SHARED",
    NoSnapshot: "SNAPSHOT",
    NotExclusive: "EXCLUSIVE",
    PatchMoves: "PATCH",
    silent(Capability.PATCH): "PATCH",
    silent(Capability.SKIP): "SKIP",
    silent(Capability.COPY): "COPY",
    silent(Capability.EXCLUSIVE): "EXCLUSIVE",
}


@pytest.mark.parametrize(("kind", "clause"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
def test_a_broken_store_is_told_what_it_breaks(kind, clause):
    with pytest.raises(BrokenContractError, match=clause) as caught:
        check_store(kind)
    assert caught.value.clause.startswith(clause)
    assert caught.value.clause in CLAUSES
