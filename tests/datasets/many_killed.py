"""Many variables, killed again and again at random while they are written, or appended to.

Each call is made in a process forked for it, which kills itself before one of its effects. The next
call goes on, until all is there. Run as ``python tests/datasets/many_killed.py --variables 500
--kills 50``, or through `test_runs.py`. It prints how many kills there were, and each trouble.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import sys
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import xarray as xr

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import effects
from helpers import scratch, without_receipts
from leftovers import left_over, names_in

SIZES = {"shards": {"time": 4}, "chunks": {"time": 2}}
N_READ = 5
"""Variables whose values are compared after each kill; lengths are those of all."""


@dataclass(frozen=True)
class Many:
    """What is written.

    Attributes
    ----------
    n_variables, n_shards : int
        Variables, and shards of each of them that a call writes.
    is_append : bool
        Whether they are there before, with as many shards more.
    durability : str
        Level of the runs.
    """

    n_variables: int
    n_shards: int
    is_append: bool
    durability: str

    def dataset(self, first: int, last: int) -> xr.Dataset:
        """Shards from the first to the last one."""
        steps = np.arange(4 * first, 4 * last)
        x = da.from_array(steps * 1.0, chunks=6)
        variables = {f"v{n:03}": ("time", x + n) for n in range(self.n_variables)}
        return xr.Dataset(variables, {"time": steps}, {"title": "many"})

    def write(self, root: Path, *, first: bool = False) -> None:
        """Make the call: that before, or the one that is killed."""
        start = 0 if first or not self.is_append else self.n_shards
        self.dataset(start, start + self.n_shards).shardwrite.to_zarr(
            root, append_dim="time", durability=self.durability, **SIZES
        )

    def check_readers(self, root: Path, chosen: list[str]) -> None:
        """All variables have the old length or all have the new one, and their values."""
        if not (root / "zarr.json").exists():
            assert not self.is_append
            return
        listed = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
        (n,) = {node["shape"][0] for node in listed.values()}
        wanted = (1, 2) if self.is_append else (1,)
        assert n in [4 * self.n_shards * k for k in wanted], f"a length of {n}"
        assert len(listed) == self.n_variables + 1
        with xr.open_zarr(root) as found:
            xr.testing.assert_identical(
                found[chosen].load(), self.dataset(0, n // 4)[chosen].compute()
            )


def kill_all(many: Many, top: Path, n_kills: int, rng: random.Random) -> tuple[int, list[str]]:
    """How many kills there were, and the troubles."""
    made, whole = top / "made", top / "whole.zarr"
    made.mkdir()
    if many.is_append:
        many.write(made / "x.zarr", first=True)
        shutil.copytree(made / "x.zarr", whole)
    with effects.before_effect(0, lambda _: None) as counted:
        many.write(whole)
    most, n, troubles = max(2, 2 * counted() // n_kills), 0, list[str]()
    names = [f"v{k:03}" for k in range(many.n_variables)]
    while n < n_kills and not troubles:
        home = top / "home"
        shutil.copytree(made, home)
        root, before = home / "x.zarr", names_in(home)
        try:
            while n < n_kills:
                if (
                    effects.in_child(lambda root=root: many.write(root), rng.randint(1, most))
                    != "killed"
                ):
                    break
                n += 1
                many.check_readers(root, rng.sample(names, min(N_READ, len(names))))
            many.write(root)
            many.check_readers(root, names)
            assert without_receipts(root) == without_receipts(whole), "it is not identical"
            left = left_over(home, before, own=("x.zarr",))
            assert not left, f"left over: {left}"
        except Exception:
            troubles.append(f"after {n} kills: {traceback.format_exc()}")
        finally:
            shutil.rmtree(home)
    return n, troubles


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variables", type=int, default=500)
    parser.add_argument("--shards", type=int, default=20, help="of each variable")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--append", action="store_true", help="to as many shards")
    parser.add_argument("--durability", default="batch")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    given = parser.parse_args()
    many = Many(given.variables, given.shards, given.append, given.durability)
    warnings.simplefilter("ignore")
    gc.freeze()
    top = scratch("many-")
    try:
        with dask.config.set(scheduler="sync"):
            n, troubles = kill_all(many, top, given.kills, random.Random(given.seed))
    finally:
        shutil.rmtree(top)
    found = json.dumps({"kills": n, "troubles": troubles})
    if given.json:
        given.json.write_text(found)
    print(found)
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
