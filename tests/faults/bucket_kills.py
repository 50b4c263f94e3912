"""SIGKILL at random moments of writes into a bucket: what was acknowledged is there, the same call
makes the rest, and no object is left over.

The bucket is one of a real server, moto or SeaweedFS. One process that never starts a thread forks
a child for each step. Run as ``python tests/faults/bucket_kills.py --kills 200 --seed 0 --server
moto --json out.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import numpy as np
import obstore
import zarr.storage  # noqa: F401 (imported before processes are forked)
from obstore.store import S3Store  # noqa: F401 (imported before processes are forked)

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import oracle
import servers
from helpers import MEMORY
from kills import child, ended_well, is_over, slowly

for _name in shardwrite.__all__:  # Everything is imported before processes are forked.
    getattr(shardwrite, _name)

SIZES = SimpleNamespace(side=32, shard=8, chunk=4, columns=16)
"""Of the arrays: chunks of the source have so many columns."""
KEPT = {"shardwrite-receipt.json", "zarr.json"}
NEW, OLD = 1, 1000
OPERATIONS = ("new", "again", "region", "append", "erase", "stream", "several", "several again")
OTHERS = ("group/second", "a/third")
"""Arrays that several operations write by the same run. Its state lies in the last one."""
FLUSH = 3
AGAIN = 0.3
"""How often a call that goes on is killed, too."""


@dataclass
class Kill:
    """One kill and what came of it.

    Attributes
    ----------
    operation : str
        What was killed.
    delay : float
        Seconds from its begin to the kill.
    acked, there : int
        Shards, or slices of a stream, that were acknowledged by then, and objects in the bucket.
    lost, torn : int
        Whether one that was acknowledged was lost, and whether another one was torn.
    left : int
        Objects that were left over in the end.
    finished : bool
        Whether the call had ended before the kill came.
    trouble : str
        Why the judgement failed.
    """

    operation: str
    delay: float = 0.0
    acked: int = 0
    there: int = 0
    lost: int = 0
    torn: int = 0
    left: int = 0
    finished: bool = False
    trouble: str = ""

    @property
    def vacuous(self) -> bool:
        """Whether nothing was interrupted."""
        return self.finished


def layout():
    return {"shards": SIZES.shard, "chunks": SIZES.chunk}


def region():
    """A box that covers some shards, and others in part."""
    side = SIZES.side
    return np.s_[side // 10 : side - side // 16, side // 16 : side - side // 6]


def old_values():
    return oracle.values((SIZES.side, SIZES.side), OLD)


def values_after(operation):
    """The array in the end."""
    new, old = oracle.values((SIZES.side, SIZES.side), NEW), old_values()
    if operation in ("region", "erase"):
        old[region()] = new[region()] if operation == "region" else 0
        return old
    if operation == "append":
        return np.concatenate([old, new])
    return new


def prepare(operation, url):
    """What is there before the call."""
    with dask.config.set(scheduler="sync"):
        if operation == "several again":
            store_several(url, old_values(), lambda report: None)
        elif operation in ("again", "region", "append", "erase"):
            x = da.from_array(old_values(), chunks=SIZES.shard)
            x.to_sharded_zarr(url, **layout())
        elif operation == "stream":
            shardwrite.create(url, (0, SIZES.side), "u4", **layout())


def work(operation, url, acks, scheduler):
    """The call that is killed, and made again."""
    with dask.config.set(scheduler=scheduler, num_workers=2):
        if operation == "stream":
            stream(url, acks)
        elif operation == "erase":
            shardwrite.erase(url, region())
        elif operation.startswith("several"):
            values = oracle.values((SIZES.side, SIZES.side), NEW)
            mode = "w" if operation == "several again" else "w-"
            store_several(url, values, slowly(acks), source_id="it", mode=mode)
        else:
            values = oracle.values((SIZES.side, SIZES.side), NEW)
            x = da.from_array(values, chunks=(SIZES.shard, SIZES.columns))
            x = x[region()] if operation == "region" else x
            how = {
                "new": layout(),
                "again": {**layout(), "mode": "w"},
                "region": {"region": region()},
                "append": {"region": "append", "axis": 0},
            }[operation]
            x.to_sharded_zarr(url, source_id="it", progress=slowly(acks), **how)


def store_several(url, values, acknowledge, **more):
    """Write an array and two others into one hierarchy; shards of the first one are counted."""
    root, _, name = url.rpartition("/")
    x = da.from_array(values, chunks=(SIZES.shard, SIZES.columns))

    def progress(report):
        if report.entry.output == 0:
            acknowledge(report)

    arrays = [x + n for n in range(1 + len(OTHERS))]
    names = [name, *OTHERS]
    shardwrite.store(
        arrays, [root] * len(names), names=names, progress=progress, **layout(), **more
    )


def judge_others(server, root, scratch):
    """The other arrays of a hierarchy are whole, and nothing else is left in it; leftovers."""
    wanted = values_after("several")
    for n, name in enumerate(OTHERS, 1):
        fetched(server, f"{root}/{name}", scratch / "other")
        for reader, found in oracle.read_everywhere(
            scratch / "other", oracle.metadata_of(scratch / "other")
        ).items():
            np.testing.assert_array_equal(found, wanted + np.uint32(n), err_msg=reader)
    known = {f"{name}/{leaf}" for name in ("x.zarr", *OTHERS) for leaf in KEPT}
    known |= {"zarr.json", "group/zarr.json", "a/zarr.json"}
    return [key for key in server.keys_of(root) if "/c/" not in key and key not in known]


def stream(url, acks):
    """Append slices from where the array ends, and flush after every few."""
    side = SIZES.side
    whole = oracle.values((side, side), NEW)
    with shardwrite.ShardWriter(url, n_threads=2) as writer:
        n_before = writer.shape[0]
        for t in range(n_before, side):
            writer.append(whole[t])
            if t % FLUSH == FLUSH - 1:
                writer.flush()
                acks.path.write_text(str(t + 1))
    acks.path.write_text(str(side))


def acknowledged(operation, acks):
    """Ranks of shards, or how many slices."""
    if operation == "stream":
        return int(acks.path.read_text() or 0) if acks.path.exists() else 0
    return acks.ranks()


def fetched(server, url, path):
    """Copy what lies in the bucket into a directory; the keys."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    client = server.client(servers.below_bucket(url))
    keys = server.keys_of(url)
    for key in keys:
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(bytes(obstore.get(client, key).bytes()))
    return keys


