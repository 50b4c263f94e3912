"""A format of shards that the package does not know is added by its public seams. Its arrays are
written, killed, resumed, updated and verified as those of the specification."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

import shardwrite
from shardwrite.errors import SpecError
from shardwrite.format import sharding
from shardwrite.format.sharding import ShardingIndexed

sys.path.insert(0, str(Path(__file__).parent))
import reading
import sealed

PREPARE = f"""
{reading.dying_after(6)}
import dask, numpy as np
import dask.array as da
import sealed, shardwrite
def write(scheduler, **more):
    x = da.from_array(np.load(sys.argv[1]), chunks=(16, 64))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        return x.to_sharded_zarr(sys.argv[2], source_id="it", memory_limit="30kB", **more)
NEW = dict(shards=16, chunks=4, shard_format=sealed.Sealed(12))
"""
NEW = {"shards": 16, "chunks": 4, "shard_format": sealed.Sealed(12)}


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(1, 2**32, (64, 64), dtype="u4")


@pytest.fixture
def paths(tmp_path, values):
    np.save(tmp_path / "values.npy", values)
    return tmp_path / "values.npy", tmp_path / "x.zarr"


@pytest.mark.parametrize(
    "strategy", ["morton", pytest.param("fixed-order", marks=pytest.mark.long)]
)
@pytest.mark.parametrize(
    "scheduler", [pytest.param("threads", marks=pytest.mark.long), "processes"]
)
def test_written_killed_resumed_verified_and_read(values, paths, scheduler, strategy):
    path = paths[1]
    more = f"strategy={strategy!r}, **NEW"
    reading.run(f"{PREPARE}\nwrite('sync', progress=die, {more})", *paths, code=-signal.SIGKILL)
    assert not (path / "zarr.json").exists()
    main = f"if __name__ == '__main__': print(write({scheduler!r}, {more}).n_resumed_shards)"
    assert 0 < int(reading.run(f"{PREPARE}\n{main}", *paths)) < 16
    assert shardwrite.verify(path, deep=True, against=da.from_array(values)).is_good
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(path), values)
    (codec,) = json.loads((path / "zarr.json").read_text())["codecs"]
    assert (codec["name"], codec["configuration"]["digest_nbytes"]) == ("sealed", 12)
    assert (path / "c/0/0").read_bytes().endswith(sealed.LETTERS)


@pytest.mark.compat
@pytest.mark.parametrize(
    "strategy",
    [
        shardwrite.FixedOrder(),
        shardwrite.AppendOnly(),
        shardwrite.AppendOnly(in_place=True),
        shardwrite.FixedOrder(in_place=True),
    ],
    ids=lambda strategy: strategy.label,
)
def test_updates(values, paths, strategy):
    x = da.from_array(values, chunks=(16, 64))
    x.to_sharded_zarr(paths[1], **NEW)
    (x[:20, :30] + 1).to_sharded_zarr(
        paths[1], region=(slice(5, 25), slice(7, 37)), strategy=strategy
    )
    wanted = values.copy()
    wanted[5:25, 7:37] = values[:20, :30] + 1
    np.testing.assert_array_equal(shardwrite.open_sharded(paths[1])[...], wanted)
    assert shardwrite.verify(paths[1], deep=True).is_good
    shardwrite.compact(paths[1], above=0)
    assert shardwrite.verify(paths[1]).unused_nbytes == 0


@pytest.mark.long
def test_an_update_is_killed_and_resumed(values, paths):
    reading.run(f"{PREPARE}\nwrite('threads', **NEW)", *paths)
    main = PREPARE.replace("(sys.argv[1])", "(sys.argv[1])[::-1]")
    update = "region=(slice(0, 64), slice(0, 64))"
    reading.run(f"{main}\nwrite('sync', {update}, progress=die)", *paths, code=-signal.SIGKILL)
    resumed = reading.run(f"{main}\nprint(write('sync', {update}).n_resumed_shards)", *paths)
    assert 0 < int(resumed) < 16
    np.testing.assert_array_equal(shardwrite.open_sharded(paths[1])[...], values[::-1])


def test_a_stream_and_a_broken_seal(values, paths):
    shardwrite.create(paths[1], (0, 64), "u4", **NEW)
    with shardwrite.ShardWriter(paths[1]) as writer:
        for row in values:
            writer.append(row)
    np.testing.assert_array_equal(shardwrite.open_sharded(paths[1])[...], values)
    shard = bytearray((paths[1] / "c/1/1").read_bytes())
    shard[-20] ^= 1
    (paths[1] / "c/1/1").write_bytes(shard)
    (problem,) = shardwrite.verify(paths[1]).problems
    assert (problem.key, "the seal is broken" in problem.message) == ("c/1/1", True)
    shardwrite.repair(paths[1], da.from_array(values))
    assert shardwrite.verify(paths[1], deep=True).is_good


@pytest.mark.long
def test_a_process_that_does_not_know_the_format_says_so(values, paths):
    da.from_array(values).to_sharded_zarr(paths[1], **NEW)
    program = """
