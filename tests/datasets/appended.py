"""A kill before every effect of an append to a dataset, then the same call again, or giving it up.

Each case runs in a process forked for it, which kills itself. Run as ``python
tests/datasets/appended.py --every 1``, or through `test_appends.py`. It prints how many kills there
were, and each trouble.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import warnings
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

import shardwrite

N_OLD, N_NEW = 10, 17
N_MORE = 0
"""Variables besides the others."""
SIZES = {"shards": {"time": 8}, "chunks": {"time": 4}}
HOURS = np.datetime64("2000-01-01", "ns") + np.arange(100) * np.timedelta64(1, "h")


def dataset(start: int, stop: int, offset: int = 0) -> xr.Dataset:
    """Some steps of two variables that are shared by chunks and shards of the store."""
    steps = np.arange(start, stop)
    values = da.from_array(steps[:, None] * np.ones((1, 6)) + offset, chunks=(3, 6))
    packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
    return xr.Dataset(
        {f"v{n}": ("time", values[:, n % 6] + n) for n in range(N_MORE)}
        | {
            "v": xr.Variable(("time", "x"), values, {"units": "K"}, packed),
            "u": (("x", "time"), (values * 2).T),
            "mask": ("x", np.ones(6, "u1")),
        },
        {"time": HOURS[start:stop], "x": np.arange(6) * 10},
        {"title": "steps"},
    )


def make(root: Path) -> None:
    dataset(0, N_OLD).shardwrite.to_zarr(root, append_dim="time", source_id="old", **SIZES)


IN_PLACE = shardwrite.AppendOnly(in_place=True)
how: dict[str, object] = {}


def append(root: Path) -> shardwrite.DatasetResult:
    more = dataset(N_OLD, N_NEW)
    return more.shardwrite.to_zarr(root, append_dim="time", source_id="new", **SIZES, **how)


def listed(root: Path) -> dict[str, dict]:
    """Documents of the arrays, as the root lists them."""
    found = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    return {name: node for name, node in found.items() if node["node_type"] == "array"}


def lengths(documents: dict[str, dict]) -> set[int]:
    """Lengths along the time."""
    return {
        n
        for document in documents.values()
        for n, dim in zip(document["shape"], document["dimension_names"], strict=True)
        if dim == "time"
    }


def check_readers(root: Path) -> int:
    """What readers see at any time; the length for those of consolidated metadata."""
    (n,) = lengths(listed(root))
    with xr.open_zarr(root, consolidated=True) as found:
        xr.testing.assert_identical(found.load(), dataset(0, n).compute())
    own = {p.parent.name: json.loads(p.read_text()) for p in root.glob("*/zarr.json")}
    assert lengths(own) <= {N_OLD, N_NEW}, "other readers find old lengths and new ones"
    others = ["u", "mask", "time", *(f"v{n}" for n in range(N_MORE))]
    with xr.open_zarr(root, consolidated=False, drop_variables=others) as found:
        xr.testing.assert_equal(
            found.load().drop_vars("x"),
            dataset(0, found.sizes["time"])[["v"]].compute().drop_vars(["x", "time"]),
        )
    return n


def check_interrupted(root: Path) -> int:
    """As `check_readers`. A shard that was changed in place may be an error, and no wrong value."""
    try:
        return check_readers(root)
    except ValueError as error:
        if not how or "checksum do not match" not in str(error):
            raise
        return N_NEW


def same_again(root: Path, old: Path, new: Path) -> None:
    append(root)
    assert check_readers(root) == N_NEW
    assert how or without_receipts(root) == without_receipts(new)
    assert lengths(listed(root)) == {N_NEW}
    append(root)
    assert check_readers(root) == N_NEW, "nothing is appended twice"


def give_up(root: Path, old: Path, new: Path) -> None:
    before = check_interrupted(root)
    shardwrite.abandon(root)
    n = check_readers(root)
    assert n <= before
    assert how or without_receipts(root) == without_receipts(old if n == N_OLD else new)
    for name in ("v", "u", "time"):
        assert shardwrite.verify(root / name, deep=True).is_good
    same_again(root, old, new)


def run_case(made: Path, home: Path, action: str, kill_at: int, again_at: int = 0) -> str:
    """Kill an append, and call it again or give it up; what was wrong with that."""
    shutil.copytree(made, home)
    stage, root, before = home / "trouble", home / "x.zarr", names_in(home)
    ways = {"same call": same_again, "give up": give_up}
    try:
        ended = effects.in_child(lambda: append(root), kill_at, stage)
        if ended == "done":
            return "done"
        interrupted = append if action == "same call" else shardwrite.abandon
        if again_at:
            effects.in_child(lambda: interrupted(root), again_at, stage)

        def then() -> None:
            check_interrupted(root)
            ways[action](root, made / "x.zarr", made / "new.zarr")

        ended = effects.in_child(then, stage=stage)
        left = left_over(home, before, own=("trouble",))
        ended = "" if ended == "done" else ended
        return ended or (f"left over: {left}" if left else "")
    finally:
        shutil.rmtree(home)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--every", type=int, default=1, help="only every so many effects")
    parser.add_argument("--first", type=int, help="the first of them")
    parser.add_argument("--seed", type=int, default=0, help="consecutive seeds begin at other ones")
    parser.add_argument("--twice", type=int, default=0, help="kill the second call there, too")
    parser.add_argument("--ways", nargs="+", default=["same call", "give up"])
    parser.add_argument("--variables", type=int, default=2, help="that have the time")
    parser.add_argument("--steps", type=int, default=7, help="that are appended")
    parser.add_argument("--in-place", action="store_true", help="change shards in place")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    given = parser.parse_args()
    how.update({"strategy": IN_PLACE} if given.in_place else {})
    global N_MORE, N_NEW
    N_MORE, N_NEW = given.variables - 2, N_OLD + given.steps
    warnings.simplefilter("ignore")
    gc.freeze()
    top, n_kills, troubles = scratch("appends-"), 0, list[str]()
    try:
        with dask.config.set(scheduler="sync"):
            made = top / "made"
            made.mkdir()
            make(made / "x.zarr")
            shutil.copytree(made / "x.zarr", made / "new.zarr")
            append(made / "new.zarr")
            for way in given.ways:
                kill_at = given.first or 1 + given.seed % given.every
                while True:
                    trouble = run_case(made, top / "home", way, kill_at, given.twice)
                    if trouble == "done":
                        break
                    n_kills += 1
                    if trouble:
                        troubles.append(f"{way}, killed at {kill_at}: {trouble}")
                    kill_at += given.every
    finally:
        shutil.rmtree(top)
    found = json.dumps({"kills": n_kills, "troubles": troubles})
    if given.json:
        given.json.write_text(found)
    print(found)
    sys.exit(1 if troubles else 0)


if __name__ == "__main__":
    main()
