"""Every kind of chunk index that HDF5 has: conversions and comparisons equal what h5py reads."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "sources"))

h5py = pytest.importorskip("h5py")
pytest.importorskip("hdf5plugin")
hdf5_files = pytest.importorskip("hdf5_files")

# Seeds of the default tier, among which is each kind of index, and each axis that is unlimited.
SEEDS = (1, 2, 3, 5, 6, 7, 8, 18, 22, 26)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_file(tmp_path, seed):
    hdf5_files.check(hdf5_files.make(tmp_path, seed), tmp_path)


@pytest.mark.long
def test_more_random_files(tmp_path):
    failed = []
    for seed in range(40, 52):
        (home := tmp_path / str(seed)).mkdir()
        try:
            hdf5_files.check(hdf5_files.make(home, seed), home)
        except AssertionError as error:
            failed.append((seed, str(error)))
    assert failed == []


@pytest.mark.parametrize("n_first", [2, 6])
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_unlimited_axis_that_is_not_the_first(tmp_path, n_first, is_whole):
    """HDF5 lists chunks at places that other chunks have, or that the dataset does not have."""
    path, source = tmp_path / "a.h5", f"{tmp_path / 'a.h5'}::x"
    values = np.arange(n_first * 40, dtype="i4").reshape(n_first, 40) + 1
    with h5py.File(path, "w", libver="v110") as file:
        dataset = file.create_dataset(
            "x", values.shape, "i4", chunks=(2, 2), maxshape=(n_first + 2, None), fillvalue=-1
        )
        dataset[:, : 40 if is_whole else 4] = values[:, : 40 if is_whole else 4]
        dataset[-2:, -2:] = values[-2:, -2:]
        expected = dataset[...]
    plan = shardwrite.plan_reshard(source, 2)
    assert plan.n_chunks_copied == int((expected[::2, ::2] != -1).sum())
    shardwrite.shard(source, tmp_path / "b", 2)
    shardwrite.adopt([str(path)], tmp_path / "c", dataset="x")
    for name in ("b", "c"):
        np.testing.assert_array_equal(shardwrite.open_sharded(tmp_path / name)[...], expected)
    np.testing.assert_array_equal(shardwrite.sources.open_source(source)[...], expected)


def test_values_are_compared_and_not_places(tmp_path):
    """An array whose chunks lie where HDF5 lists them is not what is in the file."""
    path, source = tmp_path / "a.h5", f"{tmp_path / 'a.h5'}::x"
    values = np.arange(160, dtype="i4").reshape(4, 40)
    with h5py.File(path, "w", libver="v110") as file:
        dataset = file.create_dataset("x", data=values, chunks=(2, 2), maxshape=(4, None))
        listed = []
        dataset.id.chunk_iter(lambda info: listed.append(info))
        wrong = np.zeros_like(values)
        for info in listed:
            row, column = info.chunk_offset
            if row < 4 and column < 40:
                data = path.read_bytes()[info.byte_offset :][: info.size]
                wrong[row : row + 2, column : column + 2] = np.frombuffer(data, "i4").reshape(2, 2)
    shardwrite.to_sharded_zarr(values, tmp_path / "right", shards=(2, 20), chunks=(2, 2))
    shardwrite.to_sharded_zarr(wrong, tmp_path / "wrong", shards=(2, 20), chunks=(2, 2))
    for name, code in (("right", 0), ("wrong", 1)):
        ended = CliRunner().invoke(main, ["verify", str(tmp_path / name), "--against", source])
        assert ended.exit_code == code, ended.output
