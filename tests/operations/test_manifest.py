"""`manifest="nonempty_chunks"`: the list of the chunks that hold data, as an attribute."""

from __future__ import annotations

import base64
import json
import threading
import time
import zlib

import dask
import dask.array as da
import numpy as np
import pytest
import tensorstore
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import AppendOnly, FixedOrder, ShardWriter, SpecError
from shardwrite.cli import main

MANIFEST = {"manifest": "nonempty_chunks"}
LAYOUT = {"shards": 10, "chunks": 5, **MANIFEST}


def values(n=1, shape=(20, 20)):
    """Values that are not zero, except in half of the chunks of five elements."""
    found = np.arange(n, n + np.prod(shape), dtype="u4").reshape(shape)
    is_on = np.random.default_rng(n).random([-(-size // 5) for size in shape]) < 0.5
    return found * is_on.repeat(5, 0).repeat(5, 1)[: shape[0], : shape[1]]


def source(given):
    return da.from_array(given, chunks=7)


def listed(path, name=None):
    opened = zarr.open_group(path, mode="r")[name] if name else zarr.open_array(path, mode="r")
    return opened.attrs["nonempty_chunks"]


def check(path, name=None, given=None):
    """The list is exact, and other readers open the array."""
    keys = listed(path, name)
    assert keys == shardwrite.present(path, name=name).keys
    where = str(path / name) if name else str(path)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": where}}
    found = tensorstore.open(spec, read=True).result().read().result()
    if given is not None:
        np.testing.assert_array_equal(found, given)
    return keys


def consolidated(group, name="x"):
    document = json.loads((group / "zarr.json").read_text())
    return document["consolidated_metadata"]["metadata"][name]["attributes"]["nonempty_chunks"]


@pytest.mark.compat
@pytest.mark.parametrize(
    "keywords", [{}, {"publish": "first"}, {"shards": None}, {"durability": "none"}], ids=str
)
def test_a_new_array(tmp_path, keywords):
    given = values()
    first = source(given).to_sharded_zarr(tmp_path / "x", **LAYOUT | keywords)
    assert 0 < len(check(tmp_path / "x", given=given)) < 16
    again = source(given).to_sharded_zarr(tmp_path / "x", **LAYOUT | keywords)
    assert again.n_resumed_shards >= first.n_shards
    assert check(tmp_path / "x", given=given)


@pytest.mark.long
def test_later_and_in_parts_and_together(tmp_path):
    given = values()
    later = source(given).to_sharded_zarr(tmp_path / "a", compute=False, **LAYOUT)
    dask.compute(later)
    check(tmp_path / "a", given=given)
    plan = shardwrite.plan(source(given), **LAYOUT)
    shardwrite.prepare(source(given), tmp_path / "b", plan)
    for part in range(3):
        shardwrite.write_part(source(given), tmp_path / "b", part, 3)
    shardwrite.finalize(tmp_path / "b")
    check(tmp_path / "b", given=given)
    both = [source(given), source(values(2))]
    shardwrite.store(both, [tmp_path / "c"] * 2, names=["one", "two"], **LAYOUT)
    check(tmp_path / "c", "one", given)
    check(tmp_path / "c", "two", values(2))


def test_an_array_that_is_created_and_filled(tmp_path):
    path = tmp_path / "x"
    shardwrite.create(path, (20, 20), "u4", shards=10, chunks=5, **MANIFEST)
    assert check(path) == []
    source(values()).to_sharded_zarr(path, mode="r+", **MANIFEST)
    check(path, given=values())
    shardwrite.create(tmp_path / "y", (20, 20), "u4", shards=10, chunks=5)
    with pytest.raises(SpecError) as caught:
        source(values()).to_sharded_zarr(tmp_path / "y", mode="a", **MANIFEST)
    assert caught.value.field == "manifest"
    source(values(3)).to_sharded_zarr(path, mode="w", shards=10, chunks=5)
    assert "nonempty_chunks" not in zarr.open_array(path).attrs


@pytest.mark.long
def test_a_store_in_memory_and_a_hierarchy_of_2022(tmp_path):
    store = zarr.storage.MemoryStore()
    source(values()).to_sharded_zarr(store, name="x", run_dir=tmp_path, **LAYOUT)
    shardwrite.write_region(7, store, (slice(3, 12), 4), name="x", run_dir=tmp_path)
    opened = zarr.open_group(store)["x"]
    assert opened.attrs["nonempty_chunks"] == shardwrite.present(store, name="x").keys

    source(values()).to_sharded_zarr(tmp_path / "h", name="x", format="transformer-2022", **LAYOUT)
    shardwrite.write_region(7, tmp_path / "h", (slice(3, 12), 4), name="x")
    document = json.loads((tmp_path / "h/meta/root/x.array.json").read_text())
    found = shardwrite.present(tmp_path / "h", name="x").keys
    assert document["attributes"]["nonempty_chunks"] == found


STRATEGIES = [
    FixedOrder(),
    AppendOnly(),
    FixedOrder(in_place=True, max_unused=1.0),
    AppendOnly(in_place=True),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=str)
@pytest.mark.long
def test_updates(tmp_path, strategy):
    """Chunks appear and disappear, in a group with consolidated metadata."""
    group, path = tmp_path / "g", tmp_path / "g/x"
    zarr.create_group(group)
    given = values()
    source(given).to_sharded_zarr(path, **LAYOUT)
    with pytest.warns(getattr(zarr.errors, "ZarrUserWarning", UserWarning), match="onsolidated"):
        zarr.consolidate_metadata(group)
    rng = np.random.default_rng(0)
    seen = set()
    for n in range(6):
        (a, b), (c, d) = np.sort(rng.integers(0, 21, (2, 2)))
        region = (slice(a, max(b, a + 1)), slice(c, max(d, c + 1)))
        region = tuple(slice(min(s.start, 19), s.stop) for s in region)
        new = values(n)[region] if n % 2 else np.zeros_like(given[region])
        source(new).to_sharded_zarr(path, region=region, strategy=strategy)
        given[region] = new
        seen.add(tuple(check(path, given=given)))
        assert consolidated(group) == listed(path)
    shardwrite.erase(path, (slice(0, 8), slice(5, 20)), strategy=strategy)
    shardwrite.compact(path, above=0)
    given[:8, 5:] = 0
    seen.add(tuple(check(path, given=given)))
    assert consolidated(group) == listed(path)
    assert len(seen) >= 3
    source(values(9, (7, 20))).to_sharded_zarr(path, region="append")
    check(path, given=np.concatenate([given, values(9, (7, 20))]))
    assert consolidated(group) == listed(path)


def test_streams(tmp_path):
    """A flush lists what is visible; the end of the stream makes the list exact."""
    path = tmp_path / "x"
    given = values(shape=(33, 20))
    shardwrite.create(path, (0, 20), "u4", shards=10, chunks=5, **MANIFEST)
    with ShardWriter(path) as writer:
        for t in range(18):
            writer.append(given[t])
        assert listed(path) == []
        writer.flush()
        assert set(listed(path)) >= set(shardwrite.present(path).keys)
        assert len(listed(path)) == 16
        for t in range(18, 33):
            writer.append(given[t])
    check(path, given=given)
    with ShardWriter(path) as writer:
        writer[3:9] = np.zeros((6, 20), "u4")
        writer[40] = given[0]
    given = np.concatenate([given, np.zeros((7, 20), "u4"), given[:1]])
    given[3:9] = 0
    check(path, given=given)


@pytest.mark.compat
def test_conversions(tmp_path):
    given = values()
    flat = tmp_path / "flat"
    source(given).to_sharded_zarr(flat, shards=None, chunks=5, write_empty_chunks=True)
    assert not shardwrite.shard(flat, tmp_path / "a", 2, **MANIFEST).is_skipped
    assert len(check(tmp_path / "a", given=given)) == 16, "stored chunks of the fill value count"
    shardwrite.shard(flat, tmp_path / "b", 2, drop_empty=True, **MANIFEST)
    assert 0 < len(check(tmp_path / "b", given=given)) < 16
    shardwrite.reshard(tmp_path / "b", tmp_path / "c", 2, chunks=4)
    assert check(tmp_path / "c", given=given) != listed(tmp_path / "b")
    shardwrite.unshard(tmp_path / "b", tmp_path / "d")
    assert check(tmp_path / "d", given=given) == listed(tmp_path / "b")
    shardwrite.reshard(tmp_path / "b", 1)
    assert check(tmp_path / "b", given=given) == listed(tmp_path / "d")
    assert shardwrite.reshard(tmp_path / "b", 1).is_skipped
    assert shardwrite.shard_store(flat, 2, **MANIFEST).n_shards == 4
    assert len(check(flat, given=given)) == 16
    assert shardwrite.shard_store(flat, 2, **MANIFEST).is_skipped
    plan = shardwrite.plan_reshard(flat, 2, **MANIFEST)
    assert plan.arrays[0].how == "skipped"


def test_a_list_that_is_wrong_in_the_source_is_right_in_what_is_made(tmp_path):
    made = zarr.create_array(
        tmp_path / "a", shape=(8, 8), chunks=(1, 1), dtype="u1",
        attributes={"chunk_grid_origin": [-3, 2], "nonempty_chunks": ["-3.2", "9.9", "x"]},
    )  # fmt: skip
    made[2, 3:5] = 1
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 4)
    assert check(tmp_path / "b") == ["-1.5", "-1.6"]


@pytest.mark.long
def test_a_hierarchy_and_its_parts(tmp_path):
    group = tmp_path / "g"
    for name, n in (("x", 1), ("inner/y", 2)):
        source(values(n)).to_sharded_zarr(group, name=name, shards=None, chunks=5)
    small = zarr.open_group(group).create_array("small", shape=(2,), chunks=(2,), dtype="u1")
    small[:] = 1
    with pytest.warns(getattr(zarr.errors, "ZarrUserWarning", UserWarning), match="onsolidated"):
        zarr.consolidate_metadata(group)
    shardwrite.shard(group, tmp_path / "h", 2, **MANIFEST)
    shardwrite.prepare_conversion(group, tmp_path / "p", 2, **MANIFEST)
    for part in range(3):
        shardwrite.convert_part(group, tmp_path / "p", part, 3, 2, **MANIFEST)
    shardwrite.finalize_conversion(group, tmp_path / "p", 2, **MANIFEST)
    shardwrite.shard(group, shards=2, **MANIFEST)
    for made in (tmp_path / "h", tmp_path / "p", group):
        for name in ("x", "inner/y", "small"):
            assert consolidated(made, name) == check(made, name)
        assert listed(made, "small") == ["0"]


def test_an_array_of_zarr_v2(tmp_path):
    made = zarr.create_array(tmp_path / "a", shape=(6,), chunks=(2,), dtype="i4", zarr_format=2)
    made[4:] = 1
    made.attrs["nonempty_chunks"] = ["0", "2"]
    shardwrite.shard(tmp_path / "a", tmp_path / "b", 2)
    assert check(tmp_path / "b") == ["2"]


def test_while_a_run_goes_on(tmp_path):
    """Keys are there before the first commit, and another program's attributes stay."""
    path = tmp_path / "x"
    source(values()).to_sharded_zarr(path, **LAYOUT)
    before, n_seen = set(listed(path)), 0

    def look(_):
        nonlocal n_seen
        n_seen += 1
        found = set(listed(path))
        assert found >= before | set(shardwrite.present(path).keys)
        assert found >= {"1.1", "1.2", "3.3"}
        zarr.open_array(path).attrs[f"seen-{n_seen}"] = n_seen

    with dask.config.set(scheduler="sync"):
        shardwrite.write_region(
            source(values(5)[5:, 5:]), path, (slice(5, 20), slice(5, 20)), progress=look
        )
    check(path)
    kept = zarr.open_array(path).attrs
    assert [kept[f"seen-{n + 1}"] for n in range(n_seen)] == [*range(1, n_seen + 1)]
    assert n_seen


@pytest.mark.long
def test_two_updates_at_once(tmp_path):
    """Of different shards; each keeps what the other has listed."""
    path = tmp_path / "x"
    shardwrite.create(path, (40, 40), "u4", shards=10, chunks=5, **MANIFEST)
    start, troubles = threading.Barrier(4), []

    def work(k):
        try:
            start.wait()
            for n in range(4):
                new = values(10 * k + n, (10, 40))
                source(new).to_sharded_zarr(path, region=slice(10 * k, 10 * k + 10))
                rows = [key for key in listed(path) if int(key.split(".")[0]) // 2 == k]
                wanted = [
                    f"{i + 2 * k}.{j}"
                    for i, j in np.ndindex(2, 8)
                    if new[5 * i : 5 * i + 5, 5 * j : 5 * j + 5].any()
                ]
                assert rows == wanted
        except BaseException as error:
            troubles.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not troubles, troubles
    wanted = np.concatenate([values(10 * k + 3, (10, 40)) for k in range(4)])
    check(path, given=wanted)


def test_present_reads_the_list_and_no_index(tmp_path):
    path = tmp_path / "x"
    source(values()).to_sharded_zarr(path, **LAYOUT)
    wanted = shardwrite.present(path)
    for shard in (path / "c").rglob("[0-9]"):
        if shard.is_file():
            shard.unlink()
    found = shardwrite.present(path, listed=True)
    assert found.keys == wanted.keys
    np.testing.assert_array_equal(found.coords, wanted.coords)
    assert len(shardwrite.present(path)) == 0
    zarr.open_array(path).attrs["nonempty_chunks"] = ["4.0", "0.1", "-1.0", "x", "3.3"]
    assert shardwrite.present(path, listed=True).coords.tolist() == [[0, 1], [3, 3]]
    with pytest.raises(SpecError, match="give its path"):
        shardwrite.present(shardwrite.open_sharded(path), listed=True)
    source(values()).to_sharded_zarr(tmp_path / "y", shards=10, chunks=5)
    with pytest.raises(SpecError, match="keeps no manifest"):
        shardwrite.present(tmp_path / "y", listed=True)


def test_another_program_that_writes_chunks_is_found_by_accept(tmp_path):
    path = tmp_path / "x"
    source(values()).to_sharded_zarr(path, **LAYOUT)
    zarr.open_array(path)[...] = 1
    assert len(listed(path)) < 16
    shardwrite.verify(path, accept=True)
    assert len(check(path)) == 16


def test_what_cannot_be(tmp_path):
    x = source(values())
    for refused in (
        lambda: x.to_sharded_zarr(tmp_path / "x", manifest="all"),
        lambda: shardwrite.shard(tmp_path / "a", tmp_path / "b", manifest=True),
    ):
        with pytest.raises(SpecError) as caught:
            refused()
        assert caught.value.field == "manifest"
    with pytest.raises(SpecError, match="no list of texts"):
        x.to_sharded_zarr(tmp_path / "x", attributes={"nonempty_chunks": 5}, **LAYOUT)
    assert not (tmp_path / "x").exists()
    x.to_sharded_zarr(tmp_path / "x", attributes={"nonempty_chunks": 5}, shards=10, chunks=5)
    shardwrite.write_region(1, tmp_path / "x", slice(0, 3))
    assert listed(tmp_path / "x") == 5
    with pytest.raises(SpecError, match="region="):
        x.to_sharded_zarr(tmp_path / "x", region=slice(0, 20), **MANIFEST)


def test_the_command_line(tmp_path):
    np.save(tmp_path / "a.npy", values())

    def run(*arguments):
        done = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
        assert done.exit_code == 0, done.output

    options = ("--manifest", "nonempty_chunks")
    run("write", tmp_path / "a.npy", tmp_path / "x", "--shards", 10, "--chunks", 5, *options)
    check(tmp_path / "x", given=values())
    zarr.create_array(tmp_path / "flat", shape=(20, 20), chunks=(5, 5), dtype="u4")[...] = values()
    run("shard", tmp_path / "flat", tmp_path / "y", "--shards", 2, *options)
    check(tmp_path / "y", given=values())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_million_chunks(tmp_path):
    """The list, its compact form, and what an update costs."""
    path, n = tmp_path / "x", 1000
    shardwrite.create(path, (n, n), "u1", shards=500, chunks=1, compressors=None, **MANIFEST)
    given = np.random.default_rng(0).integers(0, 4, (n, n), dtype="u1")
    seconds = {}

    def timed(what, action):
        start = time.perf_counter()
        action()
        seconds[what] = round(time.perf_counter() - start, 2)

    x = da.from_array(given, chunks=500)
    timed("write", lambda: x.to_sharded_zarr(path, mode="r+"))
    timed("open by zarr-python", lambda: zarr.open_array(path, mode="r"))
    timed("update", lambda: shardwrite.write_region(0, path, (slice(0, 3), slice(0, 3))))
    given[:3, :3] = 0
    attributes = zarr.open_array(path, mode="r").attrs.asdict()
    nbytes = (path / "zarr.json").stat().st_size
    print(seconds, nbytes, len(json.dumps(attributes["nonempty_chunks_runs"])))
    keys = attributes["nonempty_chunks"]
    assert keys == sorted(f"{i}.{j}" for i, j in np.argwhere(given).tolist())
    runs = attributes["nonempty_chunks_runs"]
    columns = np.frombuffer(zlib.decompress(base64.b64decode(runs["data"])), "<i8").reshape(3, -1)
    found = np.zeros_like(given, dtype=bool)
    for i, j, length in columns.T.tolist():
        found[i, j : j + length] = True
    np.testing.assert_array_equal(found, given > 0)
    assert len(runs["data"]) < 1_000_000
    assert nbytes < 25_000_000
    assert seconds["open by zarr-python"] < 10
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path)}}
    opened = tensorstore.open(spec, read=True).result()
    np.testing.assert_array_equal(opened[:4, :9].read().result(), given[:4, :9])
