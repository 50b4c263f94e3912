"""Points, orthogonal indices, arrays of the caller, and chunks as they are stored."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
import threading
import urllib.parse
import urllib.request

import dask
import numpy as np
import obstore.store
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from tiers import tried

import shardwrite
from shardwrite import CorruptShardError, SpecError
from shardwrite.encode import reader
from shardwrite.read import selection

SHAPE, SHARDS, CHUNKS = (9, 7, 60), (4, 4, 20), (2, 2, 5)
VALUES = np.arange(9 * 7 * 60, dtype="i4").reshape(SHAPE)
VALUES[:4, :4, 20:40] = 0  # a shard without an object
VALUES[6:8, 2:4, :5] = 0  # an inner chunk without data
LAYOUTS = {
    "sharded": {"shards": SHARDS, "chunks": CHUNKS},
    "index at the start": {"shards": SHARDS, "chunks": CHUNKS, "index_location": "start"},
    "no shards": {"shards": None, "chunks": SHARDS},
    "of 2022": {"shards": SHARDS, "chunks": CHUNKS, "format": "transformer-2022"},
}


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    root = tmp_path_factory.mktemp("kinds")
    for name, layout in LAYOUTS.items():
        shardwrite.to_sharded_zarr(VALUES, root / name, **layout)
    return {name: shardwrite.open_sharded(root / name) for name in LAYOUTS}


@pytest.fixture(scope="module")
def theirs(arrays):
    return zarr.open_array(arrays["sharded"].ref.parameters["path"])


@pytest.fixture
def array(arrays):
    return arrays["sharded"]


def check(arrays, kind, key, wanted):
    for name, array in arrays.items():
        found = getattr(array, kind)[key]
        assert found.shape == np.shape(wanted), (name, key)
        assert found.dtype == VALUES.dtype
        np.testing.assert_array_equal(found, wanted, err_msg=f"{name}: {key}")


# ---- Orthogonal indices and points, as zarr-python and numpy have them


def numbers(n):
    return st.lists(st.integers(-n, n - 1), min_size=0, max_size=6).map(lambda v: np.array(v, int))


def masks(n):
    return st.lists(st.booleans(), min_size=n, max_size=n).map(lambda v: np.array(v, bool))


def slices(n):
    return st.builds(
        slice,
        st.none() | st.integers(-n - 2, n + 2),
        st.none() | st.integers(-n - 2, n + 2),
        st.none() | st.integers(1, n),
    )


def axis(n):
    return numbers(n) | masks(n) | slices(n) | st.integers(-n, n - 1)


orthogonal_keys = st.tuples(*map(axis, SHAPE))


@st.composite
def point_keys(draw):
    if draw(st.booleans()):
        return np.random.default_rng(draw(st.integers(0, 99))).random(SHAPE) < draw(
            st.sampled_from([0, 0.001, 0.3, 1])
        )
    shape = draw(st.sampled_from([(0,), (1,), (5,), (3, 2), (2, 1, 3)]))
    some = np.random.default_rng(draw(st.integers(0, 999)))
    arrays = [some.integers(-n, n, shape) for n in SHAPE]
    if draw(st.booleans()):
        arrays[draw(st.integers(0, 2))] = int(arrays[0][:1].sum() * 0)
    return tuple(arrays)


def as_zarr(arrays, theirs, key):
    check(arrays, "oindex", key, theirs.oindex[key])


def as_points(arrays, theirs, key):
    found = theirs.vindex[key]
    check(arrays, "vindex", key, found)
    np.testing.assert_array_equal(found, VALUES[key])


def test_oindex_gives_what_zarr_python_gives(arrays, theirs):
    tried(30, given(orthogonal_keys), lambda key: as_zarr(arrays, theirs, key))()


@pytest.mark.long
def test_oindex_gives_what_zarr_python_gives_more(arrays, theirs):
    tried(200, given(orthogonal_keys), lambda key: as_zarr(arrays, theirs, key))()


@pytest.mark.long
def test_vindex_gives_what_zarr_python_gives(arrays, theirs):
    tried(30, given(point_keys()), lambda key: as_points(arrays, theirs, key))()


@pytest.mark.long
def test_vindex_gives_what_zarr_python_gives_more(arrays, theirs):
    tried(200, given(point_keys()), lambda key: as_points(arrays, theirs, key))()


@pytest.mark.parametrize(
    "key",
    [np.s_[::-2, [3, 1], ...], np.s_[5:1:-1, 0, 59:2:-7], np.s_[[-1, 0], ::-1, [True] * 60]],
    ids=str,
)
def test_oindex_takes_negative_steps(arrays, key):
    items = [key[0], key[1], slice(None) if key[2] is ... else key[2]]
    listed = [np.atleast_1d(np.arange(n)[item]) for item, n in zip(items, SHAPE, strict=True)]
    wanted = VALUES[np.ix_(*listed)]
    wanted = wanted[tuple(0 if isinstance(item, int) else slice(None) for item in items)]
    check(arrays, "oindex", key, wanted)


def test_lists_for_all_axes_are_points(array):
    key = ([1, 8, -1], [0, 3, 6], 7)
    np.testing.assert_array_equal(array[key], VALUES[key])
    mask = VALUES % 7 == 3
    np.testing.assert_array_equal(array[mask], VALUES[mask])
    assert array.vindex[1, 2, 3] == VALUES[1, 2, 3]
    assert array.vindex[1, 2, 3].shape == ()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("vindex", np.s_[:, [1], [2]]),
        ("vindex", ([1], [2])),
        ("vindex", ([1, 2], [1, 2, 3], 0)),
        ("vindex", ([9], [0], [0])),
        ("vindex", np.ones((9, 7), bool)),
        ("vindex", np.ones((9, 7, 61), bool)),
        ("vindex", ([1.5], [0], [0])),
        ("oindex", ([[1, 2], [3, 4]],)),
        ("oindex", (np.ones(8, bool),)),
        ("oindex", ([9],)),
        ("oindex", (0, 0, 0, 0)),
        ("oindex", ("a",)),
    ],
    ids=str,
)
def test_what_neither_takes(array, kind, key):
    with pytest.raises(IndexError):
        getattr(array, kind)[key]


def test_lists_for_two_axes_beside_a_slice_are_refused(array):
    """numpy, zarr-python and dask give three different results."""
    with pytest.raises(IndexError, match="oindex takes each axis by itself, and vindex"):
        array[[1, 2], [3, 4], :]


@pytest.mark.parametrize("listed", [[2, 0], [], [True, False] * 3 + [True]], ids=str)
@pytest.mark.parametrize("rest", [np.s_[0], np.s_[:], np.s_[:3], np.int64(-1)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_list_beside_integers_and_slices_is_that_of_numpy_or_refused(arrays, axis, rest, listed):
    """An integer counts as a list for numpy, and a slice between the two moves an axis."""
    n = SHAPE[axis]
    listed = (listed * 9)[:n] if len(listed) > 2 else listed
    for number in (0, np.s_[:], np.s_[::-2]):
        others = [rest, number]
        key = (*others[:axis], listed, *others[axis:])
        kinds = "".join("s" if isinstance(item, slice) else "i" for item in key)
        if kinds == "isi" and axis == 2:
            for array in arrays.values():
                with pytest.raises(IndexError, match="oindex leaves each axis where it is"):
                    array[key]
        else:
            for array in arrays.values():
                found = array[key]
                assert found.shape == VALUES[key].shape, key
                np.testing.assert_array_equal(found, VALUES[key])


def test_only_chunks_with_wanted_elements_are_read(tmp_path):
    """Elements far apart: every chunk between them is damaged, and nobody notices."""
    path = tmp_path / "x"
    values = np.arange(4096, dtype="i4")
    shardwrite.to_sharded_zarr(values, path, shards=4096, chunks=16, compressors="zstd")
    array = shardwrite.open_sharded(path)
    wanted = {0, 100, 255}
    data = bytearray((path / "c" / "0").read_bytes())
    for n in set(range(256)) - wanted:
        _, offset, nbytes = array.encoded_range((n,))
        data[offset : offset + nbytes] = bytes(nbytes)
    (path / "c" / "0").write_bytes(data)
    listed = [4095, 0, 1600, 3]
    np.testing.assert_array_equal(array[listed], values[listed])
    np.testing.assert_array_equal(array.oindex[listed], values[listed])
    np.testing.assert_array_equal(array.vindex[listed], values[listed])
    np.testing.assert_array_equal(array[:3200:1600], values[:3200:1600])
    with pytest.raises(CorruptShardError):
        array[16]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("basic", np.s_[:3, 1, 4:6]),
        ("basic", np.s_[5:5]),
        ("basic", np.s_[::-5, ::4, 7::11]),
        ("orthogonal", np.s_[[8, 0, 1], [True] * 3 + [False] * 4, 59]),
        ("orthogonal", np.s_[[], :, :]),
        ("points", ([1, 8, 0, 1], [0, 6, 1, 0], [4, 59, 0, 4])),
        ("points", ([], [], [])),
    ],
    ids=str,
)
def test_the_number_of_inner_chunks_of_a_selection(array, kind, key):
    grid = array.metadata.grid
    selected = getattr(selection, kind)(key, grid).selection
    chunks = set()
    for index in selected.shards():
        chunks |= {(index, int(rank)) for rank in selected.part(index).ranks.ravel()}
    assert selected.n_chunks == len(chunks)


@pytest.mark.parametrize("key", [np.s_[:], np.s_[:130]])
def test_one_shard_is_decoded_by_several_threads(tmp_path, monkeypatch, key):
    values = np.random.default_rng(0).random((512, 1024))
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=(512, 1024), chunks=(32, 128))
    meeting, decode = threading.Barrier(2), reader.decode_tile

    def meet(*arguments):
        if meeting is not None and not meeting.broken:
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(30)
                met.append(threading.get_ident())
                meeting.abort()
        return decode(*arguments)

    met = []
    monkeypatch.setattr(reader, "decode_tile", meet)
    with dask.config.set({"shardwrite.read.threads": 3}):
        found = shardwrite.open_sharded(tmp_path / "x")[key]
    np.testing.assert_array_equal(found, values[key])
    assert met


# ---- Arrays of the caller


@pytest.mark.parametrize(
    "key",
    [..., np.s_[2], np.s_[2:7, ::-2, 3], np.s_[[5, 1], :, 7], np.s_[0, 0, 0], np.s_[3:3], np.s_[[[1, 2]]]],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("how", ["plain", "strided", "transposed"])
def test_elements_go_into_an_array_of_the_caller(array, key, how):
    wanted = VALUES[key]
    room = np.full([2 * n for n in wanted.shape], -1, "i4")
    out = room[(..., *(slice(None, None, 2) for _ in wanted.shape))]
    if how == "plain":
        out = np.empty(wanted.shape, "i4")
    elif how == "transposed":
        out = np.empty(wanted.shape[::-1], "i4").T
    assert array.read(key, out=out) is out
    np.testing.assert_array_equal(out, wanted)
    assert how != "strided" or (room == -1).sum() == room.size - wanted.size + (wanted == -1).sum()


def test_a_large_array_of_the_caller_is_filled_by_threads(tmp_path):
    values = np.random.default_rng(0).random((256, 1024))
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=64, chunks=16)
    with dask.config.set({"shardwrite.read.threads": 3}):
        out = shardwrite.open_sharded(tmp_path / "x").read(out=np.empty_like(values))
    np.testing.assert_array_equal(out, values)


@pytest.mark.parametrize(
    "out",
    [np.empty((2, 7, 60), "i8"), np.empty((2, 7, 60), ">i4"), np.empty((7, 60), "i4"), [1], 3,
     np.broadcast_to(np.zeros(60, "i4"), (2, 7, 60)), np.ma.zeros((2, 7, 60), "i4")],
    ids=["larger", "swapped", "shape", "list", "number", "not writable", "masked"],
)  # fmt: skip
def test_arrays_of_the_caller_that_do_not_fit(array, out):
    remedy = re.escape("give an array as numpy.empty((2, 7, 60), 'int32') makes it")
    with pytest.raises(SpecError, match=remedy) as caught:
        array.read(np.s_[:2], out=out)
    assert caught.value.fields["field"] == "out"


def test_an_event_loop_goes_on_while_elements_are_read(array):
    async def read():
        out = np.empty((2, 7, 60), "i4")
        async with asyncio.timeout(30):
            return await asyncio.gather(
                array.read_async(np.s_[::2]), array.read_async(np.s_[:2], out=out), asyncio.sleep(0)
            )

    first, second, _ = asyncio.run(read())
    np.testing.assert_array_equal(first, VALUES[::2])
    np.testing.assert_array_equal(second, VALUES[:2])
    with pytest.raises(IndexError):
        asyncio.run(array.read_async(9))


# ---- Chunks as they are stored


def cells(name):
    sizes = SHARDS if name == "no shards" else CHUNKS
    return np.ndindex(*(-(-n // c) for n, c in zip(SHAPE, sizes, strict=True))), sizes


@pytest.mark.parametrize("name", LAYOUTS)
def test_encoded_chunks_and_where_they_lie(arrays, name):
    array = arrays[name]
    there, (positions, sizes) = set(), cells(name)
    for position in positions:
        encoded, lies = array.encoded(position), array.encoded_range(position)
        box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(position, sizes, strict=True))
        assert (encoded is None) == (lies is None) == (not VALUES[box].any())
        if encoded is None:
            continue
        there.add(position)
        url, offset, nbytes = lies
        path = urllib.request.url2pathname(urllib.parse.urlparse(url).path)
        with open(path, "rb") as file:
            file.seek(offset)
            assert file.read(nbytes) == encoded
        chunk = array.metadata.pipeline.decode(encoded)
        inside = tuple(slice(0, n) for n in VALUES[box].shape)
        np.testing.assert_array_equal(chunk[inside], VALUES[box])
    found = array.present()
    assert set(map(tuple, found.coords.tolist())) == there
    np.testing.assert_array_equal(found.coords, shardwrite.present(array).coords)
    assert found.chunks == sizes


@pytest.mark.parametrize("position", [(5, 0, 0), (-1, 0, 0), (0, 0), (0, 0, 12), (0, 0, 0, 0)])
def test_chunks_that_are_none(array, position):
    for method in (array.encoded, array.encoded_range):
        with pytest.raises(IndexError, match="no inner chunk"):
            method(position)


@pytest.mark.parametrize("kind", [zarr.storage.MemoryStore, obstore.store.MemoryStore])
def test_a_store_in_memory_has_no_urls(array, kind):
    store = kind()
    shardwrite.to_sharded_zarr(VALUES, store, shards=SHARDS, chunks=CHUNKS)
    found = shardwrite.open_sharded(store)
    assert found.encoded((4, 3, 0)) == array.encoded((4, 3, 0))
    with pytest.raises(SpecError, match="has no URL; open the array by its path or URL"):
        found.encoded_range((4, 3, 0))


def test_a_damaged_index_is_told(tmp_path):
    shardwrite.to_sharded_zarr(VALUES, tmp_path / "x", shards=SHARDS, chunks=CHUNKS)
    shard = tmp_path / "x" / "c" / "0" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-8] + bytes(8))
    array = shardwrite.open_sharded(tmp_path / "x")
    for method in (array.encoded, array.encoded_range):
        with pytest.raises(CorruptShardError):
            method((0, 0, 0))


def test_arrays_by_index_can_be_pickled(array):
    again = pickle.loads(pickle.dumps(array.oindex))
    np.testing.assert_array_equal(again[[1, 2]], VALUES[[1, 2]])
