"""Chunks by id in shards: written, read, changed, killed and repeated, damaged and refused."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pickle
import re
import signal
import struct
import subprocess
import threading

import dask
import numpy as np
import obstore
import pytest
import seams
import zarr
from forks import python
from helpers import contents

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.stores import Capability, MemoryStore, looking
from shardwrite.stores.posix import PosixStore
from shardwrite.volumes.uint64_shard import UInt64ShardFiles

SHARDING = {
    "@type": "neuroglancer_uint64_sharded_v1",
    "hash": "murmurhash3_x86_128",
    "preshift_bits": 0,
    "minishard_bits": 2,
    "shard_bits": 3,
    "minishard_index_encoding": "gzip",
    "data_encoding": "gzip",
}
IDENTITY = {
    **SHARDING,
    "hash": "identity",
    "minishard_index_encoding": "raw",
    "data_encoding": "raw",
}
VALUES = {int(one): bytes([one % 251]) * (one % 40) for one in [*range(200), 2**63, 2**64 - 1]}


@pytest.fixture
def shards(tmp_path):
    return shardwrite.UInt64Shards(tmp_path / "x", SHARDING)


@pytest.mark.compat
@pytest.mark.parametrize("sharding", [SHARDING, IDENTITY], ids=["murmur-gzip", "identity-raw"])
def test_written_and_read(tmp_path, sharding):
    sharding = shardwrite.ShardingParameters.from_dict(sharding)
    shards = shardwrite.UInt64Shards(tmp_path / "x", sharding)
    written = shards.write(VALUES)
    assert (written.n_shards, written.n_chunks) == (8, len(VALUES))
    assert dict(shards) == VALUES
    assert len(shards) == len(VALUES)
    assert shards.read([3, 10**6, 4]) == {3: VALUES[3], 4: VALUES[4]}
    assert 2**63 in shards
    assert [one in shards for one in (10**6, -1, 1.5, "x")] == [False] * 4
    with pytest.raises(KeyError):
        shards[10**6]
    report = shards.verify(deep=True)
    assert report.is_good
    assert (report.n_shards, report.n_chunks, report.unused_nbytes) == (8, len(VALUES), 0)
    assert written.nbytes == report.stored_nbytes
    assert written.nbytes == sum(map(len, contents(tmp_path / "x").values()))
    assert "202 chunks in 8 shards" in str(written)
    assert "202 chunks" in str(report)


@pytest.mark.parametrize(
    "place", [MemoryStore, zarr.storage.MemoryStore], ids=["memory", "zarr-memory"]
)
def test_other_stores(place):
    shards = shardwrite.UInt64Shards(place(), SHARDING)
    shards.write(VALUES)
    shards.write({5: b"new"}, existing="update")
    assert dict(shards) == {**VALUES, 5: b"new"}
    with pytest.raises(SpecError, match="survives a power cut"):
        shards.write(VALUES, existing="replace", durability="full")


def test_stores_that_are_only_read(tmp_path):
    """They were written all the same, and a ZIP file had two shards of one name."""
    shardwrite.UInt64Shards(f"precomputed://{tmp_path}/x", SHARDING).write({7: b"a"})
    bucket = obstore.store.MemoryStore()
    shardwrite.UInt64Shards(bucket, SHARDING).write({7: b"a"})
    closed = zarr.storage.LocalStore(tmp_path / "x", read_only=True)
    shards = [shardwrite.UInt64Shards(closed, SHARDING)]
    shards.append(pickle.loads(pickle.dumps(shards[0])))
    closed = zarr.storage.ObjectStore(bucket, read_only=True)
    shards.append(shardwrite.UInt64Shards(closed, SHARDING))
    for one in shards:
        with pytest.raises(SpecError, match="a read-only store; open it"):
            one.write({7: b"b"}, existing="update")
        with pytest.raises(SpecError, match="a read-only store; open it"):
            one.remove([7])
        assert dict(one) == {7: b"a"}
    archive = zarr.storage.ZipStore(tmp_path / "x.zip", mode="w")
    with pytest.raises(SpecError, match="cannot replace or remove objects"):
        shardwrite.UInt64Shards(archive, SHARDING).write({7: b"a"})


def test_bytes_depend_on_the_values_alone(tmp_path):
    found = []
    for n, level in enumerate(("full", "batch", "none")):
        path = tmp_path / str(n)
        ids = list(VALUES) if n else list(VALUES)[::-1]
        values = {one: VALUES[one] for one in ids}
        shards = shardwrite.UInt64Shards(path, SHARDING)
        shards.write(values, durability=level, threads=n + 1)
        found.append(contents(path))
    assert found[0] == found[1] == found[2]


@pytest.mark.long
def test_parameters_are_found_in_info(tmp_path, shards):
    shards.write(VALUES)
    info = tmp_path / "x" / "info"
    with pytest.raises(SpecError, match="there is no info"):
        shardwrite.UInt64Shards(tmp_path / "x")
    for text, message in (("{", "is not valid"), ("{}", "no sharding"), ("[]", "no sharding")):
        info.write_text(text)
        with pytest.raises(SpecError, match=message):
            shardwrite.UInt64Shards(tmp_path / "x")
    info.write_text(json.dumps({"@type": "neuroglancer_skeletons", "sharding": SHARDING}))
    assert dict(shardwrite.UInt64Shards(tmp_path / "x")) == VALUES
    assert shards.verify().is_good


@pytest.mark.long
def test_what_happens_to_shards_that_exist(tmp_path, shards):
    shards.write({one: VALUES[one] for one in range(100)})
    before = contents(tmp_path / "x")
    with pytest.raises(StoreError, match="8 shards exist") as caught:
        shards.write({3: b"new"} | {500 + n: b"" for n in range(50)})
    assert caught.value.key == "0.shard"
    assert contents(tmp_path / "x") == before
    kept = shards.write({3: b"new"}, existing="keep")
    assert (kept.n_shards, kept.n_kept) == (0, 1)
    assert contents(tmp_path / "x") == before
    shards.write({3: b"new", 1000: b"more"}, existing="update")
    wanted = {one: VALUES[one] for one in range(100)} | {3: b"new", 1000: b"more"}
    assert dict(shards) == wanted
    assert shards.verify(deep=True).unused_nbytes == 0
    (shard,) = shards.shards_of([3])
    shards.write({3: b"alone"}, existing="replace")
    assert shards.ids_of(shard) == [3]
    assert shards[3] == b"alone"


def test_an_update_gives_the_bytes_of_a_first_write(tmp_path, shards):
    shards.write({one: VALUES[one] for one in VALUES if one % 2})
    shards.write({one: VALUES[one] for one in VALUES if not one % 2}, existing="update")
    once = shardwrite.UInt64Shards(tmp_path / "once", SHARDING)
    once.write(VALUES)
    assert contents(tmp_path / "x") == contents(tmp_path / "once")


def test_an_update_in_a_bucket_reads_old_chunks_together(monkeypatch):
    """Each of them took a request, one after the other."""
    one_file = {**IDENTITY, "minishard_bits": 1, "shard_bits": 0}
    values = {n: bytes([n % 251]) * 400 for n in range(500)}
    shards = shardwrite.UInt64Shards(obstore.store.MemoryStore(), one_file)
    shards.write(values)
    get, asked = obstore.get, []

    def counted(*arguments, **keywords):
        asked.append(arguments)
        return get(*arguments, **keywords)

    monkeypatch.setattr(obstore, "get", counted)
    shards.write({7: b"new", 400: b""}, existing="update")
    shards.remove([8])
    assert len(asked) < 25
    del values[8]
    assert dict(shards) == {**values, 7: b"new", 400: b""}
    assert shards.verify(deep=True).is_good


@pytest.mark.compat
def test_an_update_of_large_ids_that_lie_close_together(tmp_path):
    one_file = {**IDENTITY, "minishard_bits": 0, "shard_bits": 0}
    shards = shardwrite.UInt64Shards(tmp_path / "x", one_file)
    shards.write({2**63 + n: b"old" for n in range(50)})
    shards.write({2**63 + n: b"new" for n in range(10, 40)}, existing="update")
    shards.remove([2**63 + 45])
    assert shards[2**63 + 9] == b"old"
    assert shards[2**63 + 10] == b"new"
    assert len(shards) == 49


@pytest.mark.long
def test_removal(shards):
    shards.write(VALUES)
    assert shards.remove([3, 5, 10**9]).n_shards <= 3
    assert dict(shards) == {one: data for one, data in VALUES.items() if one not in (3, 5)}
    shards.remove(list(VALUES))
    assert dict(shards) == {}
    assert shards.verify(deep=True).is_good
    assert 3 not in shards


def test_values_are_looked_up_late_and_by_several_threads(shards):
    threads, together = set(), threading.Barrier(2)

    class Late(dict):
        def __getitem__(self, one):
            if threading.get_ident() not in threads:
                threads.add(threading.get_ident())
                together.wait(20)
            return super().__getitem__(one)

    shards.write(Late(VALUES), threads=2)
    assert len(threads) == 2
    assert dict(shards) == VALUES


def test_a_value_that_cannot_be_made_leaves_the_other_shards_whole(tmp_path, shards):
    class Broken(dict):
        def __getitem__(self, one):
            if one == 150:
                raise RuntimeError("no such mesh")
            return super().__getitem__(one)

    with pytest.raises(RuntimeError, match="no such mesh"):
        shards.write(Broken(VALUES))
    (missing,) = shards.shards_of([150])
    assert not (tmp_path / "x" / shards.sharding.key_of(missing)).exists()
    assert not list((tmp_path / "x").glob(".*"))
    assert shards.verify(deep=True).is_good
    assert shards.write(VALUES, existing="keep").n_shards >= 1
    assert dict(shards) == VALUES


@pytest.mark.long
@pytest.mark.parametrize("durability", ["full", "batch"])
def test_a_killed_call_is_repeated(tmp_path, durability):
    program = f"""
