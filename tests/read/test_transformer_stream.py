"""A view of the transformer of 2022 as a stream: what is written when, and what a crash leaves."""

from __future__ import annotations

import asyncio
import gc
import pickle
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import zarr
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer
from zarr.storage import LocalStore, MemoryStore

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError

PROTOTYPE = default_buffer_prototype()


class Counting(LocalStore):
    """A directory that counts what is written: each put is one rename."""

    n_puts = n_bytes = 0

    async def set(self, key, value):
        if not key.endswith(".json"):
            self.n_puts += 1
            self.n_bytes += len(value)
        await super().set(key, value)


class Slow(MemoryStore):
    """A store in memory, each call of which lets others go first, and whose puts may fail."""

    fails = False
    n_puts = n_inside = 0

    async def get(self, *args, **kwargs):
        await asyncio.sleep(0)
        value = await super().get(*args, **kwargs)
        await asyncio.sleep(0)
        return value

    async def get_partial_values(self, prototype, key_ranges):
        values = []
        for key, part in key_ranges:
            values.append(await self.get(key, prototype, part))
        return values

    async def set(self, key, value):
        self.n_inside += 1
        assert self.n_inside == 1, "two put the same shard at once"
        await asyncio.sleep(0)
        self.n_inside -= 1
        if self.fails:
            raise OSError("the disk is full")
        self.n_puts += 1
        await super().set(key, value)
        await asyncio.sleep(0)


def data(key, n=0):
    return f"{key}:{n}".encode() * (1 + n % 3)


async def put(view, key, value):
    await view.set(key, Buffer.from_bytes(value))


async def got(view, key):
    value = await view.get(key, PROTOTYPE)
    return None if value is None else value.to_bytes()


async def listed(keys):
    return sorted([key async for key in keys])


