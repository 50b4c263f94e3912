"""Job arrays that write into a bucket: the state of the run lies in a directory that all nodes
see."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import zarr
from click.testing import CliRunner

import shardwrite
from shardwrite.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
import servers

PAGE = Path(__file__).parents[2] / "docs" / "buckets.md"
N_SHARDS = 256
LAYOUT = ("--source-chunks", "16,16", "--shards", "16", "--chunks", "8", "--memory-limit", "60kB")
SIZES = ("--cores", 1, "--memory", "500M", "--directory", ".")
long = pytest.mark.long


@pytest.fixture(scope="module")
def server(cluster):
    """A service that the nodes reach, over the network between them if they have one."""
    with servers.moto(_address(cluster)) as found:
        yield found


def _address(cluster):
    if not cluster.here:
        return "127.0.0.1"
    told = subprocess.run(
        ["ip", "-o", "-4", "addr", "show", cluster.here], capture_output=True, text=True, check=True
    )
    return re.search(r"inet ([\d.]+)/", told.stdout)[1]


@pytest.fixture
def url(request):
    """A place in the bucket for each test."""
    return f"s3://{servers.BUCKET}/{request.node.name.replace('_', '-')}/x.zarr"


@pytest.fixture
def environment(server, work, monkeypatch):
    """What a user sets before the commands, and for reading back."""
    found = {**server.environment, "DASK_SHARDWRITE__RUN_DIR": str(work.directory / "runs")}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return found


def submit(cluster, work, environment, *command, **more):
    words = ("shardwrite", *command, "--submit", "--parts", 4, *SIZES, "--json")
    return json.loads(cluster.run(*words, cwd=work.directory, **environment, **more).stdout)


def recipe(url):
    """Words of the lines of the recipe for SLURM that the page has, for the array of these tests."""
    (text,) = re.findall(r"^```sh\n(export [^`]*--submit[^`]*)```", PAGE.read_text(), re.MULTILINE)
    for told, here in {
        "scan.h5": "x.npy",
        "s3://bucket/scan.zarr": url,
        "--shards 512 --chunks 64": shlex.join(LAYOUT),
    }.items():
        assert told in text
        text = text.replace(told, here)
    return [shlex.split(line) for line in text.splitlines()]


def shards(server, url):
    return [key for key in server.keys_of(url) if key.startswith("c/")]


def check(server, work, url):
    """The array is whole, and neither bucket nor directory holds anything of its run."""
    assert shardwrite.verify(url, deep=True, against=work.values).is_good
    assert not [key for key in server.keys_of(url) if "shardwrite-run" in key]
    assert not [path for path in (work.directory / "runs").rglob("*") if path.is_file()]


@long
def test_a_job_array_writes_into_a_bucket(cluster, server, work, environment, url):
    exported, submitting, asking = recipe(url)
    assert exported[1].partition("=")[0] in environment
    assert submitting[:2] == ["shardwrite", "write"]
    jobs = submit(cluster, work, environment, *submitting[1:])
    assert {facts["ExitCode"] for facts in cluster.wait(jobs["array"]).values()} == {"0:0"}
    assert cluster.wait(jobs["finalize"])[0]["ExitCode"] == "0:0", work.log()
    check(server, work, url)
    for script in ("array.sbatch", "finalize.sbatch"):
        text = (work.directory / script).read_text()
        assert f"DST={url}\n" in text
        assert f"export DASK_SHARDWRITE__RUN_DIR={work.directory / 'runs'} " in text
        assert servers.KEY not in text
        assert servers.SECRET not in text
    told = cluster.run(*asking, cwd=work.directory, **environment)
    assert f"{N_SHARDS} of {N_SHARDS}" in told.stdout


@long
def test_it_is_cancelled_and_goes_on(cluster, server, work, environment, url):
    first = submit(cluster, work, environment, "write", "x.npy", url, *LAYOUT, PAUSE=3)
    cluster.until(lambda: len(shards(server, url)) >= 8, work.log)
    again = ("shardwrite", "slurm", "submit", "x.npy", url, *LAYOUT, *SIZES)
    refused = cluster.run(*again, cwd=work.directory, check=False, **environment)
    assert refused.returncode == 1
    assert f"shardwrite slurm cancel {url}" in refused.stderr

    def runs():
        """What is told of the run once SLURM answers, which it may not at once where it is busy."""
        status = ("shardwrite", "slurm", "status", url)
        told = cluster.run(*status, cwd=work.directory, check=False, **environment)
        assert told.returncode == 85
        assert "not published yet" in told.stdout
        return "RUNNING" in told.stdout

    cluster.until(runs, work.log)
    said = cluster.run("shardwrite", "slurm", "cancel", url, cwd=work.directory, **environment)
    assert first["array"] in said.stdout
    cluster.wait(first["array"])
    n_before = len(shards(server, url))
    assert 8 <= n_before < N_SHARDS, "nothing was interrupted"

    second = submit(cluster, work, environment, "write", "x.npy", url, *LAYOUT)
    assert {facts["ExitCode"] for facts in cluster.wait(second["array"]).values()} == {"0:0"}
    assert cluster.wait(second["finalize"])[0]["ExitCode"] == "0:0", work.log()
    check(server, work, url)


@long
def test_a_conversion_goes_into_a_bucket(cluster, server, work, environment, url):
    old = zarr.create_array(work.directory / "old", data=work.values, chunks=(8, 8), zarr_format=2)
    jobs = submit(cluster, work, environment, "shard", "old", url, "--shards", "2,2")
    assert {facts["ExitCode"] for facts in cluster.wait(jobs["array"]).values()} == {"0:0"}
    assert cluster.wait(jobs["finalize"])[0]["ExitCode"] == "0:0", work.log()
    check(server, work, url)
    np.testing.assert_array_equal(shardwrite.from_sharded_zarr(url).compute(), old[...])


@long
def test_workers_that_are_jobs_write_into_a_bucket(cluster, server, work, environment, url):
    words = ("write", "x.npy", url, *LAYOUT, "--cluster", "slurm", "--jobs", 2, "--cores", 1)
    network = ("--interface", cluster.there, "--scheduler-interface", cluster.here)
    given = network if cluster.here else ()
    cluster.run("shardwrite", *words, "--memory", "500M", *given, cwd=work.directory, **environment)
    check(server, work, url)


KEYS = f"""
import os
from datetime import UTC, datetime, timedelta

