"""The examples of docs/buckets.md, and of the pages that it leads to, run against servers of these tests.

Those in Python run in one namespace, one after the other. Lines of a shell are taken apart here: a
line either sets variables or is a command of shardwrite, which runs in this process. The names of
the page that stand for a user's own are replaced by these tables and by nothing else.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dask
import dask.array as da
import gcs
import h5py
import numpy as np
import obstore
import obstore.store
import pytest
import servers
from click.testing import CliRunner
from tiers import some

import shardwrite
from shardwrite.cli import main

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("buckets", "buckets-state", "buckets-shards")  # in one namespace, in this order
BLOCK = re.compile(r"^```(py|python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = BLOCK.findall("".join((DOCS / f"{name}.md").read_text() for name in PAGES))
PYTHON = [text for language, text in BLOCKS if language != "sh"]
SHELL = [text for language, text in BLOCKS if language == "sh"]
OF_SLURM = "shardwrite slurm"  # `tests/slurm/test_buckets.py` runs that block on a cluster
VALUES = np.random.default_rng(0).integers(1, 2**16, (64, 64, 64), dtype="u2")
SMALL = {
    "shards=(512, 512, 512), chunks=(64, 64, 64)": "shards=32, chunks=8",
    "shards=512, chunks=64": "shards=32, chunks=8",
    "--shards 512 --chunks 64": "--shards 32 --chunks 8",
    "--shards 1024 --chunks 64": "--shards 32 --chunks 8",
}
KEYS = {
    "AWS_ACCESS_KEY_ID=...": f"AWS_ACCESS_KEY_ID={servers.KEY}",
    "AWS_SECRET_ACCESS_KEY=...": f"AWS_SECRET_ACCESS_KEY={servers.SECRET}",
    "AZURE_STORAGE_ACCOUNT_NAME=...": f"AZURE_STORAGE_ACCOUNT_NAME={servers.ACCOUNT}",
    "AZURE_STORAGE_ACCOUNT_KEY=...": f"AZURE_STORAGE_ACCOUNT_KEY={servers.AZURE_SECRET}",
    "GOOGLE_SERVICE_ACCOUNT=/home/me/account.json": f"GOOGLE_BEARER_TOKEN={gcs.TOKEN}",
    "AWS_ENDPOINT_URL=http://minio.lab.example:9000": "AWS_ENDPOINT_URL={moto}",
    "az://container/": "az://bucket/",
}
PLACES = {"/local/scratch": "{here}/scratch", "/home/me/lab": "{here}/lab"}
ALL = {**SMALL, **KEYS, **PLACES}


def with_names(text, **places):
    """The text with names of these tests in the place of those of the page."""
    for told, here in ALL.items():
        text = text.replace(told, here.format(**places) if told in text else here)
    return text


def test_each_name_that_is_replaced_is_on_the_page():
    assert [name for name in ALL if not any(name in text for _, text in BLOCKS)] == []


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working directory with what the page takes for granted."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scratch").mkdir()
    with h5py.File("scan.h5", "w") as file:
        file.create_dataset("scan", data=VALUES, chunks=(16, 64, 64))
    (tmp_path / "lab").mkdir()
    (module,) = (text for text in PYTHON if text.startswith("# lab_keys.py"))
    (tmp_path / "lab" / "lab_keys.py").write_text(module)
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    answer = {"AccessKeyId": servers.KEY, "SecretAccessKey": servers.SECRET}
    answer |= {"SessionToken": "it", "Expiration": until}
    program = tmp_path / "site-keys"
    program.write_text(f"#!/bin/sh\necho {shlex.quote(json.dumps(answer))}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


@pytest.mark.long
def test_the_examples_in_python(moto, here, monkeypatch):
    x = da.from_array(VALUES, chunks=32)
    namespace = {"x": x, "shardwrite": shardwrite, "__name__": "__main__"}
    for client in ("y.zarr", "x.zarr", "z.zarr"):  # of an earlier test in the same bucket
        assert not moto.keys(client)
    for text in PYTHON:
        exec(compile(with_names(text, here=here), "buckets.md", "exec"), namespace)
    assert shardwrite.verify("s3://bucket/x.zarr", deep=True, against=x).is_good
    assert shardwrite.verify("s3://bucket/y.zarr", deep=True).is_good
    assert not shardwrite.open_sharded("s3://bucket/z.zarr")[:16, :16, :16].any()
    assert namespace["plan"].scratch_nbytes > 0


def exported(words, monkeypatch):
    """Set variables as a shell does, and those for dask where dask looks for them."""
    for word in words:
        name, _, value = word.partition("=")
        monkeypatch.setenv(name, value)
        if name == "PYTHONPATH":
            monkeypatch.syspath_prepend(value)


def environment_of(text, request):
    """Variables that reach the servers of a block, which the page does not tell."""
    if "gs://" in text:
        return {"GOOGLE_BASE_URL": request.getfixturevalue("gcs_server").endpoint}
    if "az://" in text:
        return {"AZURE_STORAGE_ENDPOINT": request.getfixturevalue("azurite_server").endpoint}
    found = request.getfixturevalue("moto_server").environment
    has_keys = "AWS_ACCESS_KEY_ID" in text or "CREDENTIAL_PROVIDER" in text
    return {n: v for n, v in found.items() if not has_keys or n == "AWS_ENDPOINT_URL"}


def put_files(prefix):
    """Put the files into the bucket that the page reads there."""
    bucket = obstore.store.S3Store("bucket", prefix=prefix, client_options={"allow_http": True})
    with h5py.File("one.h5", "w") as file:
        file.create_dataset("raw", data=VALUES, chunks=(16, 64, 64))
    np.save("scan.npy", VALUES)
    for name, path in {"scan.h5": "one.h5", "scan.npy": "scan.npy"}.items():
        obstore.put(bucket, name, Path(path))


@pytest.mark.parametrize(
    "number", some([n for n, text in enumerate(SHELL) if OF_SLURM not in text], 0, 3), ids=str
)
def test_the_examples_in_a_shell(here, number, request, monkeypatch):
    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    for name, value in environment_of(SHELL[number], request).items():
        monkeypatch.setenv(name, value)
    if "scan.zarr s3" in SHELL[number]:  # of the page's own
        x = da.from_array(VALUES, chunks=32)
        x.to_sharded_zarr("scan.zarr", shards=32, chunks=8)
    if "s3://bucket/scan.h5" in SHELL[number]:
        put_files(f"shell-{number}")
    moto = request.getfixturevalue("moto_server").endpoint
    text = with_names(SHELL[number], here=here, moto=moto)
    text = text.replace("://bucket/", f"://bucket/shell-{number}/")
    done = []
    for line in text.splitlines():
        program, *words = shlex.split(line, comments=True)
        if program == "export":
            exported(words, monkeypatch)
            continue
        assert program == "shardwrite", line
        with dask.config.set(dask.config.collect_env()):
            found = CliRunner().invoke(main, words, catch_exceptions=False)
        assert found.exit_code == 0, found.output
        done.append(line)
    assert done
    targets = set(re.findall(r"\w+://bucket/\S+\.zarr", text))
    if "--dry-run" in done[-1]:
        assert "GET or HEAD" in found.output
        return
    with dask.config.set(dask.config.collect_env()):
        assert [shardwrite.verify(target, deep=True).n_shards for target in targets] == [8]


def test_all_other_blocks_are_of_slurm():
    assert [OF_SLURM in text for text in SHELL].count(True) == 1
