"""A directory as users have it, in which mistakes are made, and the check that none of them leaves
a trace."""

from __future__ import annotations

import contextlib
import os
import traceback
from pathlib import Path

import dask.array as da
import h5py
import numpy as np
import xarray as xr
import zarr

import shardwrite

LAYOUT = {"shards": 8, "chunks": 4}
NOBODY = 65534


class Workplace:
    """Files of a user, and a source that counts how often it is computed."""

    def __init__(self, root: Path) -> None:
        self.root, self.n_computed = root, 0
        os.chdir(root)
        np.save("x.npy", np.ones((16, 16), "f4"))
        np.save("large.npy", np.ones((512, 512), "f4"))
        np.save("volume.npy", np.ones((16, 16, 16), "u1"))
        np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
        with h5py.File("two.h5", "w") as file:
            file["one"], file["two"] = np.ones((16, 16)), np.ones((16, 16))
        with h5py.File("none.h5", "w") as file:
            file.create_group("group")
        Path("short.npy").write_bytes(Path("x.npy").read_bytes()[:200])
        for name in ("broken.npy", "broken.h5", "what.ever"):
            Path(name).write_bytes(b"neither")
        Path("x.raw").write_bytes(bytes(100))
        shardwrite.to_sharded_zarr(np.ones((16, 16), "f4"), "array.zarr", **LAYOUT)
        shardwrite.to_sharded_zarr(np.ones((16, 16), "f4"), "group.zarr", name="a", **LAYOUT)
        zarr.create_group("empty.zarr")
        zarr.create_array("v2.zarr", shape=(16, 16), chunks=(4, 4), dtype="f4", zarr_format=2)
        for name, text in (("torn.zarr", '{"zarr_format": 3, '), ("list.zarr", "[]")):
            Path(name).mkdir()
            Path(name, "zarr.json").write_text(text)
        Path("full").mkdir()
        Path("full/notes").write_text("mine")
        Path("secret.npy").write_bytes(Path("x.npy").read_bytes())
        Path("secret.npy").chmod(0)
        Path("closed").mkdir(mode=0o555)
        os.chmod(root, 0o755)

    def source(self, shape=(16, 16), dtype="f4", chunks=5):
        """A dask array that counts."""

        def count(block):
            self.n_computed += 1
            return block

        x = da.ones(shape, chunks=chunks, dtype=dtype)
        return x.map_blocks(count, dtype=dtype, meta=np.empty((0,) * len(shape), dtype))

    @property
    def x(self):
        """A dask array that counts."""
        return self.source()

    @property
    def y(self):
        """A `DataArray` that counts."""
        return xr.DataArray(self.source(), dims=("y", "x"))

    def tree(self):
        """Names, sizes and times of everything."""
        return {
            str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
            for path in self.root.rglob("*")
        }

    @contextlib.contextmanager
    def untouched(self):
        """Nothing is computed, and nothing is written."""
        before, self.n_computed = self.tree(), 0
        yield
        assert self.tree() == before, "something was written"
        assert self.n_computed == 0, "something was computed"


@contextlib.contextmanager
def as_nobody():
    """Take on a user whom files of other users are closed to."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def told(error: BaseException) -> str:
    """What Python prints of an error."""
    return "".join(traceback.format_exception(error))