def current():
    with open(os.environ["CALLS"], "a") as calls:
        calls.write(f"{{os.environ.get('SLURM_ARRAY_TASK_ID')}}\\n")
    return {{
        "access_key_id": {servers.KEY!r},
        "secret_access_key": {servers.SECRET!r},
        "expires_at": datetime.now(UTC) + timedelta(seconds=1),
    }}
"""


@long
def test_jobs_ask_a_function_for_keys(cluster, server, work, environment, url, monkeypatch):
    """No key is in the environment of the jobs; their script has the name of the function."""
    (work.directory / "site_keys.py").write_text(KEYS)
    monkeypatch.setenv("CALLS", str(work.directory / "calls"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
        environment.pop(name)
    provider = {"DASK_SHARDWRITE__STORAGE__CREDENTIAL_PROVIDER": "site_keys:current"}
    path = f"{work.directory}:{os.environ.get('PYTHONPATH', '')}"
    given = {**environment, **provider, "PYTHONPATH": path, "CALLS": work.directory / "calls"}
    setup = ("--setup", "unset DASK_SHARDWRITE__STORAGE__CREDENTIAL_PROVIDER")
    jobs = submit(cluster, work, given, "write", "x.npy", url, *LAYOUT, *setup)
    assert {facts["ExitCode"] for facts in cluster.wait(jobs["array"]).values()} == {"0:0"}
    assert cluster.wait(jobs["finalize"])[0]["ExitCode"] == "0:0", work.log()
    callers = set((work.directory / "calls").read_text().split())
    assert callers == {"None", "0", "1", "2", "3"}, "each job asks for keys of its own"
    text = (work.directory / "array.sbatch").read_text()
    assert "export DASK_SHARDWRITE__STORAGE__CREDENTIAL_PROVIDER=site_keys:current " in text
    told = text + work.log()
    assert servers.KEY not in told
    assert servers.SECRET not in told
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    check(server, work, url)


def test_scripts_that_are_printed_name_the_directory(url):
    kinds = {"array": ("--parts", "4"), "elastic": ("--jobs", "2"), "allocation": ()}
    line = "export DASK_SHARDWRITE__RUN_DIR='/scratch/my runs'"
    for kind, sizes in kinds.items():
        for dst in (url, "x.zarr"):
            words = ["slurm", "script", kind, "x.npy", dst, *sizes]
            with dask.config.set({"shardwrite.run-dir": "/scratch/my runs"}):
                done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
            assert (line in done.output) == (dst == url)


def test_scripts_that_are_printed_name_the_function_that_gives_keys(url):
    line = "export DASK_SHARDWRITE__STORAGE__CREDENTIAL_PROVIDER=site_keys:current "
    given = {"credential_provider": "site_keys:current", "secret_access_key": servers.SECRET}
    for kind, sizes in {"array": ("--parts", "4"), "elastic": ("--jobs", "2")}.items():
        for dst in (url, "x.zarr"):
            with dask.config.set({"shardwrite.storage": given}):
                words = ["slurm", "script", kind, "x.npy", dst, *sizes]
                done = CliRunner().invoke(main, words)
            assert done.exit_code == 0, done.output
            assert (line in done.output) == (dst == url)
            assert servers.SECRET not in done.output
