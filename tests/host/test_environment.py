"""How workers and schedulers are started, and that what the user says about it holds."""

import copy
import json
import os
import subprocess

import dask
import pytest
from distributed import default_client

from shardwrite.cli.common import engine
from shardwrite.host.environment import ALLOCATOR, MESSAGES_KEPT, configured, exports

NAME = "MALLOC_TRIM_THRESHOLD_"
PRE_SPAWN = "distributed.nanny.pre-spawn-environ"
KEY = f"{PRE_SPAWN}.{NAME}"
LOG = "distributed.admin.low-level-log-length"
OURS = {name: str(nbytes) for name, nbytes in ALLOCATOR.items()}


@pytest.fixture
def users_file(tmp_path):
    dask.config.paths.append(str(tmp_path))
    yield tmp_path / "mine.yaml"
    dask.config.paths.remove(str(tmp_path))


@pytest.fixture(autouse=True)
def nothing_exported(monkeypatch):
    for name in ALLOCATOR:
        monkeypatch.delenv(name, raising=False)


def environment_of_worker():
    """As the option `--workers` starts it, and how many messages its scheduler keeps."""
    with engine(None, 1, None):
        (found,) = default_client().run(lambda: dict(os.environ)).values()
        kept = default_client().run_on_scheduler(dask.config.get, LOG)
    return found, kept


@pytest.mark.long
def test_workers_keep_what_they_free_and_schedulers_few_messages():
    before = copy.deepcopy(dask.config.config)
    found, kept = environment_of_worker()
    assert {name: found[name] for name in ALLOCATOR} == OURS
    assert kept == MESSAGES_KEPT
    assert found["OMP_NUM_THREADS"] == str(dask.config.get(PRE_SPAWN)["OMP_NUM_THREADS"]), (
        "what dask sets besides is still set"
    )
    assert dask.config.config == before


@pytest.mark.long
def test_what_the_environment_says_holds(monkeypatch):
    monkeypatch.setenv(NAME, "12345")
    monkeypatch.setenv("DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH", "77")
    with dask.config.set({LOG: 77}):  # as dask has it from there when it is imported
        found, kept = environment_of_worker()
    assert (found[NAME], kept) == ("12345", 77)


@pytest.mark.parametrize("value", [4711, None, 65536])
def test_what_the_users_file_says_holds(users_file, value):
    mine = {
        "nanny": {"pre-spawn-environ": {NAME: value}},
        "scheduler": {"no-workers-timeout": None},
    }
    users_file.write_text(json.dumps({"distributed": mine}))  # JSON is YAML
    ours = {
        "distributed.scheduler.no-workers-timeout": "10m",
        "distributed.worker.memory.target": False,
    }
    with (
        dask.config.set({KEY: value, "distributed.scheduler.no-workers-timeout": None}),
        configured(ours),
    ):
        assert dask.config.get(KEY) == value
        assert dask.config.get("distributed.scheduler.no-workers-timeout") is None
        assert dask.config.get("distributed.worker.memory.target") is False
        assert dask.config.get("distributed.worker.memory.pause") is not None, (
            "nothing else is lost"
        )
        assert [line for line in exports() if NAME in line] == [], (
            "a line in a job script would win over it"
        )


def test_what_a_program_sets_holds():
    with dask.config.set({KEY: 4711, LOG: 5000}), configured():
        assert (dask.config.get(KEY), dask.config.get(LOG)) == (4711, 5000)


def test_lines_of_a_job_script():
    script = "\n".join([*exports(), f"echo ${NAME} $MALLOC_MMAP_THRESHOLD_"])
    run = ["bash", "-eu", "-c", script]
    assert subprocess.check_output(run, text=True, env={}).split() == list(OURS.values())
    assert subprocess.check_output(run, text=True, env={NAME: "9"}).split() == [
        "9",
        OURS["MALLOC_MMAP_THRESHOLD_"],
    ]


def test_dask_may_not_have_loaded_its_own_settings_yet():
    """Those of `distributed` come with its import, and go where a context that began before it
    ends."""
    with dask.config.set({"distributed": {}}):
        assert len(exports()) == len(ALLOCATOR)
        with configured():
            assert dask.config.get(KEY) == ALLOCATOR[NAME]
