"""Every example in the documentation runs."""

from __future__ import annotations

import copy
import doctest
import importlib
import os
import pkgutil
import re
import runpy
import shlex
import subprocess
from pathlib import Path

import dask
import pytest
from forks import python

import shardwrite

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLE = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WITHOUT_EXAMPLES = {
    *("contributing.md", "glossary.md", "reference/api.md", "speed.md"),
    *(f"design/{page.name}" for page in (DOCS / "design").glob("*.md")),
}
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if str(p.relative_to(DOCS)) not in WITHOUT_EXAMPLES),
]
WALKS = ("README.md", "guide.md")  # through most that there is
SLOW = (
    *("figures.md", "performance.md", "scale.md"),  # they run benchmarks
    *("convert.md", "files.md", "hdf5.md", "nested.md", "precomputed.md", "slurm.md"),
    "xarray.md",
)
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
        ("python", ()),
        ("shardwrite", ("-c", "from shardwrite.cli import main; main()")),
    ):
        (directory / name).write_text(f'#!/bin/sh\nexec {shlex.join([*python(), *what])} "$@"\n')
        (directory / name).chmod(0o755)
    found = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PATH": f"{directory}:{os.environ['PATH']}", "PYTHONPATH": found}


def marks_of(page):
    if page.name in SLOW:
        return pytest.mark.long
    return pytest.mark.compat if page.name in WALKS else ()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=marks_of(page)) for page in PAGES],
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_pages(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environ = with_programs(tmp_path / "bin")
    examples = EXAMPLE.findall(page.read_text())
    assert examples
    namespace: dict = {"__name__": "__main__"}
    for language, example in examples:
        if language == "python":
            exec(compile(example, str(page), "exec"), namespace)
        else:
            subprocess.run(["bash", "-euo", "pipefail", "-c", example], env=environ, check=True)


def test_pages_without_examples_have_none():
    assert [p for p in WITHOUT_EXAMPLES if EXAMPLE.search((DOCS / p).read_text())] == []


def test_the_readme_is_short_and_its_five_lines_run_twice(tmp_path):
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    ((_, example),) = EXAMPLE.findall(text)
    assert len(example.strip().splitlines()) == 5
    for _ in range(2):  # each in a process of its own, as a reader does it
        subprocess.run([*python(), "-c", example], cwd=tmp_path, check=True)


CASES = {
    "zstd, chunks of 64³": "zstd-64",
    "zstd, chunks of 16³": "zstd-16",
    "lz4, chunks of 32³": "lz4-32",
    "zstd, slabs": "slabs",
    "zstd, 20,000 small shards": "many-shards",
}


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_the_readmes_speeds_are_those_of_the_figures():
    told = re.findall(r"^\| (?:zstd|lz4).*$", (ROOT / "README.md").read_text(), re.MULTILINE)
    figures = (DOCS / "figures.md").read_text().split("<!-- end of side-by-side -->")[0]
    measured = {}
    for line in figures.splitlines():
        if " · " in line and line.startswith("| "):
            case, *rest = cells(line)
            measured[case] = [cell.split(" · ")[0] for cell in rest[:4]]
    assert [cells(line)[0] for line in told] == list(CASES)
    for line in told:
        case, *speeds = cells(line)
        assert speeds == measured[CASES[case]], case


def test_the_committed_picture_is_the_one_that_is_drawn():
    pictures = runpy.run_path(str(DOCS / "pictures.py"))
    assert (DOCS / "pictures" / "overview.svg").read_text() == pictures["overview"]()


def test_every_page_is_in_the_menu():
    """The list of decisions leads to their pages, and to that on the format of run state."""
    menu = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    made = {"reference/commands.md", "changelog.md", "architecture.md"}
    decisions = {*(DOCS / "design").glob("[!R]*.md")}
    assert menu == made | {str(p.relative_to(DOCS)) for p in {*DOCS.rglob("*.md")} - decisions}
    listed = (DOCS / "design" / "README.md").read_text()
    assert all(f"({page.name})" in listed for page in decisions)


def test_dead_links_and_foreign_resources_are_found(tmp_path):
    problems = runpy.run_path(str(DOCS / "links.py"))["problems"]
    (tmp_path / "b.html").write_text('<h2 id="here">b</h2>')
    good = '<a href="b.html#here">b</a><a href="https://example.org/">elsewhere</a>'
    (tmp_path / "a.html").write_text(good)
    assert problems(tmp_path) == []
    for bad, what in (
        ('<a href="c.html">c</a>', "a.html links to c.html, which is not there"),
        ('<a href="b.html#gone">b</a>', "a.html links to b.html#gone, which has no such anchor"),
        ('<script src="https://example.org/x.js">', "a.html loads https://example.org/x.js"),
        (
            '<link rel="stylesheet" href="//example.org/x.css">',
            "a.html loads //example.org/x.css",
        ),
    ):
        (tmp_path / "a.html").write_text(good + bad)
        problems = runpy.run_path(str(DOCS / "links.py"))["problems"]  # reads each page once
        assert problems(tmp_path) == [what]


@pytest.mark.compat
@pytest.mark.parametrize("name", MODULES)
def test_docstrings(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.compat
def test_public_functions_have_an_example():
    for name in shardwrite.__all__:
        public = getattr(shardwrite, name)
        if (
            callable(public)
            and not isinstance(public, type)
            and name not in ("prepare", "finalize", "open_sharded")
        ):
            assert ">>>" in (public.__doc__ or ""), name
