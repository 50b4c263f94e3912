"""One run writes all new arrays of a hierarchy in a bucket: one lease, one log, inside the first
array."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time

import dask
import dask.array as da
import numpy as np
import obstore
import proxy
import pytest
import seams
import servers
from forks import python
from tiers import some

import shardwrite
from shardwrite.place.objects import InStore

VALUES = np.arange(32 * 32, dtype="i4").reshape(32, 32)
SIZES = {"shards": 16, "chunks": 4, "source_id": "it 0"}
NAMES = ["g/b", "a", "g/h/d"]
STATE = "shardwrite-run/"
MOST_REQUESTS = 11
DOCUMENTS = ["shardwrite-receipt.json", "zarr.json"]

PROGRAM = """
import sys
import dask, dask.array as da, numpy as np
import shardwrite
root, mode = sys.argv[1:]
x = da.from_array(np.arange(32 * 32, dtype="i4").reshape(32, 32), chunks=(16, 32))
names = ["g/b", "a", "g/h/d"]
with dask.config.set(scheduler="sync"):
    results = shardwrite.store([x + n for n in range(3)], [root] * 3, names=names, mode=mode,
                               shards=16, chunks=4, source_id="it 0", memory_limit="30kB")
print(sum(result.n_resumed_shards for result in results))
"""


def arrays(offset=0):
    return [da.from_array(VALUES, chunks=(16, 32)) + n + offset for n in range(len(NAMES))]


def write(root, *, offset=0, **more):
    with dask.config.set(scheduler="sync"):
        how = {**SIZES, "source_id": f"it {offset}", **more}
        return shardwrite.store(arrays(offset), [root] * len(NAMES), names=NAMES, **how)


def stop(*_):
    raise KeyboardInterrupt


def begin(root, **more):
    """A run that has written all shards, and published nothing."""
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            write(root, **more)


def check(server, root, *, offset=0):
    """All arrays are there, and nothing else but the groups."""
    for n, name in enumerate(NAMES):
        values = servers.values_of(server, f"{root}/{name}")
        np.testing.assert_array_equal(values, VALUES + n + offset)
    keys = [key for key in server.keys_of(root) if "/c/" not in key]
    of_arrays = [f"{name}/{document}" for name in NAMES for document in DOCUMENTS]
    assert sorted(keys) == sorted([*of_arrays, "g/h/zarr.json", "g/zarr.json", "zarr.json"])


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_there_is_one_lease_and_one_log_inside_the_first_array(service, url):
    begin(url)
    keys = service.keys_of(url)
    state = [key for key in keys if STATE in key]
    assert {key.partition(STATE)[0] for key in state} == {"a/"}
    assert f"a/{STATE}lease.json" in state
    assert not [key for key in keys if key.endswith("zarr.json")], "nothing is visible"
    marks = {
        name: json.loads(obstore_get(service, url, f"{name}/shardwrite-run.json")) for name in NAMES
    }
    assert len({mark["run"] for mark in marks.values()}) == 1
    assert marks["g/b"]["keeper"] == "a"
    results = write(url)
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    check(service, url)


def obstore_get(server, url, key):
    return bytes(obstore.get(server.client(servers.below_bucket(url)), key).bytes())


@pytest.mark.long
def test_all_start_over_and_all_are_replaced(moto, url):
    begin(url)
    assert [result.n_resumed_shards for result in write(url, restart=True)] == [0, 0, 0]
    check(moto, url)
    begin(url, offset=5, mode="w")
    assert [r.n_resumed_shards for r in write(url, offset=5, mode="w")] == [4, 4, 4]
    check(moto, url, offset=5)


@pytest.mark.long
def test_requests_do_not_grow_with_a_lease_for_each_array(moto_server, environment, url):
    """What a run does with its state is done once for all arrays."""
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        write(url)
        state = [path for method, path in faults.seen if method == "PUT" and STATE in path]
        puts = [path for path in state if "/probes/" not in path]
        assert puts
        assert all("/a/" in path for path in puts), puts
    check(moto_server, url)


@pytest.mark.long
def test_requests_of_one_more_array(moto_server, environment, url):
    """Beside those for its shards: looks whether it may be written, its mark, its documents."""
    seen = []
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        for n in (2, 6):
            faults.seen.clear()
            x = [da.from_array(VALUES, chunks=(16, 32))] * n
            names, root = [f"g/{i}" for i in range(n)], f"{url}-{n}"
            with dask.config.set(scheduler="sync"):
                shardwrite.store(x, [root] * n, names=names, **SIZES)
            seen.append(servers.n_beside_shards(faults.seen, keeper="g/0"))
    assert (seen[1] - seen[0]) // 4 <= MOST_REQUESTS


@pytest.mark.long
def test_a_lease_that_is_lost_amid_the_documents_is_noticed(moto, url):
    """The first document has looked at the lease; a second later, the next one looks again."""
    client, put = moto.client(servers.below_bucket(url)), InStore.write
    documents = []

    def write_late(place, leaf, *args, **more):
        if leaf == "zarr.json":
            documents.append(place.label)
        if len(documents) == 2:
            found = bytes(obstore.get(client, f"a/{STATE}lease.json").bytes())
            lost = found.replace(b'"holder": "', b'"holder": "f')
            obstore.put(client, f"a/{STATE}lease.json", lost)
            time.sleep(1)
        return put(place, leaf, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InStore, "write", write_late)
        with pytest.raises(shardwrite.RunEndedError):
            write(url)
    assert len(documents) == 2
    there = [key for key in moto.keys_of(url) if key.endswith("zarr.json")]
    assert there == [f"{documents[0].removeprefix(url).lstrip('/')}/zarr.json"]


def test_requests_of_one_new_array(moto_server, environment, url):
    """It is listed before its run begins, and once its plan is linked."""
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        with dask.config.set(scheduler="sync"):
            da.from_array(VALUES, chunks=(16, 32)).to_sharded_zarr(url, **SIZES)
        listed = [path for _, path in faults.seen if path.endswith(f"{url.split('/', 3)[3]}/")]
        assert len(listed) == 2, faults.seen
        assert not [path for _, path in faults.seen if path.endswith((".zarray", ".zgroup"))]
        assert len(faults.seen) <= 60, faults.seen


@pytest.mark.parametrize("name", some(["g/b", "a"], "g/b"))
def test_another_call_for_one_of_them_joins(moto, url, name):
    """That of `a`, inside which the state lies, and that of an array whose mark says so."""
    begin(url)
    x = da.from_array(VALUES, chunks=(16, 32)) + NAMES.index(name)
    result = x.to_sharded_zarr(url, name=name, **SIZES)
    assert result.n_resumed_shards == 4
    values = servers.values_of(moto, f"{url}/{name}")
    np.testing.assert_array_equal(values, VALUES + NAMES.index(name))
    assert {k.partition(STATE)[0] for k in moto.keys_of(url) if STATE in k} == {"a/"}
    write(url)
    check(moto, url)


@pytest.mark.long
def test_a_call_for_some_of_them_joins_without_the_first_one(moto, url):
    begin(url)
    names, more = ["g/h/d", "g/b"], da.from_array(VALUES, chunks=(16, 32))
    arrays = [more + 2, more]
    results = shardwrite.store(arrays, [url] * 2, names=names, **SIZES)
    assert [result.n_resumed_shards for result in results] == [4, 4]
    assert not [key for key in moto.keys_of(url) if key == "a/zarr.json"], "it is not whole yet"
    write(url)
    check(moto, url)


@pytest.mark.long
def test_the_array_that_keeps_the_state_and_one_that_comes_before_it(moto, url):
    begin(url)
    assert other_names(url, names=["A", "a"])[1].n_resumed_shards == 4
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/A"), VALUES)
    assert [result.n_resumed_shards for result in write(url)] == [4, 4, 4]
    assert not [key for key in moto.keys_of(url) if "shardwrite-run" in key]


@pytest.mark.long
def test_a_call_for_some_of_them_and_another_array(moto, url):
    """It joins the run, and begins one whose state lies with it."""
    begin(url)
    x = da.from_array(VALUES, chunks=(16, 32))
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            shardwrite.store([x, x + 5], [url] * 2, names=["g/b", "A"], **SIZES)
    assert {k.partition(STATE)[0] for k in moto.keys_of(url) if STATE in k} == {"a/"}
    write(url)  # the array that was added still has its state there
    results = shardwrite.store([x, x + 5], [url] * 2, names=["g/b", "A"], **SIZES)
    assert [result.n_resumed_shards for result in results] == [4, 4]
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/A"), VALUES + 5)
    assert not [key for key in moto.keys_of(url) if "shardwrite-run" in key]


@pytest.mark.long
def test_a_call_of_another_plan_for_one_of_them_is_refused(moto, url):
    begin(url)
    x = da.from_array(VALUES, chunks=(16, 32))
    with pytest.raises(shardwrite.JournalError, match=r"another plan was begun for .*g/b"):
        x.to_sharded_zarr(url, name="g/b", **{**SIZES, "source_id": "another"})
    with pytest.raises(shardwrite.JournalError, match="writes 2 other arrays, too"):
        x.to_sharded_zarr(url, name="g/b", restart=True, **{**SIZES, "source_id": "another"})
    above, _, last = url.rpartition("/")
    own = f"{url}/g/b"  # lies in no hierarchy that this call knows
    with pytest.raises(shardwrite.SpecError, match=rf"state lies in {url}/a: make the call"):
        x.to_sharded_zarr(own, **SIZES)
    assert x.to_sharded_zarr(above, name=f"{last}/g/b", **SIZES).n_resumed_shards == 4
    write(url)
    check(moto, url)


@pytest.mark.long
@pytest.mark.parametrize("is_published", some([False, True], False))
def test_a_call_of_its_own_that_came_first(moto, url, is_published):
    """A run on several arrays finds that another call writes one of them, or has written it."""
    x = da.from_array(VALUES, chunks=(16, 32)) + 7
    begun = {}

    def meanwhile(*_, **more):
        if not begun:
            begun["yes"] = True
            if is_published:
                x.to_sharded_zarr(url, name="g/b", **{**SIZES, "source_id": "own"})
            else:
                with pytest.MonkeyPatch.context() as patch:
                    seams.before(patch, "look for missing shards", stop)
                    with pytest.raises(KeyboardInterrupt):
                        x.to_sharded_zarr(url, name="g/b", **{**SIZES, "source_id": "own"})

    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "mark the array as a run's", meanwhile)
        with pytest.raises(shardwrite.JournalError, match=r"another call has written|writes .*g/b"):
            write(url)
    if not is_published:  # it goes on
        x.to_sharded_zarr(url, name="g/b", **{**SIZES, "source_id": "own"})
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/g/b"), VALUES + 7)
    with pytest.raises(shardwrite.ShardwriteError):
        write(url)
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/g/b"), VALUES + 7)


@pytest.mark.long
def test_a_run_of_others_that_came_first_is_named_with_its_keeper(moto, url):
    """Its mark is found when this call puts its own."""
    begun = []

    def meanwhile(*_, **more):
        if not begun:
            begun.append("yes")
            with pytest.MonkeyPatch.context() as other:
                seams.before(other, "look for missing shards", stop)
                with pytest.raises(KeyboardInterrupt):
                    other_names(url, names=["0", "g/b"])

    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "mark the array as a run's", meanwhile)
        with pytest.raises(shardwrite.JournalError) as caught:
            write(url)
    told = str(caught.value)
    assert f"writes {url}/g/b together with others, and its state lies in {url}/0: make" in told
    assert "run_dir" not in told
    other_names(url, names=["0", "g/b"])


@pytest.mark.long
def test_an_unfinished_update_of_one_of_them_goes_first(moto, url):
    """Its state lies inside its array, where the run on all arrays looks for it."""
    write(url)
    y = da.zeros((16, 16), chunks=16, dtype="i4")
    update = {"region": np.s_[:16, :16], "source_id": "y", "name": "g/h/d"}
    with pytest.raises(KeyboardInterrupt), dask.config.set(scheduler="sync"):
        y.to_sharded_zarr(url, progress=stop, **update)
    with pytest.raises(shardwrite.JournalError, match="keeps its state in the bucket"):
        write(url, offset=5, mode="w")
    y.to_sharded_zarr(url, **update)
    write(url, offset=5, mode="w")
    check(moto, url, offset=5)


def other_names(root, offset=0, *, names, **more):
    with dask.config.set(scheduler="sync"):
        how = {**SIZES, "source_id": f"it {offset}", **more}
        return shardwrite.store(
            arrays(offset)[: len(names)], [root] * len(names), names=names, **how
        )


@pytest.mark.long
def test_nothing_is_copied_of_an_array_that_is_not_finished(moto, url, tmp_path):
    """Its document is there from the first, and its state lies in another array."""
    with pytest.raises(KeyboardInterrupt):
        write(url, publish="first", progress=stop)
    copies = (tmp_path / f"{n}.zarr" for n in range(9))
    for root in (url, f"{url}/g", f"{url}/g/b"):
        with pytest.raises(shardwrite.JournalError, match="call"):
            shardwrite.shard(root, next(copies), shards=2)
        with pytest.raises(shardwrite.JournalError, match="call"):
            shardwrite.download(root, next(copies))
    with pytest.raises(shardwrite.JournalError, match="together with others"):
        shardwrite.repair(url, da.from_array(VALUES, chunks=(16, 32)), name="g/b")
    write(url, publish="first")
    assert not shardwrite.repair(url, da.from_array(VALUES, chunks=(16, 32)), name="g/b").tasks
    shardwrite.download(f"{url}/g", next(copies))
    check(moto, url)


@pytest.mark.long
def test_two_calls_for_some_of_the_same_arrays(moto, url):
    """Both are past all looks when the first mark is put. One of them gets all of its arrays."""
    is_there, may_go = threading.Event(), threading.Event()
    calls = {"one": ["a", "c", "d"], "two": ["b", "d", "c"]}
    told = {}

    def call(name, **more):
        try:
            told[name] = other_names(url, names=calls[name], source_id=name, **more)
        except shardwrite.ShardwriteError as error:
            told[name] = error

    def meanwhile(place, *_, **more):
        if threading.current_thread() is second:
            is_there.set()
            if place.label.endswith("/c"):
                may_go.wait(60)
        elif place.label.endswith("/a"):
            second.start()
            assert is_there.wait(60)
        elif place.label.endswith("/d"):
            may_go.set()

    second = threading.Thread(target=call, args=("two",))
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "mark the array as a run's", meanwhile)
        call("one")
        may_go.set()
        second.join()
    won = [name for name, result in told.items() if isinstance(result, list)]
    assert len(won) == 1, told
    (lost,) = calls.keys() - won
    call(lost, mode="w", restart=True)
    assert isinstance(told[lost], list), told[lost]
    for n, name in enumerate(calls[lost]):
        np.testing.assert_array_equal(servers.values_of(moto, f"{url}/{name}"), VALUES + n)
    left = [key for key in moto.keys_of(url) if "shardwrite-run" in key]
    assert not left


@pytest.mark.long
def test_what_another_call_published_is_not_written_over_after_a_kill(
    moto, moto_server, program, url
):
    """The mark is there, and this process was killed before it looked for an array."""
    x, begun = da.from_array(VALUES, chunks=(16, 32)) + 7, []

    def meanwhile(place, *_, **more):
        if not begun and place.label.endswith("g/b"):
            begun.append("yes")
            x.to_sharded_zarr(url, name="g/b", **{**SIZES, "source_id": "own"})
            seams.before(patch, "look for an array that another call wrote", stop)

    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "mark the array as a run's", meanwhile)
        with pytest.raises(KeyboardInterrupt):
            write(url, memory_limit="30kB")
    assert "g/b/shardwrite-run.json" in moto.keys_of(url)
    again = program(moto_server, url, "w-")
    _, trouble = again.communicate(timeout=200)
    assert "another call has written" in trouble
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/g/b"), VALUES + 7)


@pytest.mark.long
def test_urls_and_names_may_be_divided_in_another_way(moto, url):
    begin(url)
    above, _, last = url.rpartition("/")
    results = other_names(above, names=[f"{last}/{name}" for name in NAMES])
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    check(moto, url)


def slow(block):
    time.sleep(0.8)
    return block


@pytest.mark.long
def test_an_array_is_added_to_a_call_that_was_interrupted(moto, url):
    """A run of its own writes it, whose state lies with that of the others."""
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            other_names(url, names=["a", "c"])
        with pytest.raises(KeyboardInterrupt):
            other_names(url, names=["a", "c", "g/b"])
    mark = json.loads(obstore_get(moto, url, "g/b/shardwrite-run.json"))
    assert mark["keeper"] == "a"
    assert {key.partition(STATE)[0] for key in moto.keys_of(url) if STATE in key} == {"a/"}
    x = da.from_array(VALUES, chunks=(16, 32)) + 2
    with pytest.raises(shardwrite.JournalError, match="keeps its state in the bucket"):
        shardwrite.recover(url, x, name="g/b", **SIZES)
    assert seams.status_of(url, "g/b").n_done_shards == 4
    results = other_names(url, names=["a", "c", "g/b"])
    assert [result.n_resumed_shards for result in results] == [4, 4, 4]
    for n, name in enumerate(["a", "c", "g/b"]):
        np.testing.assert_array_equal(servers.values_of(moto, f"{url}/{name}"), VALUES + n)
    assert not [key for key in moto.keys_of(url) if "shardwrite-run" in key]


@pytest.mark.long
def test_its_lease_is_renewed_for_an_array_that_was_added(moto, url):
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            other_names(url, names=["a", "c"])
    late = da.from_array(VALUES, chunks=(16, 16)).map_blocks(slow, dtype="i4")
    short = {"shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": 2.0, "scheduler": "sync"}
    names = ["a", "c", "g/b"]
    with dask.config.set(short):
        shardwrite.store([*arrays()[:2], late], [url] * 3, names=names, **SIZES)
    np.testing.assert_array_equal(servers.values_of(moto, f"{url}/g/b"), VALUES)


@pytest.mark.long
def test_recover_leaves_a_run_alone_whose_state_is_not_lost(moto, url):
    begin(url)
    x = da.from_array(VALUES, chunks=(16, 32))
    for more in ({}, {"dry_run": True}):
        with pytest.raises(shardwrite.JournalError, match="keeps its state in the bucket"):
            shardwrite.recover(url, x, name="g/b", **SIZES, **more)
    assert [result.n_resumed_shards for result in write(url)] == [4, 4, 4]
    check(moto, url)


@pytest.mark.long
def test_recover_goes_on_where_the_first_array_was_removed(moto, url):
    begin(url)
    client = moto.client(servers.below_bucket(url))
    for key in moto.keys_of(url):
        if key.startswith("a/"):
            obstore.delete(client, key)
    with pytest.raises(shardwrite.SpecError, match="call recover"):
        write(url)
    for n, name in ((0, "g/b"), (2, "g/h/d")):
        x = da.from_array(VALUES, chunks=(16, 32)) + n
        shardwrite.recover(url, x, name=name, **SIZES)
    write(url)
    check(moto, url)


@pytest.mark.long
def test_what_commands_tell_of_each_array(moto, url):
    begin(url)
    for name in NAMES:
        with pytest.raises(shardwrite.SpecError, match="has not ended"):
            shardwrite.abandon(f"{url}", name=name)
        found = seams.status_of(url, name)
        assert (found.n_done_shards, found.n_shards) == (4, 4)
    write(url)
    check(moto, url)


@pytest.mark.long
def test_what_replaces_them_is_given_up(moto, url):
    write(url)
    begin(url, offset=5, mode="w")
    with pytest.raises(shardwrite.JournalError, match="nothing can be put back"):
        shardwrite.abandon(url, name="g/b")
    write(url, offset=5, mode="w", restart=True)
    check(moto, url, offset=5)


@pytest.mark.long
def test_a_delayed_run(moto, url):
    with dask.config.set(scheduler="sync"):
        rest = shardwrite.store(arrays(), [url] * 3, names=NAMES, compute=False, **SIZES)
        assert {k.partition(STATE)[0] for k in moto.keys_of(url) if STATE in k} == {"a/"}
        dask.compute(rest)
    check(moto, url)


@pytest.mark.long
def test_a_hierarchy_is_converted_in_parts(moto, url, tmp_path, monkeypatch):
    import zarr

    group = zarr.open_group(tmp_path / "in.zarr", mode="w")
    for n, name in enumerate(NAMES):
        group.create_array(name, data=VALUES + n, chunks=(8, 8))
    how = {"shards": 2}
    shardwrite.prepare_conversion(tmp_path / "in.zarr", url, **how)
    assert {k.partition(STATE)[0] for k in moto.keys_of(url) if STATE in k} == {"a/"}
    read = []
    seams.before(monkeypatch, "make the state of a run again", lambda *_: read.append(1))
    shardwrite.convert_part(tmp_path / "in.zarr", url, 0, 2, **how)
    assert len(read) == 1, "once for all arrays"
    with pytest.raises(shardwrite.IncompleteError):
        shardwrite.finalize_conversion(tmp_path / "in.zarr", url, n_parts=2, **how)
    shardwrite.convert_part(tmp_path / "in.zarr", url, 1, 2, **how)
    shardwrite.finalize_conversion(tmp_path / "in.zarr", url, n_parts=2, **how)
    check(moto, url)


@pytest.mark.long
def test_a_part_of_some_of_the_arrays(moto, url):
    """Their state lies in an array that the call does not name."""
    with dask.config.set(scheduler="sync"):
        plans = [shardwrite.plan(x, **SIZES) for x in arrays()]
        shardwrite.prepare(arrays(), url, plan=plans, names=NAMES)
        for chosen in ([0, 2], [1]):
            x, names = [arrays()[n] for n in chosen], [NAMES[n] for n in chosen]
            named = {"names": names, "source_id": ["it 0"] * len(names)}
            if len(names) == 1:
                (x,), named = x, {"name": names[0], "source_id": "it 0"}
            shardwrite.write_part(x, url, index=0, count=1, **named)
        shardwrite.finalize(url, name=NAMES[2], n_parts=1)
        shardwrite.finalize(url, names=NAMES, n_parts=1)
    check(moto, url)


@pytest.mark.parametrize("restart", some([False, True], True))
@pytest.mark.long
def test_arrays_that_are_reached_with_other_keys_have_runs_of_their_own(moto_server, url, restart):
    """One run would look at all of its arrays with the keys of one."""
    keys = {"AKIAONE": "/y/", "AKIATWO": "/a/"}
    how = {"kind": proxy.Denying, "denied": keys}
    with proxy.before(moto_server, **how) as (server, _):
        prefix = servers.below_bucket(url)
        stores = [server.client(prefix, access_key_id=key) for key in keys]
        x = da.from_array(VALUES, chunks=(16, 32))

        def call(**more):
            with dask.config.set(scheduler="sync"):
                return shardwrite.store([x, x + 1], stores, names=["a", "y"], **{**SIZES, **more})

        with pytest.MonkeyPatch.context() as patch:
            seams.before(patch, "look for missing shards", stop)
            with pytest.raises(KeyboardInterrupt):
                call()
        state = {key.partition(STATE)[0] for key in moto_server.keys_of(url) if STATE in key}
        assert state == {"a/", "y/"}
        n = 0 if restart else 4
        assert [result.n_resumed_shards for result in call(restart=restart)] == [n, n]
        assert [result.n_resumed_shards for result in call()] == [4, 4]
    for n, name in enumerate(["a", "y"]):
        np.testing.assert_array_equal(servers.values_of(moto_server, f"{url}/{name}"), VALUES + n)
    assert not [key for key in moto_server.keys_of(url) if "shardwrite-run" in key]


@pytest.fixture
def program(tmp_path):
    """Starts the call in a process of its own, with a temporary directory that it alone sees."""
    machines = iter(range(99))

    def start(server, url, mode):
        machine = tmp_path / f"machine-{next(machines)}"
        machine.mkdir()
        return subprocess.Popen(
            [*python(), "-c", PROGRAM, url, mode],
            env={**os.environ, **server.environment, "TMPDIR": str(machine)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.mark.long
@pytest.mark.parametrize("mode", ["w-", pytest.param("w", marks=pytest.mark.long)])
@pytest.mark.parametrize("fault", some(["before", "lost"], "lost"))
@pytest.mark.parametrize("number", some([3, 9, 17], 3))
def test_killed_at_requests_that_change_something(moto_server, program, url, mode, fault, number):
    if mode == "w":
        with pytest.MonkeyPatch.context() as patch:
            for name, value in moto_server.environment.items():
                patch.setenv(name, value)
            write(url, offset=9)

    def counts(method, path):
        return method in ("PUT", "POST", "DELETE") and "/c/" not in path

    is_killed, _, _ = proxy.killed(
        moto_server, lambda between: program(between, url, mode), counts, number, fault
    )
    assert is_killed
    again = program(moto_server, url, mode)
    _, trouble = again.communicate(timeout=200)
    assert again.returncode == 0, trouble
    check(moto_server, url)