import os, signal, sys, shardwrite
class Dying(dict):
    n = 0
    def __getitem__(self, one):
        Dying.n += 1
        if Dying.n == 120:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(one)
shards = shardwrite.UInt64Shards(sys.argv[1], {SHARDING!r})
shards.write(Dying({VALUES!r}), threads=1, durability={durability!r})
"""
    done = subprocess.run([*python(), "-c", program, str(tmp_path / "x")], check=False)
    assert done.returncode == -signal.SIGKILL
    shards = shardwrite.UInt64Shards(tmp_path / "x", SHARDING)
    found = dict(shards)
    assert (0 < len(found) < len(VALUES)) == (durability == "full")
    assert found.items() <= VALUES.items()
    assert shards.verify(deep=True).is_good
    assert hidden_in(tmp_path / "x")
    shards.write(VALUES, existing="keep")
    assert dict(shards) == VALUES
    assert not hidden_in(tmp_path / "x")


def hidden_in(path):
    return [name for name in os.listdir(path) if name.startswith(".")]


def test_temporaries_that_could_not_be_removed_go_with_the_next_call(tmp_path, shards, monkeypatch):
    class Broken(dict):
        def __getitem__(self, one):
            raise RuntimeError("no such mesh")

    def failing(path, **_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    shards.write({7: b"seven"})
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", failing)
        with pytest.raises(RuntimeError, match="no such mesh"):
            shards.write(Broken({8: b""}), existing="update")
    assert hidden_in(tmp_path / "x")
    shards.remove([])
    assert not hidden_in(tmp_path / "x")
    assert dict(shards) == {7: b"seven"}


@pytest.mark.parametrize("age", [0, 3600 * 24 * 3])
def test_temporaries_of_writers_that_are_alive_stay(tmp_path, shards, age):
    """Nobody touches a temporary while a value is made, which may take days."""
    program = f"""
