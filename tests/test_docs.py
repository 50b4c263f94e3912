"""Every example in the documentation runs."""

from __future__ import annotations

import copy
import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import dask
import pytest

import shardwrite

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [m.name for m in pkgutil.walk_packages(shardwrite.__path__, "shardwrite.")]


@pytest.fixture(autouse=True)
def settings_of_dask():
    """Examples may change them; other tests must not see it."""
    importlib.import_module("distributed")  # adds its own, once in a process, as other libraries do
    before = copy.deepcopy(dask.config.config)
    yield
    dask.config.config.update(before)


def with_programs(directory):
    """An environment in which ``shardwrite`` and ``python`` are those of this test."""
    directory.mkdir()
    for name, what in (
        ("python", ""),
        ("shardwrite", '-c "from shardwrite.cli import main; main()"'),
    ):
        (directory / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {what} "$@"\n')
        (directory / name).chmod(0o755)
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = with_programs(tmp_path / "bin")
    examples = re.findall(
        r"^```(python|bash)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    assert examples
    namespace: dict = {"__name__": "__main__"}
    for language, example in examples:
        if language == "python":
            exec(compile(example, str(page), "exec"), namespace)
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", example], env=environ, check=True)


def test_the_readmes_example_has_five_lines():
    example = re.search(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )[1]
    assert len(example.strip().splitlines()) == 5


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_functions_have_an_example():
    for name in shardwrite.__all__:
        public = getattr(shardwrite, name)
        if (
            callable(public)
            and not isinstance(public, type)
            and name not in ("prepare", "finalize", "open_sharded")
        ):
            assert ">>>" in (public.__doc__ or ""), name
