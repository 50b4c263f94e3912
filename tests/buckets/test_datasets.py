"""Datasets of xarray in a bucket: one run for all variables."""

from __future__ import annotations

import itertools
import pickle
import warnings

import dask
import dask.array as da
import distributed
import numpy as np
import proxy
import pytest
import seams
import servers
import zarr

import shardwrite
from shardwrite.place.objects import InStore

xr = pytest.importorskip("xarray")

STATE = "shardwrite-run/"
MOST_REQUESTS, MOST_REQUESTS_OF_APPENDS = 11, 14


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr tells about types and metadata
        yield


def dataset(offset=0, n=3, **attrs):
    x = da.from_array(np.arange(32 * 32, dtype="f8").reshape(32, 32), chunks=(16, 32)) + offset
    packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    variables = {f"v{k}": xr.Variable(("t", "x"), x + k, {}, packed) for k in range(n)}
    return xr.Dataset(variables, {"t": np.arange(32) * 2}, attrs)


def write(ds, url, **how):
    sizes = {"chunks": (4, 4), "shards": (16, 16)}
    encoding = {v: {**ds[v].encoding, **sizes} for v in ds.data_vars}
    with dask.config.set(scheduler="sync"):
        return ds.shardwrite.to_zarr(url, encoding=encoding, **how)


def check(server, url, wanted, **how):
    store = zarr.storage.ObjectStore(server.client(servers.below_bucket(url)), read_only=True)
    with xr.open_zarr(store, **how) as found:
        xr.testing.assert_identical(found.load(), wanted.compute())


def stop(*_):
    raise KeyboardInterrupt


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_it_is_begun_stopped_and_made_by_the_same_call(service, url):
    ds = dataset(title="it")
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            write(ds, url)
    keys = service.keys_of(url)
    assert len({key.partition(STATE)[0] for key in keys if STATE in key}) == 1, "one run"
    assert not [key for key in keys if key.endswith("zarr.json")], "nothing is visible"
    assert write(ds, url).n_resumed_shards == 13
    check(service, url, ds)
    check(service, url, ds, consolidated=False)
    assert not [key for key in service.keys_of(url) if STATE in key]
    assert write(ds, url).n_resumed_shards == 13
    with pytest.raises(shardwrite.SpecError, match="exists there"):
        write(dataset(7, title="it"), url)
    write(dataset(7, title="new"), url, mode="w")
    check(service, url, dataset(7, title="new"))


@pytest.mark.long
def test_requests_of_one_more_variable(moto_server, environment, url):
    """The root, which lists all of them, is put once, and is not read once more for each."""
    seen, of_root = [], []
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        for n in (2, 6):
            faults.seen.clear()
            root = f"{url}-{n}"
            write(dataset(n=n), root)
            seen.append(servers.n_beside_shards(faults.seen, keeper="t"))
            name = f"{root.rpartition('/')[2]}/zarr.json"
            of_root.append([method for method, path in faults.seen if path.endswith(name)])
    assert (seen[1] - seen[0]) // 4 <= MOST_REQUESTS
    puts = [methods.index("PUT") for methods in of_root]
    assert [methods.count("PUT") for methods in of_root] == [1, 1]
    assert len(of_root[0]) - puts[0] == len(of_root[1]) - puts[1]


MARK = "shardwrite-run.json"


def more(offset=0):
    return dataset(32 + offset, title="it").assign_coords(t=np.arange(32) * 2 + 64)


def left_over(service, url):
    return [key for key in service.keys_of(url) if STATE in key or key.endswith(MARK)]


def length(service, url):
    store = zarr.storage.ObjectStore(service.client(servers.below_bucket(url)), read_only=True)
    with xr.open_zarr(store) as found:
        return found.sizes["t"]


def interrupted(ds, url, step="look for missing shards", **how):
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, step, stop)
        with pytest.raises(KeyboardInterrupt):
            ds.shardwrite.to_zarr(url, **how)


