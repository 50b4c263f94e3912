"""What the tests marked `compat` cover, as far as their text says: every public name, every format,
every command and every optional library. And the versions that they have run with."""

from __future__ import annotations

import ast
import inspect
import os
import re
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import requires, version
from itertools import pairwise
from pathlib import Path

import click
import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import shardwrite
from shardwrite.cli import main
from shardwrite.sources import FORMATS

pytestmark = pytest.mark.compat

TESTS = Path(__file__).parent.parent
# Names by which a library is used, where it is not imported by its own.
USED_AS = {"cryptography": "make_run_directory"}
RUNNERS = ("hypothesis", "moto", "mypy", "psutil", "pytest", "ruff", "seaweedfs", "uv")


@dataclass
class Text:
    """Names and strings in the marked tests, and the strings that stand beside each other."""

    words: set[str] = field(default_factory=set)
    pairs: set[tuple[str, str]] = field(default_factory=set)

    def take(self, node: ast.AST) -> None:
        """Add what is in a piece of a module."""
        for one in ast.walk(node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                self.words.update(one.value.split("."))
            for key in ("id", "attr", "name", "module", "arg"):
                self.words.update(str(getattr(one, key, "")).split("."))
            row = one.args if isinstance(one, ast.Call) else getattr(one, "elts", [])
            strings = ["", *(item.value if isinstance(item, ast.Constant) else "" for item in row)]
            self.pairs.update(pairwise(strings))


def names_of(node: ast.stmt) -> list[str]:
    """Names that a statement of a module binds."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [one.asname or one.name for one in node.names]
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    return [
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


def is_marked(node: ast.AST) -> bool:
    return any(ast.unparse(one) == "pytest.mark.compat" for one in ast.walk(node))


@cache
def marked() -> Text:
    """All marked tests, with the helpers and fixtures that they name."""
    text = Text()
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.samefile(__file__) or "compat" not in path.read_text():
            continue
        body = ast.parse(path.read_text()).body
        if any(isinstance(node, ast.Assign) and is_marked(node) for node in body):
            wanted = body
        else:
            wanted = [
                node
                for node in body
                if isinstance(node, ast.FunctionDef) and any(map(is_marked, node.decorator_list))
            ]
        known = {name: node for node in body for name in names_of(node)}
        taken, waiting = set(), list(wanted)
        while waiting:
            node = waiting.pop()
            text.take(node)
            for one in ast.walk(node):
                name = getattr(one, "id", getattr(one, "arg", None))
                if name in known and name not in taken and not name.startswith("test_"):
                    taken.add(name)
                    waiting.append(known[name])
    return text


def test_every_public_name():
    """A class is covered by the functions that return it."""
    names = set(shardwrite.__all__) - {"__version__", *shardwrite.errors.__all__}
    seen = names & marked().words
    waiting = list(seen)
    while waiting:
        public = getattr(shardwrite, waiting.pop())
        functions = vars(public).values() if isinstance(public, type) else [public]
        for function in filter(inspect.isfunction, functions):
            told = str(inspect.signature(function).return_annotation)
            waiting += (names & set(re.findall(r"\w+", told))) - seen
            seen.update(waiting)
    assert names - seen == set()


def test_every_format():
    """Other tests add formats of their own to the table."""
    ours = [name for name, one in FORMATS.items() if one.module.startswith("shardwrite.")]
    assert len(ours) >= 7
    made = [word for word in marked().words if word.startswith("make_")]
    assert [name for name in ours if not any(w.startswith(f"make_{name}") for w in made)] == []


def test_every_command():
    missing = []
    for name in main.commands:
        command = main.get_command(click.Context(main), name)
        assert command is not None
        if isinstance(command, click.Group):
            words = [(name, one) for one in command.commands]
            missing += [one for one in words if one not in marked().pairs]
        elif name not in {second for _, second in marked().pairs}:
            missing.append(name)
    assert missing == []


def requirements() -> list[Requirement]:
    """What the package and its tests need."""
    found = [Requirement(one) for one in requires("shardwrite") or []]
    return [
        one
        for one in found
        if one.name != "shardwrite"
        and (one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("all", "test")))
    ]


def test_every_optional_library():
    optional = {one.name for one in requirements() if one.marker is not None}
    names = {USED_AS.get(name, name.replace("-", "_")) for name in optional}
    assert [n for n in names if n not in marked().words and not n.startswith(RUNNERS)] == []


def test_lower_bounds_are_those_that_are_tried():
    """In the environment of the lowest versions, each is exactly the one that pyproject names."""
    for one in requirements():
        (bound,) = one.specifier
        assert bound.operator == ">=", one
        here, least = Version(version(one.name)), Version(bound.version)
        assert here == least if os.environ.get("COMPAT") == "lowest" else here >= least, one
