"""Datasets of xarray in a bucket: one run for all variables."""

from __future__ import annotations

import pickle
import warnings

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
import seams
import servers
import zarr

import shardwrite

xr = pytest.importorskip("xarray")

STATE = "shardwrite-run/"
MOST_REQUESTS = 25


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
            seen.append(sum("/c/" not in path for _, path in faults.seen))
            name = f"{root.rpartition('/')[2]}/zarr.json"
            of_root.append([method for method, path in faults.seen if path.endswith(name)])
    assert (seen[1] - seen[0]) / 4 <= MOST_REQUESTS
    puts = [methods.index("PUT") for methods in of_root]
    assert [methods.count("PUT") for methods in of_root] == [1, 1]
    assert len(of_root[0]) - puts[0] == len(of_root[1]) - puts[1]


@servers.on("moto", long=["azurite", "seaweed", "gcs"])
@pytest.mark.long
def test_it_is_appended_to_and_written_into_a_region(service, url, tmp_path):
    """An append needs a directory for the state of its one run."""
    old, new = dataset(title="it"), dataset(32, title="it").assign_coords(t=np.arange(32) * 2 + 64)
    write(old, url)
    keys = service.keys_of(url)
    with pytest.raises(shardwrite.SpecError, match=r"run_dir=None.*is one run.*give a directory"):
        new.shardwrite.to_zarr(url, append_dim="t")
    assert service.keys_of(url) == keys
    how = {"append_dim": "t", "run_dir": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        seams.before(patch, "look for missing shards", stop)
        with pytest.raises(KeyboardInterrupt):
            new.shardwrite.to_zarr(url, **how)
    check(service, url, old)
    assert new.shardwrite.to_zarr(url, **how).n_resumed_shards > 0
    both = xr.concat([old, new], "t").compute()
    check(service, url, both)
    check(service, url, both, consolidated=False)
    part = dataset(7).isel(t=slice(3, 21))
    part.shardwrite.to_zarr(url, region={"t": slice(3, 21)})
    for name in part.data_vars:
        both[name][3:21] = part[name].values
    check(service, url, both)
    assert not [key for key in service.keys_of(url) if STATE in key]


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
