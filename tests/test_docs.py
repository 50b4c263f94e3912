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

import click
import dask
import pytest
import zarr
from forks import python

import shardwrite
from benchmarks.results import Number, Results
from shardwrite.cli import main

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
EXAMPLE = re.compile(r"^```(python|bash)\n(.*?)^```", re.DOTALL | re.MULTILINE)
WITHOUT_EXAMPLES = {
    *("contributing.md", "faq.md", "glossary.md", "reference/api.md", "speed.md"),
    *("reliability-measured.md", "buckets-state.md", "howto/icechunk.md"),
    "reference/run-state.md",
    "coming-from/iohub.md",  # its examples run in tests/neighbours
    *(f"{folder}/README.md" for folder in ("coming-from", "howto", "reference")),
    *(f"design/{page.name}" for page in (DOCS / "design").glob("*.md")),
}
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted(DOCS.rglob("*.md")) if str(p.relative_to(DOCS)) not in WITHOUT_EXAMPLES),
]
PEERS = {
    "cloud-volume.md": "cloudvolume",
    "icechunk.md": "icechunk",
    "tensorstore.md": "tensorstore",
}  # pages that need another tool
OLDEST_DASK = os.environ.get("COMPAT") == "lowest"  # whose own to_zarr takes no shards
WALKS = (  # through most that there is
    *(() if OLDEST_DASK else ("README.md",)),
    *("guide.md", "drop-in.md", "updates.md", "extending.md"),
    *("checking.md", "stores.md", "streaming.md"),
)
SLOW = (
    *("figures.md", "performance.md", "scale.md"),  # they run benchmarks
    *("convert.md", "convert-files.md", "convert-in-place.md", "chunks-with-data.md"),
    *("files.md", "hdf5.md", "nested.md", "precomputed.md", "volumes.md", "meshes.md", "slurm.md"),
    *("slurm-dask.md", "slurm-site.md", "adopt.md", "xarray.md"),
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
    if page.name in PEERS:
        pytest.importorskip(PEERS[page.name])
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


METHOD = re.compile(r"\.(to_sharded_zarr|to_precomputed|shardwrite)\b")


def test_pages_import_the_package_before_they_use_its_methods():
    """A reader's process has not imported it, as the process of this test has."""
    forgotten = []
    for page in PAGES:
        code = "".join(
            each for language, each in EXAMPLE.findall(page.read_text()) if language == "python"
        )
        first = METHOD.search(code)
        if first and re.search(r"^(import|from) shardwrite\b", code[: first.start()], re.M) is None:
            forgotten.append(str(page.relative_to(ROOT)))
    assert forgotten == []


def test_pages_without_examples_have_none():
    assert [p for p in WITHOUT_EXAMPLES if EXAMPLE.search((DOCS / p).read_text())] == []


def test_the_readme_is_short_and_its_five_lines_run_twice(tmp_path):
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    example = EXAMPLE.findall(text)[-1][1]
    assert len(example.strip().splitlines()) == 5
    for _ in range(2):  # each in a process of its own, as a reader does it
        subprocess.run([*python(), "-c", example], cwd=tmp_path, check=True)


def test_the_readmes_three_lines_lose_values_with_dask_alone_and_not_with_the_patch(
    tmp_path, monkeypatch
):
    """Which values are lost is chance. If none ever are, dask was mended: change the README."""
    theirs, ours = (example for _, example in EXAMPLE.findall((ROOT / "README.md").read_text())[:2])
    assert len(theirs.strip().splitlines()) == 3
    n_lost = 0
    for k in range(20):
        (tmp_path / str(k)).mkdir()
        monkeypatch.chdir(tmp_path / str(k))
        namespace: dict = {}
        exec(theirs, namespace)
        n_lost += int((zarr.open_array("lost.zarr")[:] != namespace["x"].compute()).sum())
        exec(ours, namespace)  # checks itself
        if n_lost:
            return
    pytest.fail("dask loses no values")


def test_the_committed_pictures_are_those_that_are_drawn():
    pictures = runpy.run_path(str(DOCS / "pictures.py"))
    assert (DOCS / "pictures" / "overview.svg").read_text() == pictures["overview"]()
    chart = pictures["chart"](pictures["FIGURES"])
    assert (DOCS / "pictures" / "chart.svg").read_text() == chart, "python docs/pictures.py"
    assert (DOCS / "pictures" / "reads.svg").read_text() == pictures["reads"]()


def test_the_chart_has_a_dataset_once_it_was_measured(tmp_path):
    pictures = runpy.run_path(str(DOCS / "pictures.py"))
    (tmp_path / "side-by-side.csv").write_bytes(
        (DOCS / "figures" / "side-by-side.csv").read_bytes()
    )
    assert "xarray" not in pictures["chart"](tmp_path)
    names = ("shardwrite", "xarray", "xarray-zarrs")
    units = ("seconds", "MiB above idle")
    numbers = [Number("one-step-zstd", name, unit, 7.25) for name in names for unit in units]
    Results({"commit": "1234567"}, numbers).write(tmp_path / "datasets.csv")
    chart = pictures["chart"](tmp_path)
    assert [chart.count(f">{name}<") for name in ("xarray", "xarray-zarrs", "7.2", "7")] == [
        1,
        1,
        3,
        3,
    ]


def test_the_chart_names_the_commit_of_its_figures():
    commit = Results.read(DOCS / "figures" / "side-by-side.csv").commit
    for page in (ROOT / "README.md", DOCS / "index.md"):
        assert re.findall(r"[Cc]ommit:? (\w+)", page.read_text()) == [commit]


@pytest.mark.long
def test_the_recording_tells_what_a_terminal_shows_today():
    """Its numbers may differ."""
    pytest.importorskip("pyte")
    recording = runpy.run_path(str(DOCS / "recording.py"), run_name="recording")
    terminal = recording["record"]()
    assert any("Killed" in line for line in terminal.transcript().splitlines())
    committed = recording["PICTURE"].read_text()
    again = "record it again: python docs/recording.py"
    drawn = recording["draw"](terminal.frames, terminal.transcript())
    assert recording["story"](committed) == recording["story"](drawn), again
    assert committed.count("translateY") > 10  # it moves


def test_the_menu_is_short_and_leads_to_every_page():
    """What has no entry of its own, a page with an entry links to."""
    entries = re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(entries) == len(set(entries)) <= 20
    made = {"reference/commands.md", "changelog.md"}
    reached = {DOCS / entry for entry in entries if entry not in made}
    linked = {
        (page.parent / target).resolve()
        for page in (*reached, DOCS / "design" / "README.md")
        for target in re.findall(r"\]\(([^)#:]+\.md)[)#]", page.read_text())
    }
    assert {*DOCS.rglob("*.md")} <= reached | linked
    assert all(page.is_file() or str(page.relative_to(DOCS)) in made for page in linked | reached)


def shown_commands(text):
    """Words after ``shardwrite`` in code, command by command; continued lines are one."""
    text = text.replace("\\\n", " ")
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    rest = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [*fenced.splitlines(), *re.findall(r"^    .+$", rest, re.MULTILINE)]
    lines += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", rest)]
    for line in lines:
        for words in re.findall(r"(?:^|[|&;(] *| )shardwrite ((?:[a-z-]+ ?)[^|&;>#`]*)", line):
            yield words.split()


def test_every_command_and_option_that_a_page_shows_exists():
    context, n_shown = click.Context(main, info_name="shardwrite"), 0
    for page in (ROOT / "README.md", *DOCS.rglob("*.md")):
        for words in shown_commands(page.read_text()):
            if words[0] in ("--help", "--version", "import", "negative"):
                continue  # the last is an example of another package
            command, known, n_shown = main, {"--help"}, n_shown + 1
            while words and isinstance(command, click.Group):
                below = command.get_command(context, words[0])
                assert below is not None, (str(page), words)
                command, words = below, words[1:]
                known |= {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
            own = words[: words.index("--")] if "--" in words else words
            options = {word.partition("=")[0].rstrip(".,)") for word in own if word[:2] == "--"}
            assert options <= known, (str(page), words)
    assert n_shown > 100


def test_no_page_is_long():
    lengths = {str(page): len(page.read_text().splitlines()) for page in DOCS.rglob("*.md")}
    assert not {name for name, n_lines in lengths.items() if n_lines > 300}


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
