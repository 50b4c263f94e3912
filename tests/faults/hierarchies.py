"""SIGKILL at random moments of calls that write a whole hierarchy by one run.

The hierarchy is a tree of arrays that is converted, arrays that go into one call of `store`, or the
scales of a volume. Each is killed and called again, until so many kills are through. After a kill,
nothing of the hierarchy may be visible, or all of it and right. In the end it must be what a call
that nobody has killed makes, byte for byte but for receipts, and nothing may be left over.

Run as ``python tests/faults/hierarchies.py --kind tree --arrays 500 --kills 50 --json out.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import dask
import numpy as np

import shardwrite

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from helpers import scratch
from kills import child, ended_well, is_over

N_THREADS = 2
RECEIPT = "shardwrite-receipt.json"
SIZE = 32


def values(number: int) -> np.ndarray:
    """Values of one array."""
    x = np.arange(SIZE**3, dtype="u4").reshape((SIZE,) * 3)
    return (x * np.uint32(2654435761) >> np.uint32(16)).astype("u2") + np.uint16(number)


def name_of(number: int) -> str:
    """Path of an array: every third lies in a group of a group."""
    return f"a{number}" if number % 3 else f"g/h{number % 7}/a{number}"


def make_source(path: Path, n_arrays: int) -> None:
    """The tree that is converted: groups with attributes, and arrays of chunks."""
    import zarr

    root = zarr.create_group(path, attributes={"what": "a tree"})
    for number in range(n_arrays):
        if number % 3 == 0:
            root.require_group("g").attrs["deep"] = 1
        array = root.create_array(
            name_of(number), shape=(SIZE,) * 3, chunks=(16,) * 3, dtype="u2", compressors=None
        )
        array[...] = values(number)


def convert(source: Path, path: Path, n_arrays: int) -> None:
    """Give all arrays shards."""
    del n_arrays
    shardwrite.shard(source, path, 2)


def store(source: Path, path: Path, n_arrays: int) -> None:
    """Write all arrays by one call."""
    import dask.array as da

    del source
    arrays = [da.from_array(values(n), chunks=(16, 32, 32)) for n in range(n_arrays)]
    names = [name_of(n) for n in range(n_arrays)]
    shardwrite.store(
        arrays, [path] * n_arrays, names=names, shards=16, chunks=8, source_id="the same"
    )


def scales(source: Path, path: Path, n_arrays: int) -> None:
    """Write a volume with so many scales."""
    import dask.array as da

    del source
    voxels = [(2 ** (n % 3), 2 ** (n // 3 % 3), 2 ** (n // 9)) for n in range(n_arrays)]
    arrays = [
        da.from_array(values(n)[tuple(slice(None, None, step) for step in voxel)], chunks=16)
        for n, voxel in enumerate(voxels)
    ]
    shardwrite.to_precomputed(
        arrays[0],
        path,
        axes="xyz",
        resolution=voxels[0],
        scales=dict(list(zip(voxels, arrays, strict=True))[1:]),
        chunks=8,
        source_id="the same",
    )


@dataclass(frozen=True)
class Kind:
    """A call that writes a hierarchy."""

    call: Callable[[Path, Path, int], None]
    needs_source: bool = False
    document: str = "zarr.json"  # that makes the hierarchy visible
    of_array: str = "zarr.json"  # that makes an array visible by itself


KINDS = {
    "tree": Kind(convert, needs_source=True),
    "store": Kind(store),
    "scales": Kind(scales, document="info"),
}


@dataclass
class Found:
    """What kills of one kind came to."""

    kind: str
    arrays: int
    kills: int = 0
    calls_ended: int = 0  # between kills, or after the last one
    vacuous: int = 0  # kills after which all was visible
    lost: int = 0  # files of a hierarchy that was visible, or in the end, which were not right
    left: int = 0  # names that were left over in the end
    troubles: list[str] = field(default_factory=list)
    seconds: float = 0.0


def files_in(path: Path) -> dict[str, bytes]:
    """Content of all files of a hierarchy but receipts."""
    return {
        found.relative_to(path).as_posix(): found.read_bytes()
        for found in path.rglob("*")
        if found.is_file() and found.name != RECEIPT
    }


def called(kind: Kind, source: Path, path: Path, n_arrays: int) -> None:
    """Make the call, with threads."""
    with dask.config.set(scheduler="threads", num_workers=N_THREADS):
        kind.call(source, path, n_arrays)


def wrong_after_kill(kind: Kind, path: Path, wanted: dict[str, bytes]) -> list[str]:
    """Files of a hierarchy that is visible after a kill, and which are missing or wrong.

    Documents of some arrays and groups may follow.
    """
    if not (path / kind.document).exists():
        return []
    there = files_in(path)
    documents = {name for name in wanted if name.endswith((kind.document, kind.of_array))}
    return [name for name in wanted if there.get(name) != wanted[name] and name not in documents]


def kill_many(name: str, n_arrays: int, n_kills: int, seed: int) -> Found:
    """Kill the calls of one kind."""
    kind, found = KINDS[name], Found(name, n_arrays)
    begun, rng = time.perf_counter(), np.random.default_rng(seed)
    home = scratch("hierarchies-")
    source, log = home / "source", home / "log"
    try:
        if kind.needs_source:
            found.troubles += filter(
                None, [ended_well(child(make_source, source, n_arrays, log=log), log)]
            )
        start = time.perf_counter()
        undisturbed = home / "undisturbed" / "x"
        undisturbed.parent.mkdir()
        pid = child(called, kind, source, undisturbed, n_arrays, log=log)
        found.troubles += filter(None, [ended_well(pid, log)])
        usual = time.perf_counter() - start
        wanted = files_in(undisturbed)
        while found.kills < n_kills and not found.troubles:
            case = home / "case"
            case.mkdir()
            _kill_one(kind, found, (source, case / "x", n_arrays), wanted, (usual, n_kills, rng))
            shutil.rmtree(case)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    found.seconds = round(time.perf_counter() - begun, 1)
    return found


def _kill_one(kind, found, of, wanted, when) -> None:
    """Kill one job again and again until all is visible, or all kills are through."""
    source, path, n_arrays = of
    usual, n_kills, rng = when
    log = path.with_name("log")
    ended = is_whole = False
    while not ended and not is_whole and found.kills < n_kills:
        pid = child(called, kind, source, path, n_arrays, log=log)
        deadline = time.perf_counter() + rng.uniform(0.05, 1.1) * usual
        while time.perf_counter() < deadline and not is_over(pid):
            time.sleep(0.0005)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        ended = os.WIFEXITED(status)
        if ended and status:
            found.troubles.append(log.read_text()[-600:])
            return
        found.calls_ended += ended
        found.kills += not ended
        is_whole = (path / kind.document).exists()
        found.vacuous += is_whole and not ended
        wrong = wrong_after_kill(kind, path, wanted)
        found.lost += len(wrong)
        found.troubles += [f"visible, and not right: {wrong[:3]}"] if wrong else []
    found.troubles += filter(
        None, [ended_well(child(called, kind, source, path, n_arrays, log=log), log)]
    )
    there = files_in(path)
    if there != wanted:
        differing = sorted(n for n in {*there, *wanted} if there.get(n) != wanted.get(n))
        found.lost += len(differing)
        found.troubles.append(f"in the end, these differ: {differing[:5]}")
    left = sorted(p.name for p in path.parent.iterdir() if p.name not in ("x", "log"))
    found.left += len(left)
    if left:
        found.troubles.append(f"left over: {left}")


def main() -> None:
    """Kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--arrays", type=int, default=40)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    all_found = [kill_many(kind, given.arrays, given.kills, given.seed) for kind in given.kind]
    text = json.dumps([asdict(found) for found in all_found], indent=2)
    print(text)
    if given.json:
        given.json.write_text(text)
    sys.exit(any(found.troubles for found in all_found))


if __name__ == "__main__":
    main()