@pytest.mark.long
def test_requests_of_one_more_variable_that_is_appended_to(moto_server, environment, url):
    seen = []
    with proxy.before(moto_server) as (server, faults):
        environment(server)
        for n in (2, 6):
            write(dataset(n=n), f"{url}-{n}")
            faults.seen.clear()
            new = dataset(32, n).assign_coords(t=np.arange(32) * 2 + 64)
            new.shardwrite.to_zarr(f"{url}-{n}", append_dim="t")
            seen.append(servers.n_beside_shards(faults.seen, keeper="t"))
    assert (seen[1] - seen[0]) // 4 <= MOST_REQUESTS_OF_APPENDS, seen


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_what_another_program_changes_amid_an_append_stays(service, url):
    """The document was read before, and is put over that which was read alone."""
    write(dataset(title="it"), url)

    def meanwhile(*_, **more):
        patch.undo()
        store = zarr.storage.ObjectStore(service.client(servers.below_bucket(url)))
        zarr.open_array(store, path="v1").attrs["meanwhile"] = 1

    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", meanwhile)
        more().shardwrite.to_zarr(url, append_dim="t")
    both = xr.concat([dataset(title="it"), more()], "t").compute()
    both["v1"].attrs["meanwhile"] = 1
    check(service, url, both)
    check(service, url, both, consolidated=False)


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_an_array_that_is_replaced_before_its_mark_is_not_appended_to(service, url):
    write(dataset(title="it"), url)
    other = da.zeros((32, 32), chunks=16, dtype="f4")

    def late(place, *args, **how):
        if place.label.endswith("/v1"):
            patch.undo()
            other.to_sharded_zarr(url, name="v1", mode="w", shards=16, chunks=4)
        return make_room(place, *args, **how)

    make_room = InStore.make_room
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InStore, "make_room", late)
        with pytest.raises(shardwrite.JournalError, match=r"has changed the layout of .*v1"):
            more().shardwrite.to_zarr(url, append_dim="t")
    assert left_over(service, url) == []
    np.testing.assert_array_equal(servers.values_of(service, f"{url}/v1"), other.compute())
    assert servers.values_of(service, f"{url}/v0").shape == (32, 32)


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_an_append_is_one_run_whose_state_lies_in_one_array(service, url):
    write(dataset(title="it"), url)
    interrupted(more(), url, append_dim="t")
    check(service, url, dataset(title="it"))
    keys = service.keys_of(url)
    assert {key.partition(STATE)[0].split("/")[-2] for key in keys if STATE in key} == {"t"}
    assert {key.split("/")[-2] for key in keys if key.endswith(MARK)} == {"v0", "v1", "v2"}
    with pytest.raises(shardwrite.JournalError, match=r"changes .*v1 together with.*abandon"):
        shardwrite.write_region(7.0, f"{url}/v1", (slice(3), slice(3)), casting="unsafe")
    with pytest.raises(shardwrite.JournalError, match="has not ended"):
        more().isel(t=slice(9)).shardwrite.to_zarr(url, append_dim="t")
    assert more().shardwrite.to_zarr(url, append_dim="t").n_resumed_shards > 0
    both = xr.concat([dataset(title="it"), more()], "t").compute()
    check(service, url, both)
    check(service, url, both, consolidated=False)
    assert left_over(service, url) == []
    shardwrite.write_region(0, f"{url}/v1", (slice(3), slice(3)), casting="unsafe")


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.parametrize("name", ["", "/v1", "/t"])
def test_an_append_is_given_up(service, url, name):
    write(dataset(title="it"), url)
    interrupted(more(), url, append_dim="t")
    assert shardwrite.abandon(url + name) != []
    check(service, url, dataset(title="it"))
    check(service, url, dataset(title="it"), consolidated=False)
    assert left_over(service, url) == []
    for k in range(3):
        assert shardwrite.verify(f"{url}/v{k}", deep=True).is_good
    more(5).shardwrite.to_zarr(url, append_dim="t")
    check(service, url, xr.concat([dataset(title="it"), more(5)], "t"))


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.long
@pytest.mark.parametrize(
    ("every", "then"),
    [
        (9, ("again", "abandon")),
        pytest.param(1, ("again",), marks=pytest.mark.campaign),
        pytest.param(1, ("abandon",), marks=pytest.mark.campaign),
    ],
)
def test_whatever_it_puts_last(service, url, every, then):
    """Readers of the root see one length at any time; then the same call ends it, or abandon does."""
    seen, old = set(), dataset(title="it")
    both = xr.concat([old, more()], "t").compute()
    for k in itertools.count(0, every):
        root, left = f"{url}-{k}", [k]
        write(old, root)
        with pytest.MonkeyPatch.context() as patch:
            put = InStore.write

            def write_or_die(place, leaf, *args, left=left, put=put, **more):
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return put(place, leaf, *args, **more)

            patch.setattr(InStore, "write", write_or_die)
            try:
                more().shardwrite.to_zarr(root, append_dim="t")
            except KeyboardInterrupt:
                is_whole = False
            else:
                is_whole = True
        n = length(service, root)
        seen.add(n)
        check(service, root, both.isel(t=slice(n)))
        if is_whole:
            break
        if then[k % len(then)] == "abandon":
            shardwrite.abandon(root)
            assert left_over(service, root) == []
            assert length(service, root) <= n
            n = length(service, root)
            check(service, root, both.isel(t=slice(n)))
            check(service, root, both.isel(t=slice(n)), consolidated=False)
        more().shardwrite.to_zarr(root, append_dim="t")
        check(service, root, both)
        check(service, root, both, consolidated=False)
        assert left_over(service, root) == []
    assert seen == {32, 64}
    assert k > 6


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_a_region_is_one_run(service, url):
    old, part = dataset(title="it").compute(), dataset(7).isel(t=slice(3, 21))
    write(dataset(title="it"), url)
    how = {"region": {"t": slice(3, 21)}}
    interrupted(part, url, **how)
    keys = service.keys_of(url)
    assert len({key.partition(STATE)[0] for key in keys if STATE in key}) == 1
    assert part.shardwrite.to_zarr(url, **how).n_resumed_shards > 0
    for name in part.data_vars:
        old[name][3:21] = part[name].values
    check(service, url, old)
    assert left_over(service, url) == []


