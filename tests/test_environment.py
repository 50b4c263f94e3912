"""What worker processes find set."""

import json
import os

import dask
import pytest
from distributed import Client, LocalCluster

from shardwrite.environment import ALLOCATOR, configured

NAME = "MALLOC_TRIM_THRESHOLD_"
KEY = f"distributed.nanny.pre-spawn-environ.{NAME}"


@pytest.fixture
def users_file(tmp_path):
    dask.config.paths.append(str(tmp_path))
    yield tmp_path / "mine.yaml"
    dask.config.paths.remove(str(tmp_path))


def environment_of_worker():
    with (
        configured(),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        (found,) = client.run(lambda: dict(os.environ)).values()
    return found


def test_workers_keep_what_they_free(users_file, monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    before = dask.config.get("distributed.nanny.pre-spawn-environ")
    found = environment_of_worker()
    assert {name: found[name] for name in ALLOCATOR} == {name: str(nbytes) for name, nbytes in ALLOCATOR.items()}
    assert found["OMP_NUM_THREADS"] == str(before["OMP_NUM_THREADS"]), "what dask sets besides is still set"
    assert dask.config.get("distributed.nanny.pre-spawn-environ") == before


def test_what_the_environment_says_holds(users_file, monkeypatch):
    monkeypatch.setenv(NAME, "12345")
    assert environment_of_worker()[NAME] == "12345"


def test_what_the_users_file_says_holds(users_file):
    mine = {"nanny": {"pre-spawn-environ": {NAME: 4711}}, "worker": {"memory": {"spill": 0.5}}}
    users_file.write_text(json.dumps({"distributed": mine}))  # JSON is YAML
    ours = {"distributed.worker.memory.spill": False, "distributed.worker.memory.target": False}
    with dask.config.set({KEY: 4711, "distributed.worker.memory.spill": 0.5}), configured(ours):
        assert dask.config.get(KEY) == 4711
        assert dask.config.get("distributed.worker.memory.spill") == 0.5
        assert dask.config.get("distributed.worker.memory.target") is False
        assert dask.config.get("distributed.worker.memory.pause") is not None, "nothing else is lost"
