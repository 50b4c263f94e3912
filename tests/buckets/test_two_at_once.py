"""Two processes that change one array at once: what a call that returned has written is there, every
error is a typed one, and nothing is left over."""

from __future__ import annotations

import os
import subprocess
import time

import dask
import dask.array as da
import numpy as np
import pytest
import servers
from forks import python

import shardwrite

OLD = np.random.default_rng(0).integers(1, 2**32, (24, 16), dtype="u4")
LAYOUT = {"shards": 8, "chunks": 4}
KEPT = ["shardwrite-receipt.json", "zarr.json"]
LONG = pytest.mark.long
TYPED = ("JournalError", "RunEndedError", "SpecError")
REGIONS = {"low": np.s_[0:14, 0:16], "high": np.s_[6:24, 3:16]}
NUMBERS = {"new": 3, "other": 4, "again": 5, "low": 6, "high": 7, "stream": 8}

PROGRAM = """
import sys, time
import dask, numpy as np, dask.array as da
import shardwrite
what, url, run_dir, number, pause = sys.argv[1:]
run_dir, number, pause = run_dir or None, int(number), float(pause)
regions = {"low": np.s_[0:14, 0:16], "high": np.s_[6:24, 3:16]}

def slowly(report):
    time.sleep(pause)

try:
    with dask.config.set(scheduler="sync"):
        if what == "abandon":
            shardwrite.abandon(url, run_dir=run_dir)
        elif what == "stream":
            with shardwrite.ShardWriter(url, run_dir=run_dir) as writer:
                for _ in range(12):
                    writer.append(np.full(16, number, "u4"))
                    writer.flush()
        else:
            shape = np.empty((24, 16), "u4")[regions.get(what, ...)].shape
            x = da.full(shape, number, chunks=(6, 16), dtype="u4")
            how = {"shards": 8, "chunks": 4, "mode": "w" if what == "again" else "w-"}
            if what in regions:
                how = {"region": regions[what]}
            x.to_sharded_zarr(url, run_dir=run_dir, source_id=what, progress=slowly,
                              memory_limit="20kB", **how)
    print("done")
except shardwrite.ShardwriteError as error:
    print(type(error).__name__, error)
"""


def start(server, url, run_dir, what):
    words = [what, url, run_dir, NUMBERS.get(what, 0), 0.03]
    return subprocess.Popen(
        [*python(), "-c", PROGRAM, *map(str, words)],
        env={**os.environ, **server.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, trouble = process.communicate(timeout=120)
    assert process.returncode == 0, trouble
    return out.strip()


def at_once(server, url, run_dir, first, second, pause):
    """What two processes say, of which the second begins a while after the first.

    Both may give way to each other. Then the first call is made again.
    """
    one = start(server, url, run_dir, first)
    time.sleep(pause)
    other = start(server, url, run_dir, second)
    said = [ended(one), ended(other)]
    assert all(text.split()[0] in ("done", *TYPED) for text in said), said
    if "done" not in said:
        said[0] = ended(start(server, url, run_dir, first))
    return said


def check(found, said, first, second, told):
    """Every element is of a call that returned, unless no such call covers it."""
    done = [what for what, one in zip((first, second), said, strict=True) if one == "done"]
    covered = np.zeros(found.shape, bool)
    allowed = np.zeros(found.shape, bool)
    for what in done:
        box = np.s_[24:] if what == "stream" else REGIONS.get(what, np.s_[:24])
        if what != "abandon":
            covered[box] = True
            allowed[box] |= found[box] == NUMBERS[what]
    assert allowed[covered].all(), told
    return done


PAIRS = [
    ("new", "new"),
    ("new", "other"),
    ("again", "low"),
    ("low", "high"),
    ("stream", "low"),
    ("stream", "stream"),
    ("low", "abandon"),
    ("new", "abandon"),
    ("stream", "abandon"),
    ("again", "stream"),
]


@pytest.mark.parametrize("where", ["bucket", pytest.param("directory", marks=LONG)])
@pytest.mark.parametrize(
    ("first", "second"),
    [pytest.param(*pair, marks=[] if pair == ("low", "high") else LONG) for pair in PAIRS],
)
def test_two_at_once(moto, url, tmp_path, first, second, where):
    run_dir = "" if where == "bucket" else str(tmp_path / "runs")
    given = {"run_dir": run_dir or None}
    for number, pause in enumerate((0, 0.15)):
        at = f"{url}-{number}"
        if "new" not in (first, second):
            with dask.config.set(scheduler="sync"):
                da.from_array(OLD, chunks=8).to_sharded_zarr(at, **given, **LAYOUT)
        said = at_once(moto, at, run_dir, first, second, pause)
        told = f"{first}, {second}, {pause}: {said}"
        assert any(one == "done" for one in said), told
        if moto.keys_of(at):
            check(servers.values_of(moto, at), said, first, second, told)
            assert shardwrite.verify(at, deep=True, **given).is_good, told
        left = [key for key in moto.keys_of(at) if not key.startswith("c/")]
        assert left in (KEPT, []), told
        assert not run_dir or not list((tmp_path / "runs").iterdir()), told
