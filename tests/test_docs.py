"""Every example in the documentation runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import shardwrite

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [m.name for m in pkgutil.walk_packages(shardwrite.__path__, "shardwrite.")]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    assert examples
    namespace: dict = {"__name__": "__main__"}
    for example in examples:
        exec(compile(example, str(page), "exec"), namespace)


def test_the_readmes_example_has_five_lines():
    example = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    assert len(example.strip().splitlines()) == 5


@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_public_functions_have_an_example():
    for name in shardwrite.__all__:
        public = getattr(shardwrite, name)
        if callable(public) and not isinstance(public, type) and name not in ("prepare", "finalize", "open_sharded"):
            assert ">>>" in (public.__doc__ or ""), name
