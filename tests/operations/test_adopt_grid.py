"""Files of HDF5 that form a grid along several axes, of which one array is made."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite import SpecError
from shardwrite.cli import main

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")

X = np.arange(5 * 7 * 9, dtype="i4").reshape(5, 7, 9) + 1
CHUNKS = (2, 2, 3)
GRID = (1, 2, 3)
STARTS = ((0,), (0, 4), (0, 3, 6))
STOPS = ((5,), (4, 7), (3, 6, 9))


def places():
    """Position of each file in the grid, and the part of `X` in it."""
    for at in np.ndindex(GRID):
        yield at, tuple(slice(a[i], b[i]) for i, a, b in zip(at, STARTS, STOPS, strict=True))


def make(home: Path, parts=None) -> list[str]:
    """Files of a grid in row-major order; those at the end of axis 1 are shorter."""
    home.mkdir(exist_ok=True)
    files = []
    for number, part in enumerate(parts or [part for _, part in places()]):
        files.append(str(home / f"{number}.h5"))
        with h5py.File(files[-1], "w") as file:
            options = {"chunks": CHUNKS, "compression": "gzip", "maxshape": (None,) * 3}
            file.create_dataset("data", data=X[part], **options)
    return files


def digests(files):
    """Digests of the files, with their permissions and times."""
    return {
        file: (
            hashlib.sha256(Path(file).read_bytes()).hexdigest(),
            os.stat(file).st_mode,
            os.stat(file).st_mtime_ns,
        )
        for file in files
    }


def check(path: Path) -> None:
    """Each reader finds the values: of the whole, and of each file at its place in the grid."""
    np.testing.assert_array_equal(zarr.open_array(path, mode="r")[...], X)
    np.testing.assert_array_equal(shardwrite.open_sharded(path)[...], X)
    assert shardwrite.verify(path, deep=True).is_good
    for at, part in places():
        with h5py.File(path / "c" / "/".join(map(str, at))) as file:
            np.testing.assert_array_equal(file["data"][...], X[part])
    assert [other.name for other in path.parent.iterdir() if other.name.startswith("x")] == ["x"]


@pytest.mark.compat
def test_files_in_a_grid(tmp_path):
    files = make(tmp_path / "f")
    before = digests(files)
    done = shardwrite.adopt(files, tmp_path / "x", grid=GRID)
    assert (done.shape, done.shards, done.n_shards) == (X.shape, (6, 4, 3), 6)
    assert "6, in a grid of 1 x 2 x 3" in str(done)
    check(tmp_path / "x")
    assert digests(files) == before
    assert shardwrite.adopt(files, tmp_path / "x", grid=GRID).is_skipped


def cut(rows: int, columns: int, at: int = 5) -> list:
    """Parts of the grid, of which one is shorter."""
    parts = [part for _, part in places()]
    whole, y, x = parts[at]
    parts[at] = (whole, slice(y.start, y.stop - rows), slice(x.start, x.stop - columns))
    return parts


@pytest.mark.parametrize(
    ("parts", "given", "message"),
    [
        (None, {"grid": (1, 2, 2)}, "a grid of 4 files, and 6 are given"),
        (None, {"grid": (2, 3)}, "the dataset has 3 axes, and this is a grid of 2"),
        (None, {"grid": (1, -2, -3)}, "no grid of files"),
        (None, {"grid": (1, 2.0, 3)}, "no grid of files"),
        (None, {"grid": ()}, "no grid of files"),
        (None, {"grid": GRID, "axis": 0}, "and so does grid"),
        (None, {"grid": (2, 1, 3)}, "5 long along axis 0, which is no multiple"),
        (None, {"axis": 2}, r"its shape is \(5, 3, 3\), and that of the first file \(5, 4, 3\)"),
        (None, {"grid": (1, 3, 2)}, "3 long along axis 1, and .*only the last file along an axis"),
        (cut(0, 1), {"grid": GRID}, r"2 long along axis 2, and .*2\.h5 is 3 long"),
        (cut(1, 0), {"grid": GRID}, r"2 long along axis 1, and .*3\.h5 is 3 long"),
        (cut(0, 1, at=1), {"grid": GRID}, "2 long along axis 2, and the first file is 3"),
        (cut(1, 0, at=0), {"grid": GRID}, "3 long along axis 1, which is no multiple"),
        (cut(2, 0, at=0), {"grid": GRID}, "4 long along axis 1, and the first file is 2"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_changed(tmp_path, parts, given, message):
    files = make(tmp_path / "f", parts)
    before = digests(files)
    with pytest.raises(SpecError, match=message):
        shardwrite.adopt(files, tmp_path / "x", **given)
    assert digests(files) == before
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_a_file_at_the_end_that_is_longer_than_the_first(tmp_path):
    parts = [(slice(5), slice(2 * i, 2 * i + n), slice(9)) for i, n in enumerate((2, 2, 3))]
    with pytest.raises(SpecError, match="3 long along axis 1, longer than the others"):
        shardwrite.adopt(make(tmp_path / "f", parts), tmp_path / "x", axis=1)


@pytest.mark.compat
def test_the_command(tmp_path):
    files, path = make(tmp_path / "f"), str(tmp_path / "x")
    before = digests(files)
    run = CliRunner()

    def call(*given):
        return run.invoke(main, ["adopt", *files, path, "--json", *given])

    planned = call("--grid", "1,2,3", "--dry-run")
    assert json.loads(planned.stdout)["shape"] == list(X.shape)
    wrong = call("--grid", "6")
    assert wrong.exit_code
    assert "the dataset has 3 axes" in wrong.output
    assert call("--grid", "2 by 3").exit_code == 2
    assert digests(files) == before
    done = call("--grid", "1,2,3")
    assert not done.exit_code, done.output
    check(tmp_path / "x")


@pytest.mark.long
def test_random_grids(tmp_path):
    """Any number of axes, files and chunks; the values are those of one file with all of them."""
    rng = np.random.default_rng(3)
    for number in range(4):
        home = tmp_path / str(number)
        home.mkdir()
        n_axes = int(rng.integers(1, 5))
        counts = tuple(rng.integers(1, 4, n_axes).tolist())
        chunks = tuple(rng.integers(1, 4, n_axes).tolist())
        lengths = [int(c * rng.integers(1, 3)) for c in chunks]
        edges = [
            [*range(0, n * count, n), n * (count - 1) + int(rng.integers(1, n + 1))]
            for n, count in zip(lengths, counts, strict=True)
        ]
        x = rng.integers(1, 100, [edge[-1] for edge in edges]).astype("u1")
        files = []
        for part in itertools.product(*map(itertools.pairwise, edges)):
            files.append(home / f"{len(files)}.h5")
            with h5py.File(files[-1], "w") as file:
                values = x[tuple(slice(*pair) for pair in part)]
                file.create_dataset("d", data=values, chunks=chunks, maxshape=[None] * n_axes)
        shardwrite.adopt(files, home / "x", grid=counts)
        np.testing.assert_array_equal(zarr.open_array(home / "x", mode="r")[...], x)