def tree(a, b, offset=0):
    def node(start, stop):
        values = np.arange(start, stop)[:, None] * np.ones((1, 6)) + offset
        return xr.Dataset({"v": (("t", "x"), da.from_array(values, chunks=(3, 6)))})

    return xr.DataTree.from_dict({"/a": node(*a), "/b": node(*b)})


@pytest.mark.long
@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.parametrize("is_given_up", [False, True])
@pytest.mark.parametrize("stop_of_other", [7, 8])
def test_another_append_ends_before_the_marks(service, url, stop_of_other, is_given_up):
    """The lease is that of one array: what was appended to others before their marks stays."""
    tree((0, 10), (0, 5)).shardwrite.to_zarr(url)
    mine, other = tree((10, 12), (5, 7)), tree((0, 1), (5, stop_of_other), 100)["b"]
    with pytest.MonkeyPatch.context() as patch:
        make_room = InStore.make_room

        def late(place, *args, **how):
            patch.undo()
            other.shardwrite.to_zarr(url, group="b", append_dim="t")
            if is_given_up:
                raise KeyboardInterrupt
            return make_room(place, *args, **how)

        patch.setattr(InStore, "make_room", late)
        with pytest.raises(KeyboardInterrupt if is_given_up else shardwrite.JournalError) as told:
            mine.shardwrite.to_zarr(url, append_dim="t")
    if is_given_up:
        with pytest.raises(shardwrite.JournalError, match=r"shape|has not ended"):
            mine.shardwrite.to_zarr(url, append_dim="t")
        shardwrite.abandon(url)
    else:
        assert f"from [5, 6] to [{stop_of_other}, 6]" in str(told.value)
    assert left_over(service, url) == []
    expected = [*range(5), *range(105, 100 + stop_of_other)]
    assert servers.values_of(service, f"{url}/b/v")[:, 0].tolist() == expected
    mine.shardwrite.to_zarr(url, append_dim="t")
    assert servers.values_of(service, f"{url}/b/v")[:, 0].tolist() == [*expected, 5, 6]
    assert servers.values_of(service, f"{url}/a/v")[:, 0].tolist() == [*range(12)]


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.long
def test_an_append_with_a_directory_for_its_state(service, url, tmp_path):
    write(dataset(title="it"), url)
    how = {"append_dim": "t", "run_dir": tmp_path}
    interrupted(more(), url, **how)
    assert more().shardwrite.to_zarr(url, **how).n_resumed_shards > 0
    check(service, url, xr.concat([dataset(title="it"), more()], "t"))
    assert left_over(service, url) == []


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.long
def test_a_tree_is_appended_to(service, url):
    def nodes(ds):
        return xr.DataTree.from_dict({"/a": ds, "/b/c": ds[["v0"]]})

    nodes(dataset(title="it")).shardwrite.to_zarr(url, shards={"t": 16}, chunks={"t": 4})
    interrupted(nodes(more()), url, append_dim="t")
    for _ in range(2):
        nodes(more()).shardwrite.to_zarr(url, append_dim="t")
    for group, names in (("a", ["v0", "v1", "v2"]), ("b/c", ["v0"])):
        check(service, url, xr.concat([dataset(title="it"), more()], "t")[names], group=group)
    assert left_over(service, url) == []


@servers.on("moto")
@pytest.mark.long
def test_an_append_is_begun_now_and_computed_later(service, url):
    write(dataset(title="it"), url)
    later = more().shardwrite.to_zarr(url, append_dim="t", compute=False)
    check(service, url, dataset(title="it"))
    dask.compute(later)
    check(service, url, xr.concat([dataset(title="it"), more()], "t"))
    assert left_over(service, url) == []


@servers.on("moto")
@pytest.mark.long
def test_two_workers_append(service, url):
    write(dataset(title="it"), url)
    with distributed.Client(n_workers=2, threads_per_worker=1, dashboard_address=None):
        more().shardwrite.to_zarr(url, append_dim="t")
    check(service, url, xr.concat([dataset(title="it"), more()], "t"))
    assert left_over(service, url) == []


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
def test_the_engine_reads_whole_shards(service, url):
    """xarray's own engine needs another library for such a URL."""
    from shardwrite.datasets.engine import ShardsBackend

    ds = dataset(title="it")
    write(ds, url, group="deep")
    for how in ({"group": "deep"}, {"group": "deep", "consolidated": False}):
        found = xr.open_dataset(url, engine=ShardsBackend, chunks={}, **how)
        assert found["v0"].chunks == ((16, 16), (16, 16))
        xr.testing.assert_identical(found.compute(), ds.compute())
    lazy = pickle.loads(pickle.dumps(xr.open_dataset(url, engine=ShardsBackend, group="deep")))
    xr.testing.assert_identical(lazy.isel(t=[3, 20]).load(), ds.isel(t=[3, 20]).compute())
    xr.testing.assert_identical(lazy.isel(x=slice(5, 9)).load(), ds.isel(x=slice(5, 9)).compute())
    tree = xr.open_datatree(url, engine=ShardsBackend)
    xr.testing.assert_identical(tree["deep"].to_dataset().load(), ds.compute())