import shardwrite, sys
try:
    shardwrite.open_sharded(sys.argv[2])[0, 0]
except shardwrite.CodecError as error:
    print(error)
"""
    assert "sealed" in reading.run(program, *paths)


@pytest.mark.long
def test_a_format_derived_from_the_usual_one_reaches_other_processes(values, paths):
    program = """
import dask, sys, numpy as np, dask.array as da, shardwrite
from shardwrite.format.sharding import ShardingIndexed
@shardwrite.register_shard_format
class Own(ShardingIndexed):
    name = "own_of_main"
if __name__ == "__main__":
    x = da.from_array(np.load(sys.argv[1]), chunks=16)
    own = Own([{"name": "bytes", "configuration": {"endian": "little"}}])
    with dask.config.set(scheduler="processes", num_workers=2):
        x.to_sharded_zarr(sys.argv[2], shards=16, chunks=4, shard_format=own)
        print(shardwrite.verify(sys.argv[2], deep=True).is_good)
"""
    assert reading.run(program, *paths) == "True"


@pytest.mark.compat
def test_what_is_refused(values, paths):
    x = da.from_array(values)

    class Unknown(sealed.Sealed):
        name = "unknown"

    for wrong in (Unknown(), "sealed", 5, sealed.Sealed):
        with pytest.raises(SpecError, match="not a shard format that is registered"):
            x.to_sharded_zarr(paths[1], **{**NEW, "shard_format": wrong})
    for more in ({"index_location": "start"}, {"index_codecs": ["bytes"]}):
        with pytest.raises(SpecError, match="is for the shard format sharding_indexed"):
            x.to_sharded_zarr(paths[1], **NEW, **more)
    with pytest.raises(SpecError, match="is for sharded arrays"):
        x.to_sharded_zarr(paths[1], **{**NEW, "shards": None})
    assert not paths[1].exists()
    with pytest.raises(SpecError, match="give the shard format another name"):
        shardwrite.register_shard_format(type("Other", (ShardingIndexed,), {}))
    for taken in ("bytes", "zstd"):
        with pytest.raises(SpecError, match="give the shard format another name"):
            shardwrite.register_shard_format(type("Other", (ShardingIndexed,), {"name": taken}))
    for wrong in ("", 5, []):
        with pytest.raises(SpecError, match="give it a text"):
            shardwrite.register_shard_format(type("Other", (ShardingIndexed,), {"name": wrong}))
    with pytest.raises(SpecError, match="it lacks"):
        shardwrite.register_shard_format(int)
    shardwrite.register_shard_format(sealed.Sealed)


def test_a_format_of_an_installed_package_is_found_by_its_entry_point(monkeypatch):
    class Installed(ShardingIndexed):
        name = "of_an_installed_package"

    monkeypatch.setattr(sharding, "installed", lambda kind: [Installed.name])
    monkeypatch.setattr(sharding, "needed", lambda *given, **more: Installed)
    try:
        assert sharding.shard_format_named(Installed.name) is Installed
    finally:
        del sharding._FORMATS[Installed.name]
