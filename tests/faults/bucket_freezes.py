"""A process is frozen before a request to a bucket, another takes over, the request arrives late.

The first process makes an array, updates a region of one, or appends. A proxy before a real server
stops it (SIGSTOP) at its k-th request that changes something, and keeps the request: a PUT or a
removal. The lease runs out, since its life is made short. A second process writes other values to
the same place, or makes the same call, and returns. Only then does the server get the late request,
and the first process goes on to its end. The array must be what the second process has
acknowledged, and nothing is left over.

``--of-shards`` takes only requests for shards. Each of them has a condition, also where an append or
a region covers a shard as a whole.

Run as ``python tests/faults/bucket_freezes.py --freezes 60 --seed 0 --server moto --json out.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import dask.array as da
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
sys.path.insert(0, str(Path(__file__).parent))
import oracle
import proxy
import servers
from in_buckets import fetched, fresh, in_child, in_other_process, scratch_directory
from kills import child, ended_well
from told import LAYOUT, SHARD, SIDE

from shardwrite import JournalError

OPERATIONS = ("new", "region", "append")
TAKEOVERS = ("another", "the same")
KEPT = {"shardwrite-receipt.json", "zarr.json"}
OLD, FIRST, SECOND = 1000, 1, 2
TTL = 1.0
GIVEN = {"scheduler": "sync", "shardwrite.lease.heartbeat": 0.2, "shardwrite.lease.ttl": TTL}
LONGEST = 120


@dataclass
class Freeze:
    """One freeze and what came of it.

    Attributes
    ----------
    operation, takeover : str
        What the frozen process did, and how another took over.
    before : str
        Kind of the request that came late; empty if the process had ended before.
    first : str
        What the frozen process came to at last.
    acked : int
        How many of the two calls have returned.
    lost, left : int
        Whether the array is not what the second process acknowledged; objects left over.
    trouble : str
        Why the judgement failed.
    """

    operation: str
    takeover: str
    before: str = ""
    first: str = ""
    acked: int = 0
    lost: int = 0
    left: int = 0
    trouble: str = ""


def region():
    """A box in all shards of a column. It covers all but the first and the last one as a whole."""
    side, shard = SIDE, SHARD
    return np.s_[side // 16 : side - side // 16, :shard]


def n_rows_before():
    """So many that an append changes shards that are there."""
    return SIDE - SHARD // 2


def prepare(operation, url):
    if operation != "new":
        n_rows = SIDE if operation == "region" else n_rows_before()
        x = da.from_array(oracle.values((n_rows, SIDE), OLD), chunks=SHARD)
        with dask.config.set(scheduler="sync"):
            x.to_sharded_zarr(url, **LAYOUT)


def values_after(operation, version):
    side = SIDE
    whole = oracle.values((side, side), version)
    if operation == "new":
        return whole
    if operation == "append":
        old = oracle.values((n_rows_before(), side), OLD)
        return np.concatenate([old, whole[:SHARD]])
    old = oracle.values((side, side), OLD)
    old[region()] = whole[region()]
    return old


def work(operation, url, version, **more):
    """Write the values of a version."""
    x = da.from_array(oracle.values((SIDE, SIDE), version), chunks=SHARD)
    if operation == "new":
        more |= LAYOUT
    elif operation == "append":
        x, more["region"] = x[:SHARD], "append"
    else:
        x, more["region"] = x[region()], region()
    with dask.config.set(GIVEN):
        x.to_sharded_zarr(url, source_id=f"version {version}", **more)


def take_over(operation, takeover, url):
    """Make a call again and again until the lease of the frozen process has run out."""
    version, more = (SECOND, {"restart": True}) if takeover == "another" else (FIRST, {})
    until = time.monotonic() + LONGEST
    while True:
        try:
            work(operation, url, version, **more)
            return
        except JournalError as error:
            if "is being written by another process" not in str(error):
                raise
            assert time.monotonic() < until, "the lease does not run out"
            time.sleep(0.1)


def kind_of(method, path, headers):
    """What a request changes, and on which condition; empty if it changes nothing."""
    if method not in ("PUT", "DELETE"):
        return ""
    at, what = urlsplit(unquote(path)), "document"
    for part, name in {"/c/": "shard", "lease.json": "lease", "shardwrite-run": "state"}.items():
        what = name if part in at.path else what
    names = [name for name in ("If-Match", "If-None-Match") if name in headers]
    return " ".join([method, what, *names])


def pass_on(endpoint, directory, wanted, number):
    """Be the proxy: the request of this kind with this number is kept until the file ``thaw``."""
    seen, lock = Counter(), threading.Lock()

    class Keeping(proxy.Passing):
        def forwarded(self, body):
            kind = kind_of(self.command, self.path, self.headers)
            with lock:
                seen[kind] += 1
                is_it = (kind, seen[kind]) == (wanted, number)
                with open(directory / "kinds", "a") as kinds:
                    kinds.write(f"{kind}\n")
            if not is_it:
                return super().forwarded(body)
            os.kill(int((directory / "pid").read_text()), signal.SIGSTOP)
            (directory / "frozen").write_text(kind)
            while not (directory / "thaw").exists():
                time.sleep(0.005)
            answer = super().forwarded(body)
            (directory / "arrived").write_text(str(answer[0]))
            return answer

    upstream = urlsplit(endpoint).netloc
    with proxy.serving(Keeping, upstream=upstream, faults=proxy.Faults()) as netloc:
        (directory / "address.part").write_text(netloc)
        (directory / "address.part").rename(directory / "address")
        signal.pause()


def first(operation, url, directory):
    """Be the process that is frozen, once its number is known."""
    awaited(directory / "pid")
    os.environ["AWS_ENDPOINT_URL"] = f"http://{(directory / 'address').read_text()}"
    try:
        work(operation, url, FIRST)
        outcome = "done"
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    (directory / "outcome").write_text(outcome)


def awaited(path, pid=0):
    """Wait for a file, or the end of a process; whether the file is there."""
    until = time.monotonic() + LONGEST
    while not path.exists():
        if pid and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return path.exists()
        assert time.monotonic() < until, f"{path.name} does not come"
        time.sleep(0.005)
    return True


def judge(operation, takeover, server, url, directory, is_done):
    """Three readers agree with what the second process has written, and nothing is left over.

    If the first process returned, its values may have come after those of the second. An append may
    also have come before, if the first process had done all but removing its state.
    """
    path, side, shard = directory / "x.zarr", SIDE, SHARD
    keys = fetched(server, url, path)
    left = [key for key in keys if not key.startswith("c/") and key not in KEPT]
    (directory / "left").write_text("\n".join(left))
    wanted = [values_after(operation, SECOND if takeover == "another" else FIRST)]
    if is_done and takeover == "another":  # the frozen process had not begun, and came second
        wanted.append(values_after(operation, FIRST))
        if operation == "append":
            appended = [oracle.values((side, side), n)[:shard] for n in (FIRST, SECOND)]
            wanted[1] = np.concatenate([wanted[0], appended[0]])
            wanted.append(np.concatenate([values_after(operation, FIRST), appended[1]]))
    for name, found in oracle.read_everywhere(path, oracle.metadata_of(path)).items():
        assert any(np.array_equal(found, one) for one in wanted), f"{name}: lost"


def freeze(case, server, url, wanted, number):
    """Make a freeze, and judge it."""
    with scratch_directory() as scratch:
        directory = scratch / "case"
        directory.mkdir()
        os.environ["TMPDIR"] = str(directory)
        case.trouble = in_child(scratch, prepare, case.operation, url)
        assert not case.trouble, case.trouble
        keeper = child(pass_on, server.endpoint, directory, wanted, number, log=scratch / "proxy")
        try:
            awaited(directory / "address")
            pid = child(first, case.operation, url, directory, log=scratch / "first")
            (directory / "pid.part").write_text(str(pid))
            (directory / "pid.part").rename(directory / "pid")
            if awaited(directory / "frozen", pid):
                case.before = (directory / "frozen").read_text()
                time.sleep(TTL)
                os.environ["TMPDIR"] = str(fresh(scratch))
                begun = case.operation, case.takeover, url
                case.trouble = in_child(scratch, take_over, *begun)
                case.acked += not case.trouble
                (directory / "thaw").touch()
                awaited(directory / "arrived")
                os.kill(pid, signal.SIGCONT)
            case.trouble += ended_well(pid, scratch / "first")
        finally:
            os.kill(keeper, signal.SIGKILL)
            os.waitpid(keeper, 0)
        case.first = (directory / "outcome").read_text()
        case.acked += case.first == "done"
        if case.before:
            judged = fresh(scratch)
            of = case.operation, case.takeover, server, url, judged, case.first == "done"
            case.trouble += in_child(scratch, judge, *of)
            case.lost = int("lost" in case.trouble)
            left = (judged / "left").read_text().split() if (judged / "left").exists() else []
            case.left = len(left)
            case.trouble += f"left over: {left}" if left else ""
        return (directory / "kinds").read_text().splitlines()


def freeze_many(n, seed, name, operations=OPERATIONS, only="") -> list[Freeze]:
    """Many freezes. Kinds of requests take turns; those of shards come twice as often.

    With `only`, no other kinds than those that contain this text come. How many requests of a kind
    a call makes can differ, since some are sent again when the server is slow. A process that ends
    before the request is no freeze: it is listed, too, and later numbers are smaller.
    """
    freezes, rng = [], np.random.default_rng(seed)
    with in_other_process(name) as server:
        os.environ.update(server.environment)
        known, taken = {}, Counter()
        for operation in operations:  # undisturbed, which tells the requests
            url = f"s3://{servers.BUCKET}/{operation}/x.zarr"
            case = Freeze(operation, "")
            kinds = Counter(freeze(case, server, url, "nothing", 0))
            assert case.first == "done", case.first
            known[operation] = {kind: kinds[kind] for kind in kinds if kind and only in kind}
        while sum(bool(case.before) for case in freezes) < n:
            assert len(freezes) < 2 * n + 2, "most processes end before the request comes"
            operation = operations[len(freezes) % len(operations)]
            takeover = TAKEOVERS[len(freezes) // len(operations) % len(TAKEOVERS)]
            kinds = known[operation]
            share = {kind: taken[operation, kind] / (1 + ("shard" in kind)) for kind in kinds}
            wanted = min(kinds, key=lambda kind: (share[kind], rng.random()))
            number = int(rng.integers(1, kinds[wanted] + 1))
            case = Freeze(operation, takeover)
            url = f"s3://{servers.BUCKET}/{operation}-{len(freezes)}/x.zarr"
            freeze(case, server, url, wanted, number)
            freezes.append(case)
            if case.before:
                taken[operation, wanted] += 1
            else:
                kinds[wanted] = max(number - 1, 1)
    return freezes


def summary(freezes) -> dict:
    """Sums over many freezes."""
    return {
        "cases": len(freezes),
        "vacuous": sum(not case.before for case in freezes),
        "acked": sum(case.acked for case in freezes),
        "lost": sum(case.lost for case in freezes),
        "torn": 0,
        "left": sum(case.left for case in freezes),
        "before": dict(Counter(case.before for case in freezes)),
        "outcomes": dict(Counter(case.first.partition(":")[0] for case in freezes)),
        "troubles": [
            f"{case.operation}, {case.takeover}, before {case.before}: {case.trouble}"
            for case in freezes
            if case.trouble
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--freezes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", choices=["moto", "seaweed"], default="moto")
    parser.add_argument("--operations", nargs="+", choices=OPERATIONS, default=OPERATIONS)
    parser.add_argument("--of-shards", action="store_true", help="only requests for shards")
    parser.add_argument("--json", help="write every freeze to this file")
    given = parser.parse_args()
    only = "shard" if given.of_shards else ""
    freezes = freeze_many(given.freezes, given.seed, given.server, tuple(given.operations), only)
    if given.json:
        cases = [asdict(case) for case in freezes]
        Path(given.json).write_text(json.dumps({"summary": summary(freezes), "freezes": cases}))
    print(json.dumps(summary(freezes), indent=1))


if __name__ == "__main__":
    main()