def judge_killed(operation, server, url, acked, document, scratch):
    """Every shard that was acknowledged is there, and every other one is old, new or missing."""
    path = scratch / "x.zarr"
    keys = fetched(server, url, path)
    (scratch / "n").write_text(f"{len(keys)}")
    (path / "zarr.json").write_text(document)
    metadata = oracle.metadata_of(path)
    wanted = values_after(operation)
    old = np.zeros_like(wanted)
    if operation in ("region", "append", "erase", "again", "several again"):
        old[: SIZES.side] = old_values()
    if operation != "stream":
        oracle.check_partial(path, acked, old, wanted)
        return
    for name, found in oracle.read_everywhere(path, metadata).items():
        assert (found[:acked] == wanted[:acked]).all(), f"{name}: acknowledged slices are lost"
        chunk, n_chunks = SIZES.chunk, SIZES.side // SIZES.chunk
        for at in np.ndindex(n_chunks, n_chunks):
            box = tuple(slice(chunk * i, chunk * (i + 1)) for i in at)
            rows = (found[box] == wanted[box]).all(axis=1) | (found[box] == 0).all(axis=1)
            assert rows.all(), f"{name}: inner chunk {at} is torn"


def judge_whole(operation, server, url, scratch):
    """Three readers agree with the source, and nothing is left over."""
    path, wanted = scratch / "x.zarr", values_after(operation)
    keys = fetched(server, url, path)
    left = [key for key in keys if not key.startswith("c/") and key not in KEPT]
    shards = [key for key in keys if key.startswith("c/")]
    metadata = oracle.metadata_of(path)
    known = {metadata.shard_key(index) for index in metadata.grid.shards_in(metadata.grid.whole)}
    left += sorted(set(shards) - known)
    if operation.startswith("several"):
        root = url.rpartition("/")[0]
        left += judge_others(server, root, scratch)
        obstore.delete(
            server.client(servers.below_bucket(root)),
            [key for key in server.keys_of(root) if not key.startswith("x.zarr/")],
        )
    (scratch / "left").write_text("\n".join(left))
    for name, found in oracle.read_everywhere(path, metadata).items():
        np.testing.assert_array_equal(found, wanted, err_msg=name)
    obstore.delete(server.client(servers.below_bucket(url)), keys)


def document_of(operation, server, url, scratch):
    """The document of the array in the end."""
    path = scratch / "x.zarr"
    fetched(server, url, path)
    (scratch / "document").write_text((path / "zarr.json").read_text())


def in_child(scratch, function, *arguments):
    """Call a function in a process of its own; what went wrong."""
    log = scratch / "log"
    log.unlink(missing_ok=True)
    return ended_well(child(function, *arguments, log=log), log)


@contextmanager
def scratch_directory():
    home = MEMORY
    directory = Path(tempfile.mkdtemp(prefix="kills-", dir=home))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def in_other_process(name):
    """A server that a child runs, so that this process starts no thread and no connection."""
    answer, ask = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ask[1])
            with scratch_directory() as directory:
                made = servers.moto() if name == "moto" else servers.seaweed(directory)
                with made as server:
                    os.write(answer[1], server.endpoint.encode())
                    os.read(ask[0], 1)
        finally:
            os._exit(0)
    os.close(answer[1])
    os.close(ask[0])
    try:
        endpoint = os.read(answer[0], 1000).decode()
        assert endpoint, f"the server {name} did not start"
        yield servers.Server(endpoint)
    finally:
        os.close(ask[1])
        os.waitpid(pid, 0)


def machine(scratch, rng):
    """Temporary directories of one of two machines."""
    directory = scratch / f"machine-{rng.integers(2)}"
    directory.mkdir(exist_ok=True)
    os.environ["TMPDIR"], tempfile.tempdir = str(directory), None


