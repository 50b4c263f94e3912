"""Datasets of xarray are written as a whole, appended to, and changed in a region.

Whenever that is interrupted, all variables have the old length or all have the new one, for readers
of consolidated metadata and for others.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
from driver import Operation, nothing

N_OLD = 10
SIZES = {"shards": {"time": 8}, "chunks": {"time": 4}}
HOURS = np.datetime64("2000-01-01", "ns") + np.arange(100) * np.timedelta64(1, "h")
WHERE = slice(3, 9)


def listed(root: Path) -> dict[str, dict]:
    """Documents of the arrays, as the root lists them."""
    found = json.loads((root / "zarr.json").read_text())["consolidated_metadata"]["metadata"]
    return {name: node for name, node in found.items() if node["node_type"] == "array"}


def lengths(documents: Iterable[dict]) -> set[int]:
    """Lengths along the time."""
    return {
        n
        for document in documents
        for n, dim in zip(document["shape"], document["dimension_names"], strict=True)
        if dim == "time"
    }


@dataclass(frozen=True)
class Steps:
    """How many steps are there and added, and of how many variables besides the others."""

    n_new: int = 7
    n_more: int = 0
    n_old: int = N_OLD
    strategy: Any = None  # by which shards are changed

    @property
    def n_all(self) -> int:
        return self.n_old + self.n_new

    def dataset(self, start: int, stop: int) -> xr.Dataset:
        """Some steps of variables that are shared by chunks and shards of the store."""
        steps = np.arange(start, stop)
        values = da.from_array(steps[:, None] * np.ones((1, 6)), chunks=(3, 6))
        packed = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}
        return xr.Dataset(
            {f"v{n}": ("time", values[:, n % 6] + n) for n in range(self.n_more)}
            | {
                "v": xr.Variable(("time", "x"), values, {"units": "K"}, packed),
                "u": (("x", "time"), (values * 2).T),
                "mask": ("x", np.ones(6, "u1")),
            },
            {"time": HOURS[start:stop], "x": np.arange(6) * 10},
            {"title": "steps"},
        )

    def make(self, root: Path) -> None:
        self._write(root, self.dataset(0, self.n_old), source_id="old")

    def append(self, root: Path) -> None:
        how = {} if self.strategy is None else {"strategy": self.strategy}
        self._write(root, self.dataset(self.n_old, self.n_all), source_id="new", **how)

    @staticmethod
    def _write(root: Path, what: xr.Dataset, **how: Any) -> None:
        what.shardwrite.to_zarr(root, append_dim="time", **SIZES, **how)

    def check_readers(self, root: Path) -> int:
        """What readers see at any time; the length for those of consolidated metadata."""
        (n,) = lengths(listed(root).values())
        with xr.open_zarr(root, consolidated=True) as found:
            xr.testing.assert_identical(found.load(), self.dataset(0, n).compute())
        own = [json.loads(path.read_text()) for path in root.glob("*/zarr.json")]
        allowed = {self.n_old, self.n_all}
        assert lengths(own) <= allowed, "other readers find other lengths than old and new ones"
        others = ["u", "mask", "time", *(f"v{n}" for n in range(self.n_more))]
        with xr.open_zarr(root, consolidated=False, drop_variables=others) as found:
            wanted = self.dataset(0, found.sizes["time"])[["v"]].compute()
            xr.testing.assert_equal(found.load().drop_vars("x"), wanted.drop_vars(["x", "time"]))
        return n

    def look(self, root: Path, is_done: bool) -> None:
        """A shard that is changed in place may be an error, and no wrong value."""
        if not is_done and not self.n_old and not (root / "zarr.json").exists():
            return
        try:
            n = self.check_readers(root)
        except ValueError as error:
            if is_done or self.strategy is None or "checksum do not match" not in str(error):
                raise
        else:
            assert not is_done or n == self.n_all

    def check(self, root: Path) -> None:
        """Nothing is appended twice."""
        assert lengths(listed(root).values()) == {self.n_all}
        self.append(root)

    def check_given_up(self, root: Path) -> None:
        """All is whole."""
        self.check_readers(root)
        for name in ("v", "u", "time"):
            assert shardwrite.verify(root / name, deep=True).is_good

    def check_and_append(self, root: Path) -> None:
        """The same, and the call can be made again."""
        self.check_given_up(root)
        self.append(root)
        self.check(root)
        self.look(root, True)

    def appending(self) -> Operation:
        """The steps are added to those that are there."""
        return Operation(
            self.make,
            self.append,
            check=self.check,
            look=self.look,
            abandoned=self.check_given_up,
            is_exact=True,
            published="x/zarr.json",
        )


def change(root: Path) -> None:
    """Write other values of one variable into some steps."""
    more = Steps().dataset(0, N_OLD)[["v"]].isel(time=WHERE).drop_vars(["time", "x"]) + 50
    more.shardwrite.to_zarr(root, region={"time": WHERE}, source_id="changed")


def look_at_change(root: Path, is_done: bool) -> None:
    """Each value is old or new."""
    old = Steps().dataset(0, N_OLD).compute()
    with xr.open_zarr(root) as found:
        there = found.load()
    xr.testing.assert_identical(there.drop_vars("v"), old.drop_vars("v"))
    new = old["v"].values.copy()
    new[WHERE] += 50
    is_new = there["v"].values == new
    assert (is_new | (there["v"].values == old["v"].values)).all()
    assert is_new.all() or not is_done


@dataclass(frozen=True)
class Many:
    """Many variables of so many shards each, which may be there before, with as many shards more."""

    n_variables: int
    n_shards: int = 20
    is_append: bool = False

    def dataset(self, first: int, last: int) -> xr.Dataset:
        """Shards from the first to the last one."""
        steps = np.arange(4 * first, 4 * last)
        x = da.from_array(steps * 1.0, chunks=6)
        variables = {f"v{n:03}": ("time", x + n) for n in range(self.n_variables)}
        return xr.Dataset(variables, {"time": steps}, {"title": "many"})

    def make(self, root: Path) -> None:
        if self.is_append:
            self._write(root, 0)

    def perform(self, root: Path) -> None:
        self._write(root, self.n_shards if self.is_append else 0)

    def _write(self, root: Path, first: int) -> None:
        sizes = {"shards": {"time": 4}, "chunks": {"time": 2}}
        how = {**sizes, "durability": "batch", **({"append_dim": "time"} if first else {})}
        self.dataset(first, first + self.n_shards).shardwrite.to_zarr(root, **how)

    def look(self, root: Path, is_done: bool) -> None:
        """All variables have the old length or all have the new one, and their values: of some after
        a fault, and of all in the end."""
        if not (root / "zarr.json").exists():
            assert not self.is_append
            assert not is_done
            return
        (n,) = {document["shape"][0] for document in listed(root).values()}
        wanted = (1, 2) if self.is_append else (1,)
        assert n in [4 * self.n_shards * k for k in wanted[is_done and -1 :]], f"a length of {n}"
        assert len(listed(root)) == self.n_variables + 1
        names = [f"v{k:03}" for k in range(self.n_variables)]
        names = names if is_done else random.Random().sample(names, min(5, len(names)))
        with xr.open_zarr(root) as found:
            wanted = self.dataset(0, n // 4)[names].compute()
            xr.testing.assert_identical(found[names].load(), wanted)

    def operation(self) -> Operation:
        return Operation(self.make, self.perform, look=self.look, is_exact=True)


IN_PLACE = Steps(strategy=shardwrite.AppendOnly(in_place=True))
MANY = Steps(n_new=20, n_more=6)
WHOLE = Steps(n_new=N_OLD, n_old=0)
DATASETS = {
    "dataset": replace(WHOLE.appending(), prepare=nothing, abandoned=None),
    "append to a dataset": Steps().appending(),
    "append to a dataset in place": replace(
        IN_PLACE.appending(), is_exact=False, published="", abandoned=IN_PLACE.check_and_append
    ),
    "append to many variables": MANY.appending(),
    "region of a dataset": Operation(Steps().make, change, look=look_at_change, is_exact=True),
    "12 variables": Many(12).operation(),
    "append to 12 variables": Many(12, is_append=True).operation(),
}
LARGE = {
    "500 variables": Many(500).operation(),
    "append to 500 variables": Many(500, is_append=True).operation(),
}
