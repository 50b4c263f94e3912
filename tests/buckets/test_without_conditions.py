"""Services that ignore conditions: updates are refused there, unless nobody else writes."""

from __future__ import annotations

import dask
import dask.array as da
import numpy as np
import obstore
import proxy
import pytest
import servers
from click.testing import CliRunner
from tiers import some

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main

VALUES = np.random.default_rng(0).integers(1, 2**32, (16, 16), dtype="u4")
X = da.from_array(VALUES, chunks=8)
LAYOUT = {"shards": 8, "chunks": 4}
BOX = np.s_[2:6, 3:9]
SEVEN = da.full((4, 6), 7, dtype="u4")


@pytest.fixture
def ignoring(moto, environment, tmp_path):
    """A service without conditions, and the state of runs in a directory."""
    with proxy.before(moto, kind=proxy.Ignoring) as (server, _):
        environment(server)
        with dask.config.set({"shardwrite.run-dir": str(tmp_path / "runs"), "scheduler": "sync"}):
            yield server


def stream(url, **more):
    with shardwrite.ShardWriter(url, **more) as writer:
        writer[BOX] = 7


def damage(server, url):
    """Tear a shard, so that there is something to repair."""
    client = server.client(servers.below_bucket(url))
    obstore.put(client, "c/1/1", bytes(obstore.get(client, "c/1/1").bytes())[:20])


def command(*words):
    """A call of a command, which raises what the command tells."""

    def call(url, exclusive=False):
        more = ["--exclusive"] if exclusive else []
        done = CliRunner().invoke(main, [word.replace("URL", url) for word in words] + more)
        if done.exit_code:
            assert "give --exclusive if nobody else writes" in done.output
            raise SpecError(done.output, field="exclusive", value=False, remedy="exclusive=True")
        return done

    return call


UPDATES = {
    "a region": lambda url, **more: SEVEN.to_sharded_zarr(url, region=BOX, **more),
    "write_region": lambda url, **more: shardwrite.write_region(SEVEN, url, BOX, **more),
    "store": lambda url, **more: shardwrite.store(SEVEN, url, regions=BOX, **more),
    "mode r+": lambda url, **more: X.to_sharded_zarr(url, mode="r+", **more),
    "append": lambda url, **more: X.to_sharded_zarr(url, region="append", **more),
    "later": lambda url, **more: shardwrite.write_region(
        SEVEN, url, BOX, compute=False, **more
    ).compute(),
    "erase": lambda url, **more: shardwrite.erase(url, BOX, **more),
    "compact": lambda url, **more: shardwrite.compact(url, above=0, **more),
    "stream": stream,
    "repair": lambda url, **more: shardwrite.repair(url, X, **more),
    "shardwrite erase": command("erase", "URL", "--region", "2:6,3:9"),
    "shardwrite compact": command("compact", "URL", "--above", "0"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", some(UPDATES, "a region", "stream"))
def test_an_update_is_refused_unless_nobody_else_writes(ignoring, url, what):
    X.to_sharded_zarr(url, **LAYOUT)
    if what == "repair":
        damage(ignoring, url)
    if "compact" in what:  # something to do for it
        shardwrite.write_region(7, url, BOX, strategy="append-only", exclusive=True)
    before = ignoring.contents(url)
    with pytest.raises(SpecError, match="exclusive=True"):
        UPDATES[what](url)
    assert ignoring.contents(url) == before
    UPDATES[what](url, exclusive=True)
    assert ignoring.contents(url) != before
    assert shardwrite.verify(url, deep=True).is_good
    if "compact" not in what and what not in ("repair", "mode r+", "append"):
        wanted = VALUES.copy()
        wanted[BOX] = 0 if "erase" in what else 7
        np.testing.assert_array_equal(shardwrite.open_sharded(url)[:, :], wanted)


@pytest.mark.long
def test_the_configuration_may_say_so(ignoring, url):
    X.to_sharded_zarr(url, **LAYOUT)
    with dask.config.set({"shardwrite.bucket.exclusive": True}):
        shardwrite.write_region(SEVEN, url, BOX)
        UPDATES["store"](url)
        UPDATES["shardwrite erase"](url)
        with pytest.raises(SpecError, match="exclusive"):
            shardwrite.write_region(SEVEN, url, BOX, exclusive=False)
    assert not shardwrite.open_sharded(url)[BOX].any()


@pytest.mark.long
def test_what_changes_no_array_needs_no_promise(ignoring, url):
    """New arrays, those that take the place of one, and looks."""
    X.to_sharded_zarr(url, **LAYOUT)
    (X + 1).to_sharded_zarr(url, mode="w", **LAYOUT)
    damage(ignoring, url)
    assert [task.key for task in shardwrite.repair(url).tasks] == ["c/1/1"]
    assert shardwrite.plan_region(SEVEN, url, BOX).metadata.grid.n_shards == 2
    with pytest.raises(SpecError, match="exclusive=True"):
        shardwrite.repair(url, scan=True)
