"""Another program reads and writes the state of a run by docs/design/run-state.md alone.

What it needs is written here again, with numpy, the checksum and the standard library."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import seams
from crc32c import crc32c

import shardwrite

VALUES = np.arange(32 * 32, dtype="u2").reshape(32, 32) + 1
LAYOUT = {"shards": 8, "chunks": 4, "compressors": None, "source_id": "it"}
N_SHARDS = 16


# ---- the other program


def sealed_plan(text):
    """A plan, after a check of its checksum."""
    plan = json.loads(text)
    others = {name: value for name, value in plan.items() if name != "crc32c"}
    assert plan["crc32c"] == crc32c(json.dumps(others, sort_keys=True).encode())
    return plan


def lines_in(data):
    """Whole lines of a journal."""
    for line in data.split(b"\n"):
        if line[8:9] == b" " and int(line[:8], 16) == crc32c(line[9:]):
            yield json.loads(line[9:])


def line_of(fields):
    text = json.dumps(fields).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def done_in(lines):
    return {rank for line in lines for rank in line.get("shards", ())}


def state_in(directory):
    """What stands in a directory of run state: the plan, its directory, and the shards that are
    done."""
    plan = sealed_plan((directory / "plan.json").read_text())
    run = directory / f"run-{plan['run']}"
    document = (run / "zarr.json").read_bytes()
    assert plan["document_crc32c"] == crc32c(document)
    done = set()
    for journal in run.rglob("journal-*.jsonl"):
        done |= done_in(lines_in(journal.read_bytes()))
    return plan, run, done


def write_shard(array, index):
    """A raw shard of 2 x 2 inner chunks, with its index at the end; its size and the table."""
    rows, columns = (slice(8 * i, 8 * i + 8) for i in index)
    block, data, table = VALUES[rows, columns], b"", []
    for i in (0, 4):
        for j in (0, 4):
            chunk = np.ascontiguousarray(block[i : i + 4, j : j + 4]).tobytes()
            table.append((len(data), len(chunk)))
            data += chunk
    entries = np.array(table, dtype="<u8").tobytes()
    whole = data + entries + crc32c(entries).to_bytes(4, "little")
    path = array / "c" / str(index[0]) / str(index[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".mine").write_bytes(whole)
    path.with_suffix(".mine").rename(path)
    return len(whole), crc32c(entries)


def write_some(directory, array, ranks):
    """Join the run, commit shards as the page says, and enter them."""
    plan, run, _ = state_in(directory)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    me = {"host": os.uname().nodename, "pid": os.getpid(), "boot": boot, "ttl": 120}
    (run / "draft-mine").write_text(json.dumps(me))
    (run / "draft-mine").rename(run / "lease-mine.json")
    (run / "token-mine").touch()
    with open(run / f"journal-mine-{me['host']}-{me['pid']}-x.jsonl", "ab") as journal:
        head = {"writer": me, "driver": "mine", "durability": plan["durability"]}
        journal.write(line_of({**head, "begun": time.time()}))
        for rank in ranks:
            index = divmod(rank, 4)
            box = [list(index), [i + 1 for i in index]]
            journal.write(line_of({"attempt": f"mine.{rank}", "begins": box}))
            assert (run / "token-mine").exists(), "the run goes on"
            nbytes, crc = write_shard(array, index)
            entry = {"attempt": f"mine.{rank}", "shards": [rank], "nbytes": [nbytes]}
            facts = {"index_crcs": [crc], "n_chunks": [4], "seconds": 0.1, "peak_nbytes": 0}
            journal.write(line_of({**entry, **facts}))
    (run / "lease-mine.json").unlink()


def log_in(objects, prefix=""):
    """Files of the state in a bucket: what its log says, as paths and contents."""
    found = {}
    lease = json.loads(objects[f"{prefix}shardwrite-run/lease.json"])
    own = f"{prefix}shardwrite-run/{lease['state']}"
    for key in sorted(key for key in objects if key.startswith((f"{own}-", f"{own}."))):
        head, _, data = objects[key].partition(b"\n")
        head = json.loads(head)
        assert head["crc32c"] == crc32c(data)
        for what, path, to, nbytes in head["steps"]:
            content, data = data[:nbytes], data[nbytes:]
            if what == "file":
                found[path] = content
            elif what == "append":
                found[path] = found.get(path, b"") + content
            elif what in ("rename", "remove"):
                inside = [old for old in found if f"{old}/".startswith(f"{path}/")]
                moved = {to + old[len(path) :]: found.pop(old) for old in inside}
                found |= moved if what == "rename" else {}
    return lease, found


# ---- what it reads is what the package has written, and the other way round


def interrupt(*_):
    raise InterruptedError


def begin(store, **more):
    x = da.from_array(VALUES, chunks=8)
    with dask.config.set(scheduler="sync"), pytest.raises(InterruptedError):
        x.to_sharded_zarr(store, progress=interrupt, memory_limit="1kB", **LAYOUT, **more)


def go_on(store, **more):
    with dask.config.set(scheduler="sync"):
        return da.from_array(VALUES, chunks=8).to_sharded_zarr(store, **LAYOUT, **more)


def test_what_a_directory_says(tmp_path):
    begin(tmp_path / "x.zarr")
    plan, run, done = state_in(tmp_path / "x.zarr.shardwrite")
    assert done == seams.done_shards(tmp_path / "x.zarr")
    assert 0 < len(done) < N_SHARDS
    assert (plan["mode"], plan["replaces"], plan["array"]) == ("w-", False, "x.zarr")
    assert {path.name.partition("-")[0] for path in run.iterdir()} <= {
        "journal",
        "plan.json",
        "token",
        "zarr.json",
    }


def test_another_program_writes_shards_of_the_run(tmp_path):
    array = tmp_path / "x.zarr"
    begin(array)
    _, _, done = state_in(tmp_path / "x.zarr.shardwrite")
    mine = sorted(set(range(N_SHARDS)) - done)[:5]
    write_some(tmp_path / "x.zarr.shardwrite", array, mine)
    assert seams.done_shards(array) == done | {*mine}
    assert go_on(array).n_resumed_shards == len(done) + 5
    np.testing.assert_array_equal(shardwrite.open_sharded(array)[:, :], VALUES)
    assert shardwrite.verify(array, deep=True).is_good
    assert not (tmp_path / "x.zarr.shardwrite").exists()


def test_a_line_that_is_torn_is_left_out(tmp_path):
    array = tmp_path / "x.zarr"
    begin(array)
    _, run, done = state_in(tmp_path / "x.zarr.shardwrite")
    (journal,) = run.glob("journal-*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(n for n, line in enumerate(lines) if b'"shards"' in line)
    journal.write_bytes(b"".join(lines[: last + 1])[:-3])
    _, _, left = state_in(tmp_path / "x.zarr.shardwrite")
    assert left < done
    assert seams.done_shards(array) == left


def test_a_run_whose_directory_has_another_name_goes_on_no_longer(tmp_path):
    array = tmp_path / "x.zarr"
    begin(array)
    plan, run, _ = state_in(tmp_path / "x.zarr.shardwrite")
    run.rename(run.with_name(f"taken-{plan['run']}"))
    assert not seams.has_run(array)
    assert go_on(array).n_resumed_shards == 0


def test_what_a_bucket_says(tmp_path):
    """The bucket is a store of another package that holds the state of runs."""
    import importlib.util

    place = os.path.join(os.path.dirname(__file__), "..", "extending", "database.py")
    spec = importlib.util.spec_from_file_location("database", place)
    database = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(database)
    store = database.StatefulStore(tmp_path / "objects.db")
    begin(store, name="a")
    objects = {key: store.read_whole(key, 2**20) for key in store.list_keys()}
    lease, files = log_in(objects, "a/")
    assert (lease["holder"], lease["format"]) == ("", 1)
    plan = sealed_plan(files["plan.json"])
    mark = json.loads(objects["a/shardwrite-run.json"])
    assert mark["run"] == plan["run"]
    assert crc32c(files[f"run-{plan['run']}/zarr.json"]) == plan["document_crc32c"]
    journals = [data for path, data in files.items() if path.endswith(".jsonl")]
    done = set().union(*(done_in(lines_in(data)) for data in journals))
    there = [key for key in objects if key.startswith("a/c/")]
    assert 0 < len(done) <= len(there) < N_SHARDS
    assert go_on(store, name="a").n_resumed_shards == len(there)
    np.testing.assert_array_equal(shardwrite.open_sharded(store, "a")[:, :], VALUES)
