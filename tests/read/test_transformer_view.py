"""The storage transformer of 2022 as a store: every operation of its document, and bad indexes."""

from __future__ import annotations

import asyncio
import pickle
import random

import numpy as np
import pytest
import zarr
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer
from zarr.storage import LocalStore, MemoryStore

import shardwrite
from shardwrite.errors import CorruptShardError, SpecError, StoreError
from shardwrite.legacy.transformer import ChunkKeys
from shardwrite.legacy.view import shard_of

PROTOTYPE = default_buffer_prototype()
EMPTY = 2**64 - 1
_PAST = "past the end|inside the index"


def run(coroutine):
    return asyncio.run(coroutine)


def shard(entries, chunks=b"", n=4):
    """A shard of `n` chunks, of which some have entries in the index."""
    table = np.full((n, 2), EMPTY, "<u8")
    for rank, entry in entries.items():
        table[rank] = entry
    return chunks + table.tobytes()


async def listed(keys):
    return sorted([key async for key in keys])


class Counting(MemoryStore):
    """A store that counts the calls that it gets."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.calls = []

    async def get(self, *args, **kwargs):
        self.calls.append("get")
        return await super().get(*args, **kwargs)

    async def get_partial_values(self, prototype, key_ranges):
        key_ranges = list(key_ranges)
        self.calls.append(key_ranges)
        below = MemoryStore(self._store_dict)
        return await below.get_partial_values(prototype, key_ranges)

    async def set(self, key, value):
        self.calls.append("set")
        await super().set(key, value)


@pytest.fixture
def objects():
    return {}


@pytest.fixture
def below(objects):
    return Counting(objects)


@pytest.fixture
def view(below):
    return shardwrite.transformer_view(below, (2, 2), path="data/root/x")


def put(view, **values):
    for key, value in values.items():
        run(view.set(f"data/root/x/{key.replace('_', '/')}", Buffer.from_bytes(value)))


def got(view, key, wanted=None):
    found = run(view.get(f"data/root/x/{key}", PROTOTYPE, wanted))
    return None if found is None else found.to_bytes()


@pytest.mark.parametrize(
    ("key", "shard_key", "rank"),
    [
        ("a/c/5/3", "a/c/2/0", 7), ("a/c5/3", "a/c2/0", 7), ("a/c.5.3", "a/c.2.0", 7),
        ("a/c5.3", "a/c2.0", 7), ("c/0/0", "c/0/0", 0), ("a/c/c/9/8", "a/c/c/4/2", 4),
    ],
)  # fmt: skip
def test_keys_as_the_document_maps_them(key, shard_key, rank):
    keys = ChunkKeys("", (2, 4))
    place = keys.place(key)
    assert (place.shard, place.rank, keys.chunk_key(shard_key, rank)) == (shard_key, rank, key)
    assert ChunkKeys("data/root", (32, 2)).place("data/root/foo/baz/c96/18").shard.endswith("c3/9")


@pytest.mark.parametrize(
    "key", ["zarr.json", "a/0/1", "c/0", "c/0/1/2", "c/00/1", "c/-1/0", "c/0.1", "c.0/1", "c", "d0/1",
            "cc/0/1", "c/0/" + "9" * 20, "c/0/\u0661"]
)  # fmt: skip
def test_other_keys_pass_through(view, objects, key):
    assert ChunkKeys("", (2, 2)).place(key) is None
    run(view.set(key, Buffer.from_bytes(b"1")))
    run(view.set("c/7/7", Buffer.from_bytes(b"2")))  # outside of the array
    assert sorted(objects) == sorted([key, "c/7/7"])
    assert run(listed(view.list())) == sorted(objects)


def test_written_and_read(view, objects):
    put(view, c0_0=b"abc", c1_1=b"", c3_0=b"defgh", c0_1=b"xyz")
    assert sorted(objects) == ["data/root/x/c0/0", "data/root/x/c1/0"]
    assert objects["data/root/x/c0/0"].to_bytes() == shard(
        {0: (0, 3), 1: (3, 3), 3: (6, 0)}, b"abcxyz"
    )
    put(view, c0_0=b"longer")
    assert [got(view, k) for k in ("c0/0", "c0/1", "c1/1", "c1/0", "c3/0", "c9/9")] == [
        b"longer", b"xyz", b"", None, b"defgh", None
    ]  # fmt: skip
    for wanted, part in [
        (RangeByteRequest(1, 3), b"on"), (RangeByteRequest(4, 99), b"er"), (RangeByteRequest(8, 9), b""),
        (OffsetByteRequest(2), b"nger"), (SuffixByteRequest(2), b"er"), (SuffixByteRequest(99), b"longer"),
    ]:  # fmt: skip
        assert got(view, "c0/0", wanted) == part
    with pytest.raises(SpecError, match="Unexpected byte_range"):
        got(view, "c0/0", (0, 2))
    assert run(view.exists("data/root/x/c0/0"))
    assert not run(view.exists("data/root/x/c1/0"))
    assert run(view.getsize("data/root/x/c0/0")) == 6
    with pytest.raises(FileNotFoundError):
        run(view.getsize("data/root/x/c1/0"))


def test_many_values_are_read_by_two_calls(view, below):
    put(view, c0_0=b"abc", c1_1=b"qq", c3_0=b"defgh")
    run(view.set("meta", Buffer.from_bytes(b"{}")))
    below.calls.clear()
    asked = [("data/root/x/c3/0", None), ("data/root/x/c0/0", RangeByteRequest(0, 1)), ("meta", None),
             ("data/root/x/c0/1", None), ("data/root/x/c8/8", None), ("data/root/x/c1/1", None)]  # fmt: skip
    values = run(view.get_partial_values(PROTOTYPE, asked))
    assert [v and v.to_bytes() for v in values] == [b"defgh", b"a", b"{}", None, None, b"qq"]
    first, second = below.calls
    assert first == [(f"data/root/x/c{s}", SuffixByteRequest(64)) for s in ("1/0", "0/0", "4/4")]
    assert [key for key, _ in second] == [f"data/root/x/c{s}" for s in ("1/0", "0/0")] + [
        "meta", *(f"data/root/x/c{s}" for s in ("0/0", "1/0", "0/0"))
    ]  # fmt: skip
    assert run(view.get_partial_values(PROTOTYPE, [])) == []


def test_partial_values_are_set_with_one_write_for_each_shard(view, below):
    put(view, c0_0=b"abcdef", c0_1=b"xyz")
    run(view.set("meta", Buffer.from_bytes(b"{}")))
    below.calls.clear()
    x = "data/root/x/c"
    run(
        view.set_partial_values(
            [(x + "0/0", 1, b"BC"), (x + "0/0", 5, b"FGH"), (x + "0/1", -1, b"!!"), (x + "1/0", 0, b"n"),
             (x + "2/2", 0, b"m"), ("meta", 1, b"1}"), (x + "1/0", 1, b"ew")]
        )
    )  # fmt: skip
    assert below.calls.count("set") == 3
    values = [got(view, k) for k in ("c0/0", "c0/1", "c1/0", "c2/2")]
    assert values == [b"aBCdeFGH", b"xy!!", b"new", b"m"]
    assert run(view.get("meta", PROTOTYPE)).to_bytes() == b"{1}"
    for start in (9, -9):
        with pytest.raises(SpecError, match="outside of the value"):
            run(view.set_partial_values([(x + "0/0", start, b"q")]))
    with pytest.raises(SpecError, match="which has 0 bytes"):
        run(view.set_partial_values([("gone", 1, b"q")]))
    assert got(view, "c0/0") == b"aBCdeFGH"


@pytest.mark.parametrize(
    ("start", "value", "field"),
    [
        (1.5, b"q", "start"), ("1", b"q", "start"), (None, b"q", "start"), (True, b"q", "start"),
        (np.float64(1), b"q", "start"), (1, "q", "value"), (1, 5, "value"), (1, [1, 2], "value"),
        (1, None, "value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("key", ["data/root/x/c0/0", "meta"])
def test_what_is_no_part_of_a_value_is_refused(view, below, start, value, field, key):
    put(view, c0_0=b"abc")
    run(view.set("meta", Buffer.from_bytes(b"abc")))
    below.calls.clear()
    with pytest.raises(SpecError) as caught:
        run(view.set_partial_values([(key, 0, b"Q"), ("other", 0, b"new"), (key, start, value)]))
    assert (caught.value.field, caught.value.value) == (field, start if field == "start" else value)
    assert "set" not in below.calls
    taken = [memoryview(b"B"), bytearray(b"C"), Buffer.from_bytes(b"D"), np.frombuffer(b"E", "u1")]
    run(view.set_partial_values([(key, np.uint8(n), one) for n, one in enumerate(taken)]))
    assert run(view.get(key, PROTOTYPE)).to_bytes() == b"BCDE"


def test_erased(view, below, objects):
    put(view, c0_0=b"abc", c0_1=b"de", c1_1=b"f", c2_2=b"g", c2_3=b"h")
    run(view.delete("data/root/x/c9/9"))
    run(view.delete("data/root/x/c1/0"))
    below.calls.clear()
    run(view.erase_values([f"data/root/x/{k}" for k in ("c0/0", "c2/2", "c2/3", "c0/1", "c5/5")]))
    assert below.calls.count("set") == 1
    assert objects["data/root/x/c0/0"].to_bytes() == shard({3: (0, 1)}, b"f")
    assert sorted(objects) == ["data/root/x/c0/0"]
    run(view.delete("data/root/x/c1/1"))
    assert not objects


def test_an_object_is_deleted_and_no_directory(tmp_path):
    """A directory of zarr-python would remove all that lies in a directory of that name."""
    view = shardwrite.transformer_view(tmp_path / "x", (2,))
    run(view.set("c/5", Buffer.from_bytes(b"a")))
    run(view.delete("c"))
    assert run(view.exists("c/5"))
    with pytest.raises(SpecError, match="give a list of keys, or use delete"):
        run(view.erase_values("c/5"))
    assert run(view.exists("c/5"))


OUTSIDE = [
    "",
    "/",
    "/x",
    "/c/0",
    "../x",
    "../c/0",
    "x/../../c/0",
    "a//b",
    ".",
    "..",
    "x/.",
    "x\0",
    "c/0/",
]


def test_keys_that_lead_out_of_a_store_never_go_below():
    """They go to no real directory here: the store below only notes what it is asked."""
    told = []

    def noting(name):
        async def note(self, *arguments):
            told.append((name, arguments))

        return note

    async def noting_list(self, *arguments):
        told.append(("list", arguments))
        for nothing in ():
            yield nothing

    changes = (
        "get",
        "get_partial_values",
        "exists",
        "getsize",
        "set",
        "set_if_not_exists",
        "delete",
    )
    members = {name: noting(name) for name in (*changes, "delete_dir", "clear")}
    listings = dict.fromkeys(("list", "list_prefix", "list_dir"), noting_list)
    view = shardwrite.transformer_view(type("Noting", (MemoryStore,), members | listings)(), (2,))
    value = Buffer.from_bytes(b"a")
    for key in OUTSIDE:
        assert run(view.get(key, PROTOTYPE)) is None
        assert run(view.get_partial_values(PROTOTYPE, [(key, None)])) == [None]
        assert not run(view.exists(key))
        with pytest.raises(FileNotFoundError):
            run(view.getsize(key))
        for change in (
            view.set(key, value),
            view.set_if_not_exists(key, value),
            view.set_partial_values([("c/0", 0, b"b"), (key, 0, b"a")]),
        ):
            with pytest.raises(StoreError, match="not a relative path of plain names"):
                run(change)
        run(view.delete(key))
        run(view.erase_values([key, key]))
    for prefix in ("/", "//", "/x", "../", "../x", "a//b", "a/../b", "./", "a/./", "\0", "a\0/"):
        run(view.erase_prefix(prefix))
        run(view.delete_dir(prefix))
        assert run(listed(view.list_prefix(prefix))) == []
        if prefix.strip("/"):
            assert run(listed(view.list_dir(f"{prefix}/"))) == []
    assert told == []


def test_a_prefix_is_a_text(view):
    """It was an AttributeError, or all keys were listed."""
    for ask in (view.list_prefix, view.list_dir):
        with pytest.raises(TypeError, match="`prefix` must be a str"):
            run(listed(ask(5)))
    for erase in (view.erase_prefix, view.delete_dir):
        with pytest.raises(TypeError, match="`prefix` must be a str"):
            run(erase(None))


def test_a_prefix_of_whole_shards_is_handed_on(view, below, objects):
    put(view, c0_0=b"a", c5_5=b"b")
    objects["data/root/x/c0/0"] = Buffer.from_bytes(b"torn")  # nobody looks at it
    run(view.delete_dir("data/root"))
    assert not objects


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "too few for an index of 64"),
        (b"x" * 63, "too few for an index of 64"),
        (shard({0: (0, EMPTY)}, b"abc"), "half empty"),
        (shard({0: (EMPTY, 3)}, b"abc"), "half empty"),
        (shard({0: (0, 4)}, b"abc"), _PAST),
        (shard({0: (5, 40)}, b"abc"), _PAST),
        (shard({0: (90, 1)}, b"abc"), _PAST),
        (shard({0: (2**40, 2**40)}, b"abc"), _PAST),
        (shard({0: (0, 2**63)}, b"abc"), _PAST),
        (shard({0: (2**63, 2**63)}, b"abc"), _PAST),
        (shard({0: (0, 3), 1: (1, 2)}, b"abc"), "overlaps"),
    ],
)
@pytest.mark.parametrize("kind", ["memory", "files", "obstore"])
def test_bad_shards_are_typed_errors(data, message, kind, tmp_path):
    if kind == "obstore":
        obstore = pytest.importorskip("obstore")
        below = zarr.storage.ObjectStore(obstore.store.LocalStore(str(tmp_path)))
    else:
        below = MemoryStore() if kind == "memory" else LocalStore(str(tmp_path))
    view = shardwrite.transformer_view(below, (2, 2))
    run(below.set("c/1/1", Buffer.from_bytes(data)))
    for act in (
        lambda: view.get("c/2/2", PROTOTYPE),
        lambda: view.get_partial_values(PROTOTYPE, [("c/2/2", RangeByteRequest(0, 1))]),
        lambda: view.set("c/3/3", Buffer.from_bytes(b"new")),
    ):
        with pytest.raises(CorruptShardError, match=message) as caught:
            run(act())
        assert caught.value.key == "c/1/1"
    run(view.delete_dir("c"))
    assert run(view.is_empty(""))


def stores(tmp_path):
    """Stores of every kind of zarr-python, by their names."""
    found = {
        "memory": MemoryStore(),
        "files": LocalStore(str(tmp_path / "files")),
        "fsspec": zarr.storage.FsspecStore.from_url(f"memory://{tmp_path}"),
        "wrapped": zarr.storage.WrapperStore(LocalStore(str(tmp_path / "wrapped"))),
    }
    try:
        import obstore
    except ImportError:
        return found
    (tmp_path / "obstore").mkdir()
    for name, store in (
        ("obstore", obstore.store.MemoryStore()),
        ("obstore in files", obstore.store.LocalStore(str(tmp_path / "obstore"))),
    ):
        found[name] = zarr.storage.ObjectStore(store)
    return found


KINDS = ["memory", "files", "fsspec", "wrapped", "obstore", "obstore in files"]


@pytest.fixture(params=KINDS)
def any_store(request, tmp_path):
    found = stores(tmp_path).get(request.param)
    if found is None:
        pytest.skip("obstore is not installed")
    return found


NAMES = ["data/root/x", "data/root/xy", "data/root/g/c/1", "", "c0"]
"""Arrays: some have names that begin alike, or that look like numbers of chunks."""
PREFIXES = [
    "", "/", "//", "data", "data/", "data/root/x", "data/root/x/", "data/root/x/c", "data/root/x/c.",
    "data/root/x/c/", "data/root/x/c/1/", "data/root/x/c/11/", "data/root/x/c/1", "data/root/x/c1/",
    "data/root/x/c1", "data/root/x/c1.", "data/root/x/c.1", "data/root/x/c.12.", "data/root/x/c0/1",
    "data/root/x/c0/1/", "data/root/x/c/0/1/", "data/root/x/c0.1/", "data/root/x/c0/", "data/root/x/c0/1/2",
    "data/root/g/c/1/", "data/root/g/c/", "data/root/g/c/1/c/", "data/root/g/c/1/c1", "meta/root/x.",
    "meta/root/x.array.json", "meta/root/x.array.json/", "meta/root/x", "zarr.json/", "zarr.json", "c",
    "c/", "c0/", "c1", "no/", "data//root/", "data/root/../root/x/", "../", "./", "data/root/x//",
    "data/root/x/c01", "data/root/x/c/\u0661/", "data/root/x/c0/1/2/", "data/root/x/c0.1/2/",
]  # fmt: skip


@pytest.mark.parametrize("style", ["c{}/{}", "c/{}/{}", "c{}.{}", "c.{}.{}"])
def test_listed_and_erased_by_prefix_as_a_store_without_shards(style, any_store):
    """Whatever is done, the view has the keys of a store in memory with one object a chunk."""
    draw = random.Random(f"{style} {type(any_store).__name__}")
    path = draw.choice(["", "", "data/root", "data/root/x", "data/root/g/c/1"])
    view, model = shardwrite.transformer_view(any_store, (2, 3), path=path), MemoryStore()
    # What other keys are is known to the store below, and some stores fail below an object.
    known = [p for p in PREFIXES if path in ("", "data/root") or not p.endswith("/2/")]
    chunks = [(i, j) for i in (0, 1, 12) for j in (1, 3, 10)]
    keys = [f"{name}/{style.format(*c)}".lstrip("/") for c in chunks for name in NAMES]
    keys += ["zarr.json", "meta/root/x.array.json", "meta/root/xy.array.json", "data/root/c0.a/b"]

    async def check(prefixes):
        for prefix in prefixes:
            got, wanted = [await listed(s.list_prefix(prefix)) for s in (view, model)]
            assert got == wanted, prefix
            got, wanted = [await listed(s.list_dir(prefix)) for s in (view, model)]
            assert got == wanted, prefix

    async def main():
        for step, prefix in enumerate(draw.sample(known, 8)):
            for key in keys:
                if draw.random() < 0.5:
                    for store in (view, model):
                        await store.set(key, Buffer.from_bytes(key.encode()))
            if not step:
                await check(known)
            if draw.random() < 0.5:
                await view.delete_dir(prefix)
                await model.delete_dir(prefix)
            else:
                await view.erase_prefix(prefix)
                for key in await listed(model.list_prefix(prefix)):
                    await model.delete(key)
            got, wanted = [await listed(s.list()) for s in (view, model)]
            assert got == wanted, prefix
            for key in wanted:
                assert (await view.get(key, PROTOTYPE)).to_bytes() == key.encode()
        await view.delete_dir("")
        assert await view.is_empty("")

    run(main())


def test_missing_shards_hold_the_fill_value_in_every_store(any_store):
    view = shardwrite.transformer_view(any_store, (2, 2))
    x = zarr.create_array(view, name="x", shape=(8, 8), chunks=(2, 2), dtype="i4", fill_value=7)
    assert (x[...] == 7).all()
    x[4:, 4:] = 7  # removes chunks that are not there
    x[:4, :4] = 5
    wanted = np.full((8, 8), 7)
    wanted[:4, :4] = 5
    np.testing.assert_array_equal(x[...], wanted)
    assert x[7, 7] == 7
    gone, there = "x/c/3/3", "x/c/1/0"

    async def main():
        assert [await view.exists(key) for key in (gone, there)] == [False, True]
        await view.delete(gone)
        await view.erase_values([gone, "x/c/2/3", "x/c/0/3"])
        assert await view.get(gone, PROTOTYPE) is None
        with pytest.raises(FileNotFoundError):
            await view.getsize(gone)
        asked = [gone, there, "x/no.json", "c/9/9", "x/zarr.json", "y/c/0/0"]
        return await view.get_partial_values(PROTOTYPE, [(key, None) for key in asked])

    found = run(main())
    assert [value is None for value in found] == [True, False, True, True, False, True]
    np.testing.assert_array_equal(x[...], wanted)


def test_only_what_is_missing_counts_as_missing(tmp_path):
    class Failing(LocalStore):
        async def get_partial_values(self, prototype, key_ranges):
            raise PermissionError("not yours")

    view = shardwrite.transformer_view(Failing(str(tmp_path)), (2, 2))
    with pytest.raises(PermissionError, match="not yours"):
        run(view.get("c/0/0", PROTOTYPE))


def test_a_directory_is_read_by_two_calls_where_all_is_there(tmp_path, monkeypatch):
    view = shardwrite.transformer_view(tmp_path, (2, 2), path="data/root/x")
    put(view, c0_0=b"a", c2_2=b"b")
    n_calls = []
    of_many = LocalStore.get_partial_values
    monkeypatch.setattr(
        LocalStore, "get_partial_values", lambda *a: n_calls.append(a[2]) or of_many(*a)
    )
    asked = [("data/root/x/c0/0", None), ("data/root/x/c2/2", None)]
    found = run(view.get_partial_values(PROTOTYPE, asked))
    assert [value.to_bytes() for value in found] == [b"a", b"b"]
    assert len(n_calls) == 2


def test_two_views_of_a_store_lose_nothing_of_each_other(any_store):
    x, y = (shardwrite.transformer_view(any_store, (4, 4)) for _ in range(2))
    keys = [f"x/c/{i}/{j}" for i in range(4) for j in range(4)]

    async def main():
        await asyncio.gather(
            *((x, y)[n % 2].set(key, Buffer.from_bytes(key.encode())) for n, key in enumerate(keys))
        )
        return await listed(x.list_prefix("x/c/"))

    assert run(main()) == sorted(keys)


def test_views_share_the_locks_of_what_is_the_same_store(tmp_path):
    """Each pair is made of two objects that stand for the same place."""
    memory = {}
    pairs = [
        [LocalStore(str(tmp_path / "a")), LocalStore(tmp_path / "b" / ".." / "a")],
        [MemoryStore(memory), MemoryStore(memory)],
        [zarr.storage.FsspecStore.from_url(f"memory://{tmp_path}") for _ in range(2)],
    ]
    (tmp_path / "b").mkdir()
    if obstore := stores(tmp_path).get("obstore in files"):
        pairs.append([obstore, zarr.storage.ObjectStore(type(obstore.store)(obstore.store.prefix))])

    async def main():
        locks = [shard_of(store, "c/0/0") for pair in pairs for store in pair]
        assert [a is b for a, b in zip(locks[::2], locks[1::2], strict=True)] == [True] * len(pairs)
        assert len({id(lock) for lock in locks}) == len(pairs)
        assert shard_of(pairs[0][0], "c/0/1") is not locks[0]
        inside = LocalStore(str(tmp_path / "a" / "c"))
        assert shard_of(inside, "0/0") is locks[0]

    run(main())


def test_an_index_that_claims_too_much_is_told_without_a_size_that_is_not_known(tmp_path):
    view = shardwrite.transformer_view(tmp_path, (2, 2))
    run(view._store.set("c/0/0", Buffer.from_bytes(shard({0: (2**63, 2**63)}, b"abc"))))
    with pytest.raises(CorruptShardError, match=r"lies past the end of any shard$"):
        run(view.get("c/0/0", PROTOTYPE))
    with pytest.raises(CorruptShardError, match="lies past the end, 67 bytes"):
        run(view.set("c/0/1", Buffer.from_bytes(b"")))


def test_values_that_are_no_buffers_are_refused_as_in_zarr(view):
    for key in ("data/root/x/c0/0", "other"):
        for method in (view.set, view.set_if_not_exists):
            with pytest.raises(TypeError, match=r"`value` must be a Buffer instance. Got .*bytes"):
                run(method(key, b"x"))


@pytest.mark.parametrize(
    "given",
    [np.int64(2), np.array([2, 2]), [np.int32(2), 2], np.array(2, "u1"), (np.uint8(2),) * 2],
)
def test_integers_of_numpy_are_numbers_of_chunks(given):
    counts = shardwrite.transformer_view(MemoryStore(), given)._keys.counts
    assert counts in ((2,), (2, 2))
    assert {type(n) for n in counts} == {int}


@pytest.mark.compat
def test_zarr_writes_and_reads_through_it(tmp_path):
    values = np.arange(1, 7 * 9 * 5 + 1, dtype="u2").reshape(7, 9, 5)
    view = shardwrite.transformer_view(str(tmp_path), (2, 3, 1), path="g/x")
    x = zarr.create_array(view, name="g/x", shape=values.shape, chunks=(2, 1, 3), dtype="u2")
    x[...] = values  # the chunks of a shard are written at once
    np.testing.assert_array_equal(zarr.open_array(view, path="g/x", mode="r")[...], values)
    assert len(list((tmp_path / "g/x/c").rglob("*/*/*"))) == 2 * 3 * 2
    x.resize((3, 3, 2))
    np.testing.assert_array_equal(x[...], values[:3, :3, :2])
    other = pickle.loads(pickle.dumps(view))
    assert other == view
    assert other != shardwrite.transformer_view(str(tmp_path), (2, 3, 2), path="g/x")
    np.testing.assert_array_equal(zarr.open_array(other, path="g/x")[...], values[:3, :3, :2])
    with pytest.raises(ValueError, match="read-only"):
        run(view.with_read_only(True).set("g/x/c/0/0/0", Buffer.from_bytes(b"")))


def test_shards_without_a_checksum_are_viewed(tmp_path):
    import dask.array as da

    values = np.random.default_rng(0).integers(0, 9, (20, 30), "i4")
    bare = [{"name": "bytes", "configuration": {"endian": "little"}}]
    da.from_array(values).to_sharded_zarr(
        tmp_path / "x", shards=10, chunks=5, index_codecs=bare, strategy="morton"
    )
    view = shardwrite.transformer_view(tmp_path / "x", 2 * (2,), read_only=True)
    inner = zarr.create_array(
        MemoryStore(), shape=values.shape, chunks=(5, 5), dtype="i4",
        compressors=[zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
    )  # fmt: skip

    async def copy():
        async for key in view.list_prefix("c/"):
            await inner.store.set(key, await view.get(key, PROTOTYPE))

    run(copy())
    np.testing.assert_array_equal(inner[...], values)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ((5, 2), "store"), (("", 2), "store"), (("s3://bucket/x", 2), "store"), ((__file__, 2), "store"), ((MemoryStore(), 0), "chunks_per_shard"), ((MemoryStore(), [2, True]), "chunks_per_shard"),
        ((MemoryStore(), "22"), "chunks_per_shard"), ((MemoryStore(), np.array([2.0, 2])), "chunks_per_shard"),
        ((MemoryStore(), np.ones((2, 2), int)), "chunks_per_shard"), ((MemoryStore(), np.int64(-2)), "chunks_per_shard"), ((MemoryStore(), [2**20, 2**20]), "chunks_per_shard"),
    ],
)  # fmt: skip
def test_what_is_refused(arguments, field):
    with pytest.raises(SpecError) as caught:
        shardwrite.transformer_view(*arguments)
    assert caught.value.field == field
    for path in ("/a", "a//b", 5):
        with pytest.raises(SpecError, match="not a path"):
            shardwrite.transformer_view(MemoryStore(), 2, path=path)
