"""The benchmark of reading: what it reads, what its server answers and counts, and that values are compared."""

from __future__ import annotations

import pytest

import shardwrite
from benchmarks import reading


@pytest.fixture
def server(tmp_path):
    served = reading.Server(tmp_path, 0)
    yield served
    served.close()


@pytest.fixture
def path(tmp_path):
    values = reading.values(128)
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=reading.SHARD, chunks=reading.CHUNK)
    return tmp_path / "x"


@pytest.mark.long
def test_all_cases_are_read_from_a_directory_and_a_web_server(path, server):
    for url in (str(path), f"{server.url}/x"):
        for case in reading.CASES:
            assert set(reading.measure("shardwrite", url, case, 128)) == {
                *("cold s", "cold CPU s", "warm s", "warm CPU s")
            }
    n_requests, n_bytes = server.counted()
    assert n_requests > 3
    assert n_bytes > 0
    assert server.counted() == (0, 0)


@pytest.mark.parametrize("contestant", ["tensorstore", "zarr-python"])
def test_another_contestant_reads_what_was_written(path, contestant):
    if contestant == "tensorstore":
        pytest.importorskip("tensorstore")
    assert reading.measure(contestant, str(path), "chunks", 128)


def test_wrong_values_end_the_benchmark(tmp_path):
    values = reading.values(128)
    values[5, 6, 7] += 1
    shardwrite.to_sharded_zarr(values, tmp_path / "x", shards=reading.SHARD, chunks=reading.CHUNK)
    with pytest.raises(SystemExit, match="wrong values in whole"):
        reading.measure("shardwrite", str(tmp_path / "x"), "whole", 128)


def test_figures_as_a_table():
    row = {
        "place": "http",
        "case": "whole",
        "by": "x",
        "cold s": 0.5,
        "requests": 1200,
        "bytes": 5e6,
    }
    assert reading.table([row]).splitlines()[2] == (
        "| http | whole | x | 0.5000 |  |  |  | 1,200 | 5,000,000 |"
    )