def written(tmp_path, shards, side):
    """Chunks are written one by one into shards of `side` x `side` chunks."""
    below = Counting(str(tmp_path / f"{shards} {side}"))
    view = shardwrite.transformer_view(below, (side, side))
    n = shards * side
    values = np.arange(1, n * n + 1, dtype="u4").reshape(n, n).repeat(2, 0).repeat(2, 1)
    with view:
        x = zarr.create_array(view, shape=values.shape, chunks=(2, 2), dtype="u4", compressors=None)
        for i in range(n):
            for j in range(n):
                x[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = values[2 * i, 2 * j]
    assert (zarr.open_array(view, mode="r")[...] == values).all()
    return below, sum(p.stat().st_size for p in below.root.glob("c/**/*") if p.is_file())


@pytest.mark.parametrize(
    ("shards", "side"),
    [(1, 16), *(pytest.param(*each, marks=pytest.mark.long) for each in [(1, 64), (4, 8)])],
)
def test_what_is_written_grows_as_the_number_of_chunks(tmp_path, shards, side):
    """Up to 4,096 chunks, one at a time: each shard is put once, and every byte of it."""
    below, nbytes = written(tmp_path, shards, side)
    assert below.n_puts == shards**2
    assert below.n_bytes == nbytes
    half, _ = written(tmp_path, shards, side // 2)
    assert half.n_puts == shards**2
    assert below.n_bytes == 4 * half.n_bytes, "4 times the chunks, and 4 times the bytes"


@pytest.mark.long
def test_shards_that_are_never_whole_are_written_at_the_end(tmp_path):
    below = Counting(str(tmp_path))
    with shardwrite.transformer_view(below, (8, 8)) as view:
        x = zarr.create_array(view, shape=(20, 20), chunks=(1, 1), dtype="u1", compressors=None)
        for i in range(20):
            x[i] = np.arange(1, 21)
        assert below.n_puts == 4
    assert below.n_puts == 9
    assert (zarr.open_array(view, mode="r")[...] == np.arange(1, 21)).all()


@pytest.mark.parametrize("limit", [3_000, 20_000])
def test_memory_is_bounded(tmp_path, limit):
    """In any order, and with shards that change again, no more waits than was said."""
    below, draw = Counting(str(tmp_path)), random.Random(limit)
    keys = [f"c/{i}/{j}" for i in range(16) for j in range(16)]
    model = {}

    async def main():
        view = shardwrite.transformer_view(below, (4, 4), memory_limit=limit)
        with view:
            for n in range(2_000):
                key = draw.choice(keys)
                model[key] = data(key, n)
                await put(view, key, model[key])
                view._stream.count()
                assert view._stream.nbytes <= limit
            await view.flush()
            assert not view._stream.shards
        for key in keys:
            assert await got(view, key) == model.get(key)

    asyncio.run(main())
    assert below.n_puts < 2_000 / (2 if limit > 10_000 else 1)


@pytest.mark.long
def test_what_was_given_is_there_for_every_view_of_the_process():
    """Values, sizes and keys are those of a store with one object a chunk, at every step."""
    objects, draw = {}, random.Random(7)
    keys = [f"x/c/{i}/{j}" for i in range(6) for j in range(6)]

    async def main():
        model = MemoryStore()
        view = shardwrite.transformer_view(MemoryStore(objects), (3, 3))
        other = shardwrite.transformer_view(MemoryStore(objects), (3, 3))
        with view:
            for step in range(400):
                key, value = draw.choice(keys), Buffer.from_bytes(data("x", step))
                match draw.randrange(9):
                    case 0:
                        for store in (view, model):
                            await store.delete(key)
                    case 1:
                        for store in (view, model):
                            await store.set_if_not_exists(key, value)
                    case 2:
                        for store in (other, model):  # this one writes at once
                            await store.set(key, value)
                    case 3 if await model.exists(key):
                        await view.set_partial_values([(key, 0, b"new")])
                        old = (await model.get(key, PROTOTYPE)).to_bytes()
                        await model.set(key, Buffer.from_bytes(b"new" + old[3:]))
                    case 4 if step % 5 == 0:
                        for store in (view, model):
                            await store.delete_dir("x/c/1")
                    case _:
                        for store in (view, model):
                            await store.set(key, value)
                for store in (view, other, view.with_read_only(True)):
                    assert await got(store, key) == await got(model, key)
                    assert await store.exists(key) == await model.exists(key)
                if step % 25 == 0:
                    for store in (view, other):
                        assert await listed(store.list()) == await listed(model.list())
            for key in await listed(model.list()):
                assert await view.getsize(key) == await model.getsize(key)
            await view.flush()
        below = shardwrite.transformer_view(MemoryStore(objects), (3, 3))
        for key in keys:
            assert await got(below, key) == await got(model, key)

    asyncio.run(main())


def test_outside_of_a_with_statement_a_chunk_is_in_the_store_when_it_is_acknowledged():
    """And chunks that are given at once are written together."""
    below, keys = Slow(), [f"c/{i}/{j}" for i in range(16) for j in range(16)]
    view = shardwrite.transformer_view(below, (16, 16))

    async def one(key):
        await put(view, key, key.encode())
        assert key.encode() in below._store_dict["c/0/0"].to_bytes()

    async def main():
        await asyncio.gather(*(one(key) for key in keys))

    asyncio.run(main())
    assert below.n_puts <= 3
    copy = pickle.loads(pickle.dumps(shardwrite.transformer_view(below, (16, 16)).__enter__()))
    n_before = below.n_puts
    asyncio.run(put(copy, keys[0], b"of a worker"))
    assert copy._store._store_dict["c/0/0"].to_bytes().startswith(b"of a worker")
    assert below.n_puts == n_before, "the copy of a store in memory is another one"


@pytest.mark.parametrize("is_stream", [False, True])
def test_readers_see_old_or_new_values_and_never_parts(is_stream):
    below = Slow()
    view = shardwrite.transformer_view(below, (4,), memory_limit=800)
    keys = [f"c/{i}" for i in range(4)]
    seen, is_done = set(), asyncio.Event()

    async def write():
        for n in range(60):
            draw = random.Random(n)
            await asyncio.gather(*(put(view, k, data(k, n)) for k in draw.sample(keys, 3)))
            await asyncio.sleep(0)
        is_done.set()

    async def read(key, reader):
        good = {None, *(data(key, n) for n in range(60))}
        while not is_done.is_set():
            value = await got(reader, key)
            assert value in good
            seen.add(value)
            await asyncio.sleep(0)

    async def main():
        other = shardwrite.transformer_view(below, (4,))
        readers = [read(key, reader) for key in keys for reader in (view, other)]
        await asyncio.gather(write(), *readers)
        await view.flush()

    if is_stream:
        with view:
            asyncio.run(main())
    else:
        asyncio.run(main())
    assert len(seen) > 60
    assert below.n_puts > 20


def test_a_write_that_fails_changes_nothing():
    below = Slow()
    view = shardwrite.transformer_view(below, (2, 2))
    for key in ("c/0/0", "c/1/1"):
        asyncio.run(put(view, key, b"old"))
    below.fails = True

    async def main():
        several = (put(view, "c/0/0", b"a"), put(view, "c/0/0", b"a"), view.delete("c/0/0"))
        results = await asyncio.gather(*several, return_exceptions=True)
        assert [str(error) for error in results] == ["the disk is full"] * 3
        assert await got(view, "c/0/0") == b"old"
        below.fails = False
        await put(view, "c/0/1", b"new")
        return [await got(view, key) for key in ("c/0/0", "c/0/1")]

    assert asyncio.run(main()) == [b"old", b"new"]


def test_a_write_that_fails_takes_nothing_from_a_stream():
    """Another view fails to replace what a stream has acknowledged."""
    below = Slow()
    view, other = (shardwrite.transformer_view(below, (2,)) for _ in range(2))

    async def main():
        await put(view, "c/0", b"acknowledged")
        below.fails = True
        several = (put(other, "c/0", b"a"), put(other, "c/0", b"b"))
        results = await asyncio.gather(*several, return_exceptions=True)
        assert [type(error) for error in results] == [OSError, OSError]
        assert await got(other, "c/0") == b"acknowledged"
        below.fails = False
        await view.flush()

    with view:
        asyncio.run(main())
    assert below._store_dict["c/0"].to_bytes().startswith(b"acknowledged")


def test_what_a_flush_cannot_write_waits_for_the_next():
    below = Slow()
    view = shardwrite.transformer_view(below, (2,))
    view.__enter__()
    asyncio.run(put(view, "c/0", b"a"))
    asyncio.run(put(view, "c/4", b"b"))
    below.fails = True
    for fail in (lambda: asyncio.run(put(view, "c/1", b"c")), view.close):  # now a shard is whole
        with pytest.raises(OSError, match="the disk is full"):
            fail()
    assert [asyncio.run(got(view, f"c/{i}")) for i in (0, 1, 4)] == [b"a", b"c", b"b"]
    assert not below._store_dict
    below.fails = False
    asyncio.run(view.flush())
    assert sorted(below._store_dict) == ["c/0", "c/2"]
    asyncio.run(put(view, "c/5", b"d"))
    assert b"d" in below._store_dict["c/2"].to_bytes(), "it is no stream any more"


def test_a_damaged_shard_is_told_at_the_flush_and_can_be_removed_or_replaced():
    objects = {key: Buffer.from_bytes(b"torn") for key in ("x/c/0", "y/c/0")}
    view = shardwrite.transformer_view(MemoryStore(objects), (2,))
    with view:
        asyncio.run(put(view, "x/c/0", b"a"))
        with pytest.raises(CorruptShardError) as caught:
            asyncio.run(view.flush())
        assert caught.value.key == "x/c/0"
        for key in ("y/c/0", "y/c/1"):
            asyncio.run(put(view, key, key.encode()))
        assert b"torn" not in objects["y/c/0"].to_bytes(), "all of its chunks are new"
        asyncio.run(view.delete_dir("x"))
    assert list(objects) == ["y/c/0"]


def test_a_coroutine_flushes_before_it_closes():
    objects = {}

    async def main():
        view = shardwrite.transformer_view(MemoryStore(objects), (2,))
        with pytest.raises(SpecError, match=r"await view\.flush\(\) first"), view:
            await put(view, "c/0", b"a")
        await view.flush()
        with view:
            await put(view, "c/1", b"b")
            await view.flush()  # with what is there

    asyncio.run(main())
    assert objects["c/0"].to_bytes().startswith(b"ab")


@pytest.mark.long
def test_nothing_is_kept_of_shards_that_are_written():
    from shardwrite.legacy.view import _shards

    view = shardwrite.transformer_view(MemoryStore(), (2,))
    with view:
        for i in range(100):
            asyncio.run(put(view, f"c/{i}", b"a"))
    gc.collect()
    assert not [key for _, key in _shards if key.startswith("c/")]


CRASH = """
import os, signal, sys
import zarr, shardwrite
view = shardwrite.transformer_view(sys.argv[1], (4,))
with view:
    x = zarr.create_array(view, shape=(64,), chunks=(2,), dtype="u1", fill_value=0)
    x[:20] = 1   # two whole shards, and half of the third
    zarr.core.sync.sync(view.flush())
    x[20:42] = 2  # the rest of the third, two whole shards, and a part of the sixth
    assert (x[:42] > 0).all()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_crash_loses_at_most_what_no_flush_has_written(tmp_path):
    done = subprocess.run([sys.executable, "-c", CRASH, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    view = shardwrite.transformer_view(tmp_path, (4,), read_only=True)
    values = zarr.open_array(view, mode="r")[...]
    assert values.tolist() == [1] * 20 + [0] * 4 + [2] * 16 + [0] * 24
    assert not list(tmp_path.rglob("*.partial"))