def measured(operation, server, scratch):
    """How long the call takes, and the document that it leaves."""
    url = f"s3://{servers.BUCKET}/{operation}/x.zarr"
    trouble = in_child(scratch, prepare, operation, url)
    begun = time.monotonic()
    acks = oracle.Acks(scratch / f"acks-{operation}")
    trouble += in_child(scratch, work, operation, url, acks, "threads")
    seconds = time.monotonic() - begun
    trouble += in_child(scratch, document_of, operation, server, url, scratch)
    trouble += in_child(scratch, judge_whole, operation, server, url, scratch)
    assert not trouble, (operation, trouble)
    return seconds, (scratch / "document").read_text()


def wait_for(pid, seconds):
    """Wait for some seconds, or until a process ends."""
    until(lambda: False, pid, seconds)


def until(happened, pid, seconds=60.0):
    """Wait until something happened, a process ends, or seconds are over."""
    begun = time.monotonic()
    while time.monotonic() - begun < seconds and not is_over(pid) and not happened():
        time.sleep(0.001)


def kill_some(operation, server, url, rng, known, after_commit):
    """One array: killed once or more, and finished. The first kill may wait for a commit."""
    seconds, document = known
    kills, scheduler = [], rng.choice(["sync", "threads"])
    with scratch_directory() as scratch:
        machine(scratch, rng)
        trouble = in_child(scratch, prepare, operation, url)
        assert not trouble, trouble
        acks = oracle.Acks(scratch / "acks")
        while not kills or (rng.random() < AGAIN and not kills[-1].finished):
            delay = float(rng.uniform(0, 1.05 * seconds))
            machine(scratch, rng)
            begun = time.monotonic()
            pid = child(work, operation, url, acks, scheduler, log=scratch / "log")
            if after_commit and not kills and operation != "erase":  # It tells of no commit.
                until(lambda: acknowledged(operation, acks), pid)
                delay *= rng.random()
            wait_for(pid, delay)
            found = Kill(operation, delay=time.monotonic() - begun)
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            found.finished = os.WIFEXITED(status)
            if found.finished and status:
                found.trouble = (scratch / "log").read_text()
            acked = acknowledged(operation, acks)
            found.acked = acked if operation == "stream" else len(acked)
            found.trouble += in_child(
                scratch, judge_killed, operation, server, url, acked, document, fresh(scratch)
            )
            found.lost = int("lost" in found.trouble)
            found.torn = int("torn" in found.trouble)
            found.there = int((scratch / "judged" / "n").read_text())
            kills.append(found)
        machine(scratch, rng)
        kills[-1].trouble += in_child(scratch, work, operation, url, acks, scheduler)
        kills[-1].trouble += in_child(scratch, judge_whole, operation, server, url, fresh(scratch))
        left = scratch / "judged" / "left"
        names = left.read_text().split() if left.exists() else []
        kills[-1].left = len(names)
        if names:
            kills[-1].trouble += f"left over: {names}"
    return kills


def fresh(scratch):
    """An empty directory for a copy."""
    shutil.rmtree(scratch / "judged", ignore_errors=True)
    (scratch / "judged").mkdir()
    return scratch / "judged"


def kill_many(n_kills, seed, name, operations=OPERATIONS) -> list[Kill]:
    """Many arrays, a kill or more each: a half at any moment, a half after a first commit.

    A kill counts if it interrupted something. A call that ended before it shows how long calls take.
    """
    kills: list[Kill] = []
    with in_other_process(name) as server, scratch_directory() as scratch:
        os.environ.update(server.environment)
        known = {}
        number = 0
        while sum(not kill.vacuous for kill in kills) < n_kills and len(kills) < 4 * n_kills:
            rng = np.random.default_rng([seed, number])
            operation = operations[number % len(operations)]
            if operation not in known:
                known[operation] = measured(operation, server, scratch)
            url = f"s3://{servers.BUCKET}/{operation}-{number}/x.zarr"
            after_commit = (number // len(operations)) % 2 == 0
            new = kill_some(operation, server, url, rng, known[operation], after_commit)
            seconds, document = known[operation]
            ended = [kill.delay for kill in new if kill.finished]
            known[operation] = min([seconds, *ended]), document
            kills += new
            number += 1
    return kills


def summary(kills) -> dict:
    """Sums over many kills."""
    return {
        "kills": len(kills),
        **{
            name: sum(getattr(kill, name) for kill in kills)
            for name in ("vacuous", "acked", "lost", "torn", "left")
        },
        "troubles": [f"{kill.operation}: {kill.trouble}" for kill in kills if kill.trouble],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", choices=["moto", "seaweed"], default="moto")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS)
    parser.add_argument("--json", help="write every kill to this file")
    given = parser.parse_args()
    kills = kill_many(given.kills, given.seed, given.server, given.operations or OPERATIONS)
    if given.json:
        Path(given.json).write_text(
            json.dumps({"summary": summary(kills), "kills": [asdict(kill) for kill in kills]})
        )
    print(json.dumps(summary(kills), indent=1))


if __name__ == "__main__":
    main()
