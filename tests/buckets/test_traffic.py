"""Plans for arrays in buckets: as many requests as the server has seen, and a few more."""

from __future__ import annotations

import json
import time

import dask
import dask.array as da
import numpy as np
import proxy
import pytest
import servers
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main
from shardwrite.plan.estimate import Requests

VALUES = np.random.default_rng(0).integers(1, 2**32, (768, 768), dtype="u4")
# What docs/buckets-state.md says: how many more a plan may have of each kind.
MARGIN = Requests(n_put=20, n_get=70, n_list=25)


@pytest.fixture
def x():
    return da.from_array(VALUES[:128, :128], chunks=(16, 128))


def within(planned, faults, call):
    """Make a call, and compare what the server has seen with what was planned."""
    faults.seen.clear()
    begun = time.monotonic()
    call()
    hours = (time.monotonic() - begun) / 3600
    n_list = sum("list-type=2" in path or "comp=list" in path for _, path in faults.seen)
    seen = {
        "n_put": sum(method == "PUT" for method, _ in faults.seen),
        "n_get": sum(method in ("GET", "HEAD") for method, _ in faults.seen) - n_list,
        "n_list": n_list,
    }
    for name, n_seen in seen.items():
        n, hourly = getattr(planned.requests, name), getattr(planned.hourly, name)
        assert n_seen - hourly * hours - 1 <= n <= n_seen + getattr(MARGIN, name), (name, seen)


def interrupt(_):
    raise InterruptedError


@pytest.mark.long
@servers.on("moto", long=["azurite"])
def test_a_write_a_resume_and_updates(service, environment, url, x, tmp_path):
    layout = {"shards": 16, "chunks": 4, "source_id": "x", "memory_limit": "100kB"}
    with proxy.before(service) as (server, faults), dask.config.set(scheduler="sync"):
        environment(server)

        def write(to, **how):
            return lambda: x.to_sharded_zarr(to, **layout, **how)

        for to, how in (
            (url, {}),
            (f"{url}/..", {"name": "a/b"}),
            (f"{url}-2", {"run_dir": tmp_path}),
        ):
            to = to.replace("/x.zarr/..", "/group")
            planned = shardwrite.plan(x, store=to, **how, **layout).traffic
            assert planned.requests.n_put >= 64
            within(planned, faults, write(to, **how))
        at = f"{url}-3"
        with pytest.raises(InterruptedError):
            x.to_sharded_zarr(at, progress=interrupt, **layout)
        planned = shardwrite.plan(x, store=at, **layout).traffic
        within(planned, faults, write(at))
        for region in (np.s_[:32, :32], np.s_[:30, :29], np.s_[40:42, 7:9]):
            y = da.ones(VALUES[region].shape, dtype="u4", chunks=16)
            planned = shardwrite.plan_region(y, url, region).traffic
            within(planned, faults, lambda y=y, r=region: y.to_sharded_zarr(url, region=r))
        grown = x.rechunk(64)
        planned = shardwrite.plan_region(grown, url, "append").traffic
        within(planned, faults, lambda: grown.to_sharded_zarr(url, region="append", axis=0))


@pytest.mark.long
@servers.on("moto", "azurite")
def test_updates_of_large_shards(service, environment, url):
    """Of which the request for the index does not read all that is kept."""
    with proxy.before(service) as (server, faults), dask.config.set(scheduler="sync"):
        environment(server)
        x = da.from_array(VALUES, chunks=256)
        planned = shardwrite.plan(x, store=url, shards=256, chunks=32).traffic
        within(planned, faults, lambda: x.to_sharded_zarr(url, shards=256, chunks=32))
        for region in (np.s_[:256, :256], np.s_[:250, :300], np.s_[32:64, 32:640], np.s_[1:5, 1:5]):
            y = da.from_array(VALUES[region], chunks=128)
            planned = shardwrite.plan_region(y, url, region).traffic
            within(planned, faults, lambda y=y, r=region: y.to_sharded_zarr(url, region=r))
        assert shardwrite.verify(url, deep=True, against=x).is_good


@pytest.mark.long
def test_an_update_that_keeps_its_values(moto, environment, url, x):
    """Its source reads the array, too, which no plan counts."""
    with proxy.before(moto) as (server, faults), dask.config.set(scheduler="sync"):
        environment(server)
        x.to_sharded_zarr(url, shards=16, chunks=4)
        y = shardwrite.from_sharded_zarr(url)[::-1]
        planned = shardwrite.plan_region(y, url, ...).traffic
        faults.seen.clear()
        shardwrite.write_region(y, url, ...)
        n_put = sum(method == "PUT" for method, _ in faults.seen)
        np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], VALUES[:128, :128][::-1])
    assert n_put - 1 <= planned.requests.n_put <= n_put + 2 * MARGIN.n_put
    assert planned.put_nbytes > 3 * x.nbytes
    assert planned.get_nbytes >= x.nbytes
    left = {key for key in moto.keys_of(url) if not key.startswith("c/")}
    assert left == {"zarr.json", "shardwrite-receipt.json"}


def test_plans_show_it(moto, url, x, tmp_path):
    layout = {"shards": 16, "chunks": 4}
    assert shardwrite.plan(x, **layout).traffic is None
    assert shardwrite.plan(x, store=tmp_path / "x", **layout).traffic is None
    plan = shardwrite.plan(x, store=url, **layout)
    assert f"at most {plan.traffic.requests}" in str(plan)
    assert "GET or HEAD" in plan._repr_html_()
    assert json.loads(plan.to_json())["traffic"]["requests"]["n_put"] == plan.traffic.requests.n_put
    assert plan.digest == shardwrite.plan(x, **layout).digest
    np.save(tmp_path / "x.npy", VALUES[:128, :128])
    words = [str(tmp_path / "x.npy"), url, "--shards", "16", "--chunks", "4"]
    for command in (["plan"], ["write", "--dry-run"], ["init", "--dry-run"]):
        done = CliRunner().invoke(main, [*command, *words])
        assert done.exit_code == 0, done.output
        assert "GET or HEAD" in done.output, command
    assert "about" in str(shardwrite.plan(x, store=url, compression_ratio=2, **layout))
    assert moto.keys_of(url) == []


def test_a_dry_run_sees_an_unfinished_run_in_the_bucket(moto, url, x, tmp_path):
    np.save(tmp_path / "x.npy", VALUES[:128, :128])
    words = [str(tmp_path / "x.npy"), url, "--shards", "16", "--chunks", "4", "--dry-run"]
    with pytest.raises(InterruptedError), dask.config.set(scheduler="sync"):
        x.to_sharded_zarr(url, progress=interrupt, shards=16, chunks=4, memory_limit="100kB")
    done = CliRunner().invoke(main, ["write", *words])
    assert "an unfinished run, of another plan" in done.output
