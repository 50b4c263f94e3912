"""The check of prose in `make check` finds what does not read well."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

pytest.importorskip("proselint")
DOCS = Path(__file__).parent.parent / "docs"
# The README, a part of the page on reliability, and two modules of the commit f91bbb9.
FORMER = Path(__file__).parent / "former"
# From this project's README and its page on reliability, before this check existed.
EARLIER = """\
# shardwrite

A batch writer for HPC: it takes a dask array, or a large file, and writes it as one *sharded* Zarr v3 array, in parallel.
It is for scientists with arrays of gigabytes to terabytes who want few files for the file system and small chunks for readers.
Any dask chunking goes in, aligned or not; no shard is ever touched by two tasks, read before it is written, or visible before it
is whole. Memory is bounded by a plan that you can print before anything runs.

What else is tested on every run of the suite: the k-th system call that fails under an update or a stream; full disks, no inodes,
limits on file size, an ext4 that turns read-only; memory errors, workers, schedulers and clients that are killed; tasks that run
twice at once; stale, torn and frozen leases; 500 mutated shards, 180 mutated journals and plans; seventeen seeded bugs in our
own code (`tests/faults/bugs/`), each of which makes a test fail.
"""


@pytest.fixture
def readability(monkeypatch):
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("readability")


def needs_write_good(readability):
    if not (readability.NODE_MODULES / "write-good").is_dir() or shutil.which("node") is None:
        pytest.skip("write-good is not installed")


def test_an_earlier_text_fails(readability):
    found = readability.too_long(readability.page("README.md", EARLIER))
    assert [problem.split(": ")[:2] for problem in found] == [
        ["README.md:8", "78 words"],
        ["README.md", "33.2 words in a sentence on average"],
    ]


def test_former_pages_and_docstrings_fail(readability):
    pages = [readability.page(path.name, path.read_text()) for path in sorted(FORMER.glob("*.md"))]
    modules = [(path.stem, path.read_text()) for path in sorted(FORMER.glob("*.txt"))]
    docstrings, _ = readability.code(modules)
    found = {}
    for text in (*pages, docstrings):
        long = readability.too_long(text)
        if text is not docstrings:  # of which only the longest sentence counts
            whole = long.pop()
            assert whole.startswith(f"{text.name}: ")
            assert whole.endswith(" words in a sentence on average")
        found[text.name] = (len(text.sentences), len(long))
    assert found == {"README.md": (35, 8), "reliability.md": (44, 9), "docstrings": (15, 3)}


def test_the_map_and_the_changelog_are_read(readability):
    names = {path.name for path in readability.pages_of(DOCS.parent)}
    assert {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "guide.md", "api.md"} <= names


@pytest.mark.parametrize("is_in_ci", [True, False])
def test_without_write_good_only_continuous_integration_fails(
    readability, monkeypatch, tmp_path, capsys, is_in_ci
):
    monkeypatch.setattr(readability, "NODE_MODULES", tmp_path)
    monkeypatch.setattr(readability, "of_project", lambda root: [readability.page("a.md", "Good.")])
    monkeypatch.setattr("sys.argv", ["readability.py"])
    monkeypatch.setenv("CI", "true" if is_in_ci else "")
    with pytest.raises(SystemExit) as stopped:
        readability.main()
    assert stopped.value.code == is_in_ci
    assert "write-good is not here" in capsys.readouterr().out


def test_what_proselint_finds_is_told_with_its_line(readability):
    text = (
        "# Title\n\nA shard is a file.\n\n```python\nvery = 1\n```\n\nThe file is very\nunique.\n"
    )
    found = readability.of_proselint(readability.page("a.md", text))
    assert found
    assert all(problem.startswith("a.md:9: ") and "unique" in problem for problem in found)


def test_what_write_good_finds_is_told_with_its_line(readability):
    needs_write_good(readability)
    passive = "The array is written by a task. " * 9
    page = readability.page("a.md", f"The plan is quite large.\n\n{passive}")
    first, *sentences, last = readability.of_write_good([page])
    assert first.startswith("a.md:1: 'quite' is a weasel word")
    assert sentences == ["a.md:3: passive voice: The array is written by a task."] * 9
    assert last == "a.md: 9 sentences in the passive voice"


def test_docstrings_and_messages_are_read(readability):
    long = "word " * 40
    module = f'''"""Module.

Notes
-----
{long}
"""

def f(x: int) -> None:
    """Do it.

    Parameters
    ----------
    x : int
        {long}

    >>> print("{long}")
    """
    raise ValueError(f"it is wrong that {{x}} is {long}; give another")
'''
    texts = readability.code([("m.py", module)])
    found = [problem for text in texts for problem in readability.too_long(text)]
    assert [problem.split(": ")[0] for problem in found] == [
        "m.py:5",
        "m.py:14",
        "docstrings",
        "m.py:18",
        "messages",
    ]


def test_good_text_is_not_told(readability):
    needs_write_good(readability)
    good = "You write an array.\n\n- `x` may be any array.\n\n| a | table |\n|---|---|\n"
    assert readability.problems([readability.page("a.md", good)]) == []
