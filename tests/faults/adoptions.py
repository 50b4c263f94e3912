"""A kill before every effect of an adoption, and of giving it up: the same call again finishes it,
and giving it up brings back every file to the byte.

Each case runs in processes forked for it, which kill themselves. Run as ``python
tests/faults/adoptions.py --every 1 --json out.json``, or through `test_adoptions.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import dask
import h5py
import numpy as np
from ends import before_effect, count_effects, in_child

import shardwrite

X = np.arange(10 * 6, dtype="i4").reshape(10, 6) + 1
EDGES = (0, 4, 8, 10)
NAMES = [f"{n}.h5" for n in range(len(EDGES) - 1)]


def make(home: Path, block: int) -> None:
    """Files with and without a user block, of two versions of the superblock."""
    home.mkdir()
    for number, name in enumerate(NAMES):
        bounds = ("earliest", "v108") if number else ("v108", "v110")
        with h5py.File(home / name, "w", libver=bounds, userblock_size=block) as file:
            rows = X[EDGES[number] : EDGES[number + 1]]
            file.create_dataset("data", data=rows, chunks=(2, 4), compression="gzip")
        os.chmod(home / name, 0o640 if number else 0o440)
        os.utime(home / name, ns=(10**18 + number, 10**18 + number))


def state(home: Path) -> dict[str, object]:
    """Everything that giving up must bring back."""
    found = {}
    for path in sorted(home.rglob("*")):
        told = path.stat()
        data = path.read_bytes() if path.is_file() else b""
        time = told.st_mtime_ns if path.is_file() else 0
        digest = hashlib.sha256(data).hexdigest()
        found[str(path.relative_to(home))] = (digest, told.st_mode, time)
    return found


def adopt(home: Path, how: str) -> None:
    shardwrite.adopt([home / name for name in NAMES], home / "x", how=how)


def check_adopted(home: Path, how: str) -> None:
    """The array is whole, its shards are HDF5 files, and nothing else is left."""
    np.testing.assert_array_equal(shardwrite.open_sharded(home / "x")[...], X)
    assert shardwrite.verify(home / "x", deep=True).is_good
    for number, name in enumerate(NAMES):
        shard = home / f"x/c/{number}/0"
        with h5py.File(shard) as file:
            np.testing.assert_array_equal(file["data"][...], X[EDGES[number] : EDGES[number + 1]])
        assert not shard.stat().st_mode & 0o222, "a shard that can be written to"
        assert (home / name).exists() == (how == "link")
        assert how == "move" or (home / name).samefile(shard)
    left = {path.name for path in home.iterdir()} - {"x", *NAMES}
    left |= {path.name for path in (home / "x").rglob(".*")}
    left |= {path.name for path in (home / "x").iterdir()} - {
        "c",
        "zarr.json",
        "shardwrite-receipt.json",
    }
    assert not left, left


def check_given_back(home: Path, before: dict[str, object]) -> None:
    """All files are as before, or the adoption was finished because it was nearly done."""
    if (home / "x").exists():
        check_adopted(home, "link" if (home / NAMES[0]).exists() else "move")
    else:
        assert state(home) == before


def fail(name: str) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO), name)


def cases(block: int, how: str, every: int, top: Path) -> Iterator[tuple[str, str]]:
    """Each case, and what went wrong."""
    made, home, stage = top / "made", top / "home", top / "trouble"
    make(made, block)
    before = state(made)

    def begin() -> None:
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(made, home)
        stage.unlink(missing_ok=True)

    def count(action: Callable[[], object]) -> int:
        in_child(lambda: count_effects(action, top / "count"), stage=stage)
        n = int((top / "count").read_text())
        assert n > 20, stage.read_text()
        return n

    def then(action: Callable[[], object]) -> str:
        ended = in_child(action, stage=stage)
        return "" if ended == "done" else ended

    def finish() -> None:
        adopt(home, how)
        check_adopted(home, how)

    def give_up() -> None:
        # If the kill came before the record was there, nothing was begun.
        with contextlib.suppress(shardwrite.SpecError):
            shardwrite.abandon(home / "x")
        check_given_back(home, before)

    def failing(action: Callable[[], object], k: int) -> Callable[[], None]:
        def call() -> None:
            """The k-th effect fails, once; whatever the call raises is an error of this package."""
            with before_effect(k, fail), contextlib.suppress(shardwrite.ShardwriteError):
                action()

        return call

    begin()
    n = count(lambda: adopt(home, how))
    for k in range(1, n + 1, every):
        name = f"block {block}, {how}, killed at {k} of {n}"
        begin()
        ended = in_child(lambda: adopt(home, how), k, stage)
        if ended != "killed":
            yield name, f"before the kill: {ended}"
            continue
        yield f"{name}, then finished", then(finish)
        begin()
        in_child(lambda: adopt(home, how), k, stage)
        if (home / "x.conversion.shardwrite").exists() and not (home / "x").exists():
            yield f"{name}, then given up", then(give_up)
        for ending, last in (("finished", finish), ("given up", give_up)):
            begin()
            name = f"block {block}, {how}, effect {k} of {n} failed, then {ending}"
            trouble = then(failing(lambda: adopt(home, how), k))
            yield name, trouble or then(last)
    begin()
    in_child(lambda: adopt(home, how), n - 12, stage)
    n_back = count(lambda: shardwrite.abandon(home / "x"))
    for k in range(1, n_back + 1, every):
        for ending, last in (("given up again", give_up), ("adopted again", finish)):
            begin()
            in_child(lambda: adopt(home, how), n - 12, stage)
            in_child(lambda: shardwrite.abandon(home / "x"), k, stage)
            name = f"block {block}, {how}, giving up killed at {k} of {n_back}, {ending}"
            yield name, then(last)
        begin()
        in_child(lambda: adopt(home, how), n - 12, stage)
        name = f"block {block}, {how}, effect {k} of {n_back} failed in giving up, given up again"
        yield name, then(failing(lambda: shardwrite.abandon(home / "x"), k)) or then(give_up)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--every", type=int, default=1, help="only every so many effects")
    parser.add_argument("--how", nargs="+", default=["move", "link"])
    parser.add_argument("--blocks", nargs="+", type=int, default=[0, 512])
    parser.add_argument("--json", help="write every case to this file")
    given = parser.parse_args()
    gc.freeze()
    top = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    done = []
    try:
        with dask.config.set(scheduler="sync"):
            for number, (block, how) in enumerate(
                (block, how) for block in given.blocks for how in given.how
            ):
                inside = top / str(number)
                inside.mkdir()
                done += cases(block, how, given.every, inside)
    finally:
        shutil.rmtree(top)
    if given.json:
        Path(given.json).write_text(json.dumps(done))
    troubles = [(name, trouble) for name, trouble in done if trouble]
    for name, trouble in troubles[:20]:
        print(f"{name}: {trouble.strip().splitlines()[-1]}")
    print(json.dumps({"cases": len(done), "troubles": len(troubles)}))
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
