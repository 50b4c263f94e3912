"""Calls of other tools that the pages for those who come from them show, each in an environment of
its own, with the versions that the page states. What they write is compared with what ours do."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import tomllib

import dask.array as da
import numpy as np
import pytest
import zarr
from forks import python as ours
from suites import ROOT, environ, python_with, uv

import shardwrite

PAGES = ROOT / "docs" / "coming-from"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHERS = {"rechunker.md": ("rechunker", "zarr"), "iohub.md": ("iohub",)} | {
    "cloud-volume.md": ("igneous-pipeline",)
}
"""Pages with tools that are not installed beside shardwrite."""


def blocks(page, language):
    text = (PAGES / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def stated(page):
    """Requirements that pin the versions that a page states."""
    text = (PAGES / page).read_text()
    return [f"{name}=={re.search(rf'{name} ([0-9.]+[0-9])', text)[1]}" for name in OTHERS[page]]


def run(*command, cwd, **more):
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **more}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def newer_python():
    """A Python that all tools take; some have left the oldest that we support."""
    compat = runpy.run_path(str(ROOT / "tests" / "compat" / "environment.py"))
    listed = uv("python", "list", "--only-installed", "--output-format", "json", env=environ())
    found = compat["pythons"](listed, (3, 12))
    return found[0].path if found else pytest.skip("Python 3.12 is not here")


def test_versions_are_stated_once_and_are_those_that_are_tested():
    table = (PAGES / "README.md").read_text()
    for page in OTHERS:
        name, version = stated(page)[0].split("==")
        assert f"{name} {version} |" in table
    extras = PROJECT["optional-dependencies"]
    bounds = [
        *PROJECT["dependencies"],
        *extras["xarray"],
        *extras["icechunk"],
        *extras["check"],
        *extras["bench"],
    ]
    for name, version in re.findall(r"(\S+) (\S+) and newer", table):
        assert any(re.match(rf"{name}(\[array\])?>={re.escape(version)}$", b) for b in bounds), name


@pytest.mark.long
@pytest.mark.parametrize("page", ["dask.md", "tensorstore.md"])
def test_the_command_of_a_comparison_writes_its_numbers(page, tmp_path):
    (command,) = blocks(page, "sh")
    python, *arguments = command.split()
    assert python == "python"
    less = ("--scale", "small", "--cases", "zstd-32", "--repeats", "1")
    run(*ours(), *arguments, *less, cwd=tmp_path, PYTHONPATH=str(ROOT))
    (file,) = tmp_path.glob("*.json")
    numbers = json.loads(file.read_text())
    for name in arguments[arguments.index("--contestants") + 1].split(","):
        (measured,) = numbers["cases"]["zstd-32"]["repeats"][name]
        assert measured["status"] == "ok"
        assert measured["seconds"] > 0
        assert measured["elements_compared"] == 2**26


@pytest.mark.long
def test_rechunkers_call_makes_the_chunks_that_ours_makes(cache, tmp_path):
    x = da.random.default_rng(0).random((48, 40, 60), chunks=(1, 40, 60))
    old = zarr.create_array(
        tmp_path / "old.zarr", shape=x.shape, chunks=(1, 40, 60), dtype=x.dtype, zarr_format=2
    )
    old[:] = x.compute()
    (theirs,) = blocks("rechunker.md", "py")
    run(python_with("rechunker", cache, *stated("rechunker.md")), "-c", theirs, cwd=tmp_path)
    made = zarr.open_array(tmp_path / "theirs.zarr")
    assert made.chunks == (48, 20, 20)
    assert (made[:] == x.compute()).all()


@pytest.mark.long
def test_igneous_and_our_command_make_the_same_volume(cache, tmp_path):
    pytest.importorskip("cloudvolume")
    (example,) = blocks("cloud-volume.md", "python")
    run(*ours(), "-c", example, cwd=tmp_path, PYTHONPATH=str(ROOT))
    (script,) = blocks("cloud-volume.md", "sh")
    theirs, mine = script.strip().splitlines()
    python = python_with("igneous", cache, *stated("cloud-volume.md"))
    run(python.with_name("igneous"), *theirs.split()[1:], cwd=tmp_path)
    program = "from shardwrite.cli import main; main()"
    run(*ours(), "-c", program, *mine.split()[1:], cwd=tmp_path, PYTHONPATH=str(ROOT))
    values = [
        np.asarray(shardwrite.from_precomputed(tmp_path / name, axes="xyz"))
        for name in ("old", "theirs", "ours")
    ]
    assert (values[0] == values[1]).all()
    assert (values[0] == values[2]).all()
    assert values[0].any()


@pytest.mark.long
def test_iohub_describes_and_shardwrite_writes(cache, tmp_path):
    needed = (*stated("iohub.md"), *PROJECT["dependencies"])
    python = python_with("iohub", cache, *needed, python=newer_python())
    example = "\n".join(blocks("iohub.md", "py"))
    run(python, "-c", example, cwd=tmp_path, PYTHONPATH=str(ROOT))
    theirs, mine = (
        zarr.open_array(tmp_path / name / "0") for name in ("theirs.zarr", "cells.zarr")
    )
    assert (theirs.shards, theirs.chunks) == (mine.shards, mine.chunks)
    assert (theirs[:] == mine[:]).all()
    groups = [
        zarr.open_group(tmp_path / name).attrs["ome"] for name in ("theirs.zarr", "cells.zarr")
    ]
    assert groups[0]["version"] == groups[1]["version"] == "0.5"