import sys, shardwrite
class Slow(dict):
    def __getitem__(self, one):
        print("begun", flush=True)
        sys.stdin.readline()
        return super().__getitem__(one)
shardwrite.UInt64Shards(sys.argv[1], {SHARDING!r}).write(Slow({{7: b"seven"}}), threads=1)
"""
    ids = {shard: part[0] for shard, part in shards.shards_of(range(100)).items()}
    (mine,) = shards.shards_of([7])
    arguments = [*python(), "-c", program, str(tmp_path / "x")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(arguments, **pipes) as other:
        assert other.stdout.readline() == "begun\n"
        (name,) = hidden_in(tmp_path / "x")
        old = os.stat(tmp_path / "x" / name).st_mtime - age
        os.utime(tmp_path / "x" / name, (old, old))

        class WithCallsAmid(dict):
            def __getitem__(self, one):
                shards.remove([])
                return super().__getitem__(one)

        rest = {one: b"mine" for shard, one in ids.items() if shard != mine}
        shards.write(WithCallsAmid(rest), threads=2)
        assert hidden_in(tmp_path / "x") == [name]
        other.communicate("go\n")
    assert other.returncode == 0
    assert dict(shards) == {**rest, 7: b"seven"}
    assert not hidden_in(tmp_path / "x")


def test_temporaries_of_other_hosts_go_after_a_day(tmp_path, shards):
    """So do directories by which objects of the obsolete format are removed, but no links."""
    shards.write({7: b"seven"})
    root, elsewhere = tmp_path / "x", tmp_path / "removed-elsewhere"
    elsewhere.mkdir()
    (elsewhere / "removed-1").write_bytes(b"data")
    signed = "elsewhere,boot,4026531836,12,34.swtmp"
    (root / f".0.shard.one,{signed}").write_bytes(b"young")
    for name in (f".0.shard.two,{signed}", ".0.shard.three.0.swtmp", f".obsolete-five,{signed}"):
        if "obsolete" in name:
            (root / name).mkdir()
            (root / name / "removed-1").write_bytes(b"old")
        else:
            (root / name).write_bytes(b"old")
        os.utime(root / name, (0, 0))
    (root / f".obsolete-four,{signed}").symlink_to(elsewhere)
    os.utime(root / f".obsolete-four,{signed}", (0, 0), follow_symlinks=False)
    shards.remove([7])
    assert sorted(hidden_in(root)) == [f".0.shard.one,{signed}", ".0.shard.three.0.swtmp"]
    assert [file.name for file in elsewhere.iterdir()] == ["removed-1"]


def test_another_writer_is_noticed(shards):
    shards.write(VALUES)

    class Slow(dict):
        def __getitem__(self, one):
            other = shardwrite.UInt64Shards(shards._files.store, SHARDING)
            other.write({3: b"other"}, existing="update", threads=1)
            return super().__getitem__(one)

    with pytest.raises(StoreError, match="another writer") as caught:
        shards.write(Slow({3: b"mine"}), existing="update")
    assert caught.value.errno == errno.ESTALE
    assert shards[3] == b"other"


def test_two_first_writers(shards):
    class Slow(dict):
        def __getitem__(self, one):
            if one not in shards:
                other = shardwrite.UInt64Shards(shards._files.store, SHARDING)
                other.write({3: b"other"}, threads=1)
            return super().__getitem__(one)

    with pytest.raises(StoreError, match="another writer"):
        shards.write(Slow({3: b"mine"}))
    assert shards[3] == b"other"


def test_a_reader_sees_what_was_replaced(shards):
    shards.write(VALUES)
    assert shards[3] == VALUES[3]
    shardwrite.UInt64Shards(shards._files.store, SHARDING).write(
        {3: b"x" * 1000}, existing="update"
    )
    assert shards[3] == b"x" * 1000


def test_a_shard_that_is_replaced_amid_a_read_is_told_and_read_again(monkeypatch):
    shards = shardwrite.UInt64Shards(MemoryStore(), SHARDING)
    shards.write(VALUES)
    plain = MemoryStore.capabilities - {Capability.SNAPSHOT}
    with monkeypatch.context() as patched:
        patched.setattr(MemoryStore, "capabilities", plain)
        patched.setattr(MemoryStore, "version", lambda self, key: "another")
        with pytest.raises(StoreError, match="replaced while it was read; read it again") as told:
            shards[3]
        assert told.value.errno == errno.ESTALE
    assert shards[3] == VALUES[3]


def test_a_shard_of_the_same_size_and_time_is_another_one(tmp_path):
    others = {1: b"aaaa", 2: b"bb"}, {1: b"xx", 2: b"yyyy"}
    for name, values in zip("ab", others, strict=True):
        shardwrite.UInt64Shards(tmp_path / name, IDENTITY).write(values)
    shards, path = shardwrite.UInt64Shards(tmp_path / "a", IDENTITY), tmp_path / "a" / "0.shard"
    assert shards.read([1, 2]) == others[0]
    times = path.stat()
    path.write_bytes((tmp_path / "b" / "0.shard").read_bytes())
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as copies with times do
    assert shards.read([1, 2]) == others[1]


class Counting:
    """A store that counts what is read."""

    def __init__(self, store):
        self.store, self.reads = store, []

    def open(self, key):
        reader = self.store.open(key)
        read, reads = reader.read, self.reads

        class Counted:
            nbytes, version, identity = reader.nbytes, reader.version, reader.identity

            def read(self, offset, nbytes):
                reads.append(nbytes)
                return read(offset, nbytes)

            def __enter__(self):
                return self

            def __exit__(self, *error):
                reader.__exit__(*error)

        return Counted()

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_a_chunk_costs_three_reads_and_then_one(tmp_path, monkeypatch):
    monkeypatch.setattr(looking, "SETTLED_NS", -(2**62))  # so that files count as old at once
    shards = shardwrite.UInt64Shards(tmp_path, {**IDENTITY, "minishard_bits": 16})
    shards.write({7: b"seven", 9: b"nine", 2**16 + 7: b"too", 2**19 + 9: b"more"})
    shards._files.store = counting = Counting(shards._files.store)
    assert shards[7] == b"seven"
    assert counting.reads == [16, 24, 5]
    del counting.reads[:]
    assert shards[7] == b"seven"
    assert counting.reads == [5]
    small = shardwrite.UInt64Shards(tmp_path, shards.sharding, cache_limit=1)
    assert [small[7], small[7]] == [b"seven"] * 2
    monkeypatch.undo()
    del counting.reads[:]
    assert shards.read([9, 2**19 + 9]) == {9: b"nine", 2**19 + 9: b"more"}
    assert counting.reads == [16, 48, 4, 4], "of a file that was changed just now, once in a call"


def test_cost_follows_the_chunks(tmp_path):
    """The index of 32 MiB has two entries. It is a hole in the file, where there are holes."""
    shards = shardwrite.UInt64Shards(tmp_path, {**IDENTITY, "minishard_bits": 21})
    shards.write({0: b"x", 2**20: b"y"}, durability="none")
    assert (tmp_path / "0.shard").stat().st_size == 2**25 + 2 + 48
    assert dict(shards) == {0: b"x", 2**20: b"y"}


def as_pairs(path):
    """Cut the shards in a directory into the two files of the obsolete format."""
    for file in path.iterdir():
        data = file.read_bytes()
        file.with_suffix(".index").write_bytes(data[:64])
        file.with_suffix(".data").write_bytes(data[64:])
        file.unlink()


def obsolete_in(path):
    return sorted(file.name for file in path.iterdir() if file.suffix != ".shard")


@pytest.mark.long
def test_the_obsolete_pair_is_read_and_replaced(tmp_path, shards):
    shards.write(VALUES)
    as_pairs(tmp_path / "x")
    before = obsolete_in(tmp_path / "x")
    assert dict(shards) == VALUES
    assert shards.verify(deep=True).is_good
    with pytest.raises(StoreError, match="exist"):
        shards.write({3: b"new"})
    assert obsolete_in(tmp_path / "x") == before
    for durability in ("full", "batch", "none"):
        shards.write({3: b"new"}, existing="update", durability=durability)
        assert dict(shards) == {**VALUES, 3: b"new"}
    (shard,) = shards.shards_of([3])
    after = [name for name in before if not name.startswith(f"{shard}.")]
    assert obsolete_in(tmp_path / "x") == after
    assert shards.verify(deep=True) == shards.verify()
    assert len(after) == len(before) - 2
    shards.write(VALUES, existing="replace")
    assert not obsolete_in(tmp_path / "x")
    assert dict(shards) == VALUES


def test_an_obsolete_pair_beside_its_shard_is_told(tmp_path, shards):
    """A call that was killed between writing a shard and removing the pair leaves both."""
    shards.write(VALUES)
    as_pairs(tmp_path / "x")
    pairs = {file: file.read_bytes() for file in (tmp_path / "x").iterdir()}
    shards.write({3: b"new"}, existing="update")
    for file, data in pairs.items():
        file.write_bytes(data)
    (warning,) = (report := shards.verify(deep=True)).warnings
    assert report.is_good
    assert "2 objects of the obsolete format" in warning
    assert re.search("warning +2 objects", str(report))
    name = warning.split("'")[1]
    assert name.endswith(".data")
    for ending in (".index", ".data"):  # as the warning says
        (tmp_path / "x" / name).with_suffix(ending).unlink()
    assert not shards.verify().warnings
    assert dict(shards) == {**VALUES, 3: b"new"}


@pytest.mark.parametrize("lost", [".index", ".data"])
def test_half_of_an_obsolete_pair(tmp_path, shards, lost):
    """With the index lost, the shard was not missed."""
    shards.write(VALUES)
    as_pairs(tmp_path / "x")
    (shard,) = shards.shards_of([3])
    (tmp_path / "x" / f"{shard}{lost}").unlink()
    (problem,) = shards.verify().problems
    assert f"'{shard}{lost}' is missing" in problem[1]
    for look in (list, len, lambda shards: shards[3]):
        with pytest.raises(StoreError, match=f"'{shard}{lost}' is missing"):
            look(shards)
    with pytest.raises(StoreError, match="is missing"):
        shards.write({3: b"new"}, existing="update")
    shards.write({3: b"new"}, existing="replace")
    assert shards[3] == b"new"
    assert not any(name.startswith(f"{shard}.") for name in obsolete_in(tmp_path / "x"))
    assert shards.verify(deep=True).is_good


def test_a_pair_that_is_removed_while_it_is_opened(tmp_path, shards, monkeypatch):
    shards.write(VALUES)
    as_pairs(tmp_path / "x")
    opened = seams.real("open an object")

    def late(store, key):
        if key.endswith(".index"):
            monkeypatch.setattr(*seams.step("open an object"), opened)
            shardwrite.UInt64Shards(store, SHARDING).write({3: b"new"}, existing="update")
        return opened(store, key)

    monkeypatch.setattr(*seams.step("open an object"), late)
    assert shards[3] == b"new"


@pytest.mark.parametrize("keeps_pairs", [False, True])
def test_shards_in_a_bucket_are_changed(keeps_pairs):
    """Each change was made, and then refused as if another process had made it."""
    bucket = obstore.store.MemoryStore()
    shards = shardwrite.UInt64Shards(bucket, SHARDING)
    # Ends of objects are kept by a reader, unless they are all of it.
    values = {one: np.random.default_rng(one % 1000).bytes(1000 * (one % 9)) for one in VALUES}
    shards.write(values)
    if keeps_pairs:
        for number in range(8):
            data = bytes(obstore.get(bucket, f"{number}.shard").bytes())
            obstore.put(bucket, f"{number}.index", data[:64])
            obstore.put(bucket, f"{number}.data", data[64:])
            obstore.delete(bucket, f"{number}.shard")
    other = shardwrite.UInt64Shards(bucket, SHARDING)
    assert dict(other) == values  # and it keeps the indexes
    assert shards.write({3: b"new", 4: b"too"}, existing="update").n_chunks == 2
    shards.remove([5, 6, 7])
    left = {one: value for one, value in values.items() if one not in (5, 6, 7)}
    assert dict(other) == {**left, 3: b"new", 4: b"too"}
    shards.write(values, existing="replace")
    assert shards.read([3]) == {3: values[3]}
    assert 5 in other
    assert dict(other) == values
    other.write({3: b""}, existing="update")  # of shards whose ends it has kept
    assert dict(shards) == {**values, 3: b""}
    assert len(obstore.list(bucket).collect()) == 8


def test_workers_have_a_copy(shards):
    shards.write(VALUES)
    copy = pickle.loads(pickle.dumps(shards))
    assert (dict(copy), copy.sharding) == (VALUES, shards.sharding)
    assert "hash='murmurhash3_x86_128'" in repr(copy)


def test_ids_of_many_types(shards):
    shards.write(
        {np.uint64(2**64 - 1): b"a", np.int8(3): bytearray(b"b"), 4: np.arange(3, dtype="u1")}
    )
    assert dict(shards) == {2**64 - 1: b"a", 3: b"b", 4: b"\0\1\2"}
    assert shards.read(np.array([3, 4], "u2")) == {3: b"b", 4: b"\0\1\2"}
    assert sorted(one for ids in shards.shards_of([1, 2, 2]).values() for one in ids) == [1, 2]


@pytest.mark.parametrize(
    "shard", [None, 1.5, b"x", "1", True, -1, 2**64, np.array([1, 2])], ids=repr
)
def test_numbers_of_shards_that_are_refused(shards, shard):
    with pytest.raises(SpecError, match="not a number of 64 bits") as caught:
        shards.ids_of(shard)
    assert caught.value.fields["field"] == "shard"


@pytest.mark.parametrize("ids", [np.array(5), np.array(5, "u8"), 5, "5", None], ids=repr)
def test_what_is_no_collection_of_ids(shards, ids):
    for call in (shards.read, shards.remove, shards.shards_of):
        with pytest.raises(SpecError, match="no collection of ids"):
            call(ids)


@pytest.mark.parametrize(
    ("values", "more", "message"),
    [
        ({1: b""}, {"existing": np.array(["keep", "update"])}, "an array, and not one value"),
        ({-1: b""}, {}, "not an id"),
        ({2**64: b""}, {}, "not an id"),
        ({1.0: b""}, {}, "not an id"),
        ({True: b""}, {}, "not an id"),
        ({"1": b""}, {}, "not an id"),
        ({1: "text"}, {}, "no contiguous bytes"),
        ({1: None}, {}, "no contiguous bytes"),
        ({1: np.arange(8, dtype="u1")[::2]}, {}, "no contiguous bytes"),
        ({1: b""}, {"existing": "merge"}, "use one of"),
        ({1: b""}, {"durability": "some"}, "use one of"),
        ({1: b""}, {"threads": 0}, "give 1 or more"),
        ({1: b""}, {"threads": True}, "give 1 or more"),
    ],
)
def test_what_is_refused(tmp_path, shards, values, more, message):
    with pytest.raises(SpecError, match=message):
        shards.write(values, **more)
    assert not list(tmp_path.rglob("*.shard"))


def test_sizes_that_are_refused(tmp_path):
    huge = shardwrite.UInt64Shards(tmp_path / "x", {**IDENTITY, "minishard_bits": 40})
    for call in (lambda: huge.write({1: b""}), huge.verify):
        with pytest.raises(SpecError, match="17592186044416 bytes"):
            call()
    many = shardwrite.UInt64Shards(tmp_path / "x", IDENTITY, index_limit=100)
    with pytest.raises(SpecError, match="give more minishard_bits"):
        many.write(dict.fromkeys(range(0, 2000, 32), b""))
    with (
        dask.config.set({"shardwrite.read.chunk-limit": "1 kB"}),
        pytest.raises(SpecError, match="readers take 1000"),
    ):
        many.write({1: bytes(1001)})
    with pytest.raises(SpecError, match="not a positive number"):
        shardwrite.UInt64Shards(tmp_path / "x", IDENTITY, cache_limit="none")
    assert not list(tmp_path.rglob("*.shard"))


def test_an_update_that_makes_an_index_too_large_changes_nothing(tmp_path):
    ids = np.arange(0, 32 * 10, 32).tolist()  # all of one minishard, whose index takes 240 bytes
    shards = shardwrite.UInt64Shards(tmp_path / "x", IDENTITY, index_limit=250)
    shards.write(dict.fromkeys(ids[:6], b"old"))
    before = contents(tmp_path / "x")
    shards.write(dict.fromkeys(ids[:6], b"old"), existing="update")
    with pytest.raises(SpecError, match="264 bytes, and 250 are allowed"):
        shards.write(dict.fromkeys([*ids[6:], 32 * 10], b"new"), existing="update")
    assert contents(tmp_path / "x") == before
    shards.write(dict.fromkeys(ids[6:], b"new"), existing="update")
    assert len(shards) == len(ids)


def test_a_shard_that_is_removed_while_shards_are_checked(tmp_path, monkeypatch):
    shards = shardwrite.UInt64Shards(tmp_path / "x", IDENTITY)
    shards.write(VALUES)
    numbers = UInt64ShardFiles.numbers

    def then_one_is_removed(files):
        found = numbers(files)
        (tmp_path / "x" / files.sharding.key_of(found[0])).unlink()
        return found

    monkeypatch.setattr(UInt64ShardFiles, "numbers", then_one_is_removed)
    report = shards.verify(threads=1)
    assert [what for _, what in report.problems] == ["was removed during the check"]


def damaged(tmp_path, data, sharding=IDENTITY):
    (tmp_path / "0.shard").write_bytes(data)
    return shardwrite.UInt64Shards(tmp_path, sharding, index_limit="1 MiB")


def one_minishard(*columns, data=b"", entry=None):
    index = struct.pack(f"<{3 * len(columns[0])}Q", *(x for column in columns for x in column))
    entry = (len(data), len(data) + len(index)) if entry is None else entry
    return struct.pack("<8Q", *entry, *[0] * 6) + data + index


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too few for an index"),
        (one_minishard([], [], [], entry=(5, 4)), "ends before it starts"),
        (one_minishard([], [], [], entry=(0, 2**63)), "past the end"),
        (one_minishard([], [], [], entry=(2**64 - 24, 2**64 - 1)), "past the end"),
        (one_minishard([0], [0], [2**63], data=b"x"), "past the end"),
        (one_minishard([0], [2**64 - 64], [8], data=b"x"), "past the end"),
        (one_minishard([0, 32], [0, 2**64 - 3], [2, 2], data=b"xyz"), "past the end"),
        (one_minishard([0, 32], [0, 2**64 - 1], [2, 2], data=b"xyz"), "overlaps another"),
        (one_minishard([0], [0], [3], data=b"x"), "overlaps another"),
        (one_minishard([1], [0], [1], data=b"x"), "belongs elsewhere"),
        (one_minishard([4], [0], [1], data=b"x"), "belongs elsewhere"),
        (one_minishard([0, 0], [0, 0], [1, 0], data=b"x"), "twice"),
    ],
)
def test_damage_is_found(tmp_path, data, message):
    shards = damaged(tmp_path, data)
    ((key, found),) = shards.verify().problems
    assert key == "0.shard"
    assert message in found


def test_entries_with_the_same_bytes_are_good(tmp_path):
    shards = damaged(tmp_path, one_minishard([0, 32], [0, 2**64 - 1], [1, 1], data=b"x"))
    assert shards.verify(deep=True).is_good
    assert dict(shards) == {0: b"x", 32: b"x"}


def test_two_minishards_with_one_index(tmp_path):
    data = bytearray(one_minishard([0], [0], [1], data=b"x"))
    data[16:32] = data[:16]
    ((_, found),) = damaged(tmp_path, bytes(data)).verify().problems
    assert "overlaps another" in found


def test_bombs_do_not_fill_the_memory(tmp_path):
    bomb = gzip.compress(bytes(2 * 10**7))
    zipped = {**IDENTITY, "minishard_index_encoding": "gzip", "data_encoding": "gzip"}
    shards = damaged(tmp_path, struct.pack("<8Q", 0, len(bomb), *[0] * 6) + bomb, zipped)
    assert "gzip" in shards.verify().problems[0][1]
    with pytest.raises(CorruptShardError, match="gzip"):
        shards[0]
    with dask.config.set({"shardwrite.read.chunk-limit": "1 MB"}):
        indexed = {**zipped, "minishard_index_encoding": "raw"}
        shards = damaged(tmp_path, one_minishard([0], [0], [len(bomb)], data=bomb), indexed)
        assert shards.verify().is_good
        assert "gzip" in shards.verify(deep=True).problems[0][1]
        large = damaged(tmp_path, one_minishard([0], [0], [10**6 + 1], data=bytes(10**6 + 1)))
        with pytest.raises(CorruptShardError, match="chunk-limit"):
            large[0]


def test_a_sparse_file_of_terabytes(tmp_path):
    """The file claims an index of 2^41 bytes and has room for it."""
    shards = damaged(tmp_path, struct.pack("<8Q", 0, 2**41, *[0] * 6))
    os.truncate(tmp_path / "0.shard", 2**42)
    assert "index_limit" in shards.verify().problems[0][1]
    with pytest.raises(CorruptShardError, match="index_limit"):
        shards[0]
    with pytest.raises(CorruptShardError, match="index_limit"):
        shards.write({0: b""}, existing="update")
    assert (tmp_path / "0.shard").stat().st_size == 2**42


def test_truncated_and_flipped_shards_never_give_wrong_ids(tmp_path):
    values = {one: bytes([one]) * one for one in range(0, 60, 3)}
    shards = shardwrite.UInt64Shards(tmp_path, {**SHARDING, "shard_bits": 0})
    shards.write(values)
    whole = (tmp_path / "0.shard").read_bytes()
    rng = np.random.default_rng(0)
    n_found = 0
    for _ in range(60):
        data = bytearray(whole[: rng.integers(len(whole) // 2, len(whole) + 1)])
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        (tmp_path / "0.shard").write_bytes(data)
        n_found += not shards.verify(deep=True).is_good
        try:
            found = shards.read(values)
        except CorruptShardError:
            continue
        assert found.items() <= values.items()
    assert n_found > 45


def test_foreign_files(tmp_path, shards):
    shards.write(VALUES)
    (tmp_path / "x" / "12.shard").write_bytes(b"")
    (tmp_path / "x" / "notes.txt").write_bytes(b"")
    (tmp_path / "x" / "below").mkdir()
    (tmp_path / "x" / "below" / "0.shard").write_bytes(b"")
    assert dict(shards) == VALUES
    (problem,) = shards.verify().problems
    assert problem[0] == "12.shard"


def test_storage_that_fails(tmp_path, monkeypatch):
    shards = shardwrite.UInt64Shards(tmp_path, SHARDING)
    monkeypatch.setattr(
        os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full"))
    )
    with pytest.raises(StoreError, match="full"):
        shards.write(VALUES)
    assert not list(tmp_path.iterdir())
    assert isinstance(shards._files.store, PosixStore)


def test_shards_that_cannot_be_read_are_problems(shards, tmp_path):
    """A link and a directory were passed over by verify and len, and reading them failed."""
    shards.write(VALUES)
    root = tmp_path / "x"
    (root / "1.shard").rename(tmp_path / "elsewhere")
    (root / "1.shard").symlink_to(tmp_path / "elsewhere")
    (root / "2.shard").unlink()
    (root / "2.shard").mkdir()
    (root / "3.shard").unlink()
    (root / "3.shard").symlink_to(tmp_path / "nothing")
    (root / "other.shard").mkdir()
    for deep in (False, True):
        report = shards.verify(deep=deep)
        assert [key for key, _ in report.problems] == ["1.shard", "2.shard", "3.shard"]
        assert report.n_shards == 8
    assert "symbolic link" in str(report) or "link" in str(report)
    for look in (len, list):
        with pytest.raises(StoreError, match=r"1\.shard"):
            look(shards)


def test_values_that_are_no_mapping(shards, tmp_path):
    for values in (None, 5, [1, 2], b"12", {1, 2}):
        with pytest.raises(SpecError, match=r"values=.*not a mapping; give a mapping of ids"):
            shards.write(values)
    for ids in (5, None, b"12", "12"):
        for look in (shards.remove, shards.read, shards.shards_of):
            with pytest.raises(SpecError, match=r"ids=.*give several ids, such as \[7, 8\]"):
                look(ids)
    assert not (tmp_path / "x").exists()


def test_values_that_are_no_bytes(shards):
    """Of an array of objects, their addresses were written; a date was a ValueError of numpy."""
    released = memoryview(b"abc")
    released.release()
    dates = np.zeros(2, "M8[s]")
    objects = np.array([None, "a"])
    for value in (objects, memoryview(objects), dates, released, np.arange(4)[::2], "text", None):
        with pytest.raises(SpecError, match=r"values=.*chunk 3 is no contiguous bytes; give bytes"):
            shards.write({3: value})
    shards.write({3: np.zeros((0, 3)), 4: np.arange(2, dtype="<u2"), 5: b""})
    assert dict(shards) == {3: b"", 4: b"\0\0\1\0", 5: b""}


def test_a_directory_whose_parents_are_missing_and_its_url(tmp_path):
    url = (tmp_path / "a b" / "c" / "d").as_uri()
    shards = shardwrite.UInt64Shards(url, SHARDING)
    assert not list(shards)
    shards.write({})
    assert not (tmp_path / "a b").exists()
    shards.write(VALUES)
    assert dict(shardwrite.UInt64Shards(tmp_path / "a b" / "c" / "d", SHARDING)) == VALUES


def test_what_has_keys_is_a_mapping(shards):
    """A series of pandas goes over its values, and not over its labels."""
    pd = pytest.importorskip("pandas")
    shards.write(pd.Series({7: b"a", 2**60: b"b"}))
    assert dict(shards) == {7: b"a", 2**60: b"b"}
    keyed = type("Keyed", (), {"keys": lambda _: [9], "__getitem__": lambda *_: b"c"})
    shards.write(keyed(), existing="update")
    assert shards[9] == b"c"


def test_what_holds_no_shards_of_ids(tmp_path):
    """A file was read as if it were empty."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SpecError, match=r"store=.*it is a file.*give that directory"):
        shardwrite.UInt64Shards(tmp_path / "file", SHARDING)
    x = np.ones((8, 8, 8), "u1")
    shardwrite.to_precomputed(x, tmp_path / "v", axes="zyx", resolution=(1e300, 1, 1), key="s")
    assert json.loads((tmp_path / "v/info").read_text())["scales"][0]["resolution"][0] == 1e300
    assert len((tmp_path / "v/info").read_text()) < 1000
    with pytest.raises(SpecError, match="give the directory of a scale, and its sharding"):
        shardwrite.UInt64Shards(tmp_path / "v")
    (scale,) = json.loads((tmp_path / "v/info").read_text())["scales"]
    assert list(shardwrite.UInt64Shards(tmp_path / "v/s", scale["sharding"])) == [0]


def test_one_shard_exists(shards):
    shards.write({7: b"a"})
    with pytest.raises(StoreError, match=r"^1 shard exists, the first is"):
        shards.write({7: b"b"})
    shards.write(VALUES, existing="replace")
    with pytest.raises(StoreError, match=r"^8 shards exist, the first is '0.shard'"):
        shards.write(VALUES)


def test_the_limit_of_the_index_comes_from_the_configuration(tmp_path):
    sharding = {**IDENTITY, "minishard_bits": 4}  # 256 bytes
    with dask.config.set({"shardwrite.precomputed.index-limit": 255}):
        small = shardwrite.UInt64Shards(tmp_path / "x", sharding)
        with pytest.raises(SpecError, match="takes 256 bytes, and 255 are allowed"):
            small.write({1: b"a"})
        shardwrite.UInt64Shards(tmp_path / "x", sharding, index_limit=256).write({1: b"a"})
        with pytest.raises(SpecError, match="raise index_limit"):
            small.verify()
    assert shardwrite.UInt64Shards(tmp_path / "x", sharding).verify().is_good
