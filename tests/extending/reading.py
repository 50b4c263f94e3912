"""What ARCHITECTURE.md tells somebody to read who adds something, and what a toy takes."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
from pathlib import Path

from forks import python

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def parts_to_read(what):
    """Texts of the files in a row of the table "To change X, read Y".

    Of a file behind "`A` and `B` in", these classes and functions count, and the docstring at its
    head.
    """
    text = (ROOT / "ARCHITECTURE.md").read_text()
    row = re.search(rf"^\| {re.escape(what)} \|(.*)\|$", text, re.MULTILINE)
    assert row is not None, what
    parts = {}
    for named, name in re.findall(r"((?:`\w+`(?:, | and | in ))*)`([^`]+\.py)`", row.group(1)):
        file = next(f for f in (ROOT / "shardwrite" / name, ROOT / name) if f.exists())
        parts[file] = _definitions(file.read_text(), re.findall(r"`(\w+)`", named))
    return parts


def _definitions(text, names):
    if not names:
        return text
    known = {
        node.name: node
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    begins = {
        name: min([node.lineno, *(d.lineno for d in node.decorator_list)])
        for name, node in known.items()
    }
    lines = text.splitlines()
    found = lines[: ast.parse(text).body[0].end_lineno]
    for name in names:
        found += lines[begins[name] - 1 : known[name].end_lineno]
    return "\n".join(found)


def n_lines(parts):
    return sum(len(text.splitlines()) for text in parts.values())


def check_toy(toy, parts):
    """It is short, and takes public names only, each of which is seen in what one reads."""
    text = toy.read_text()
    assert len(text.splitlines()) <= 100
    seen = "\n".join(part for file, part in parts.items() if file != toy)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("shardwrite"):
            names = {alias.name for alias in node.names}
            assert names <= set(importlib.import_module(node.module).__all__)
            for name in names:
                assert re.search(rf"\b{name}\b", seen), f"{name} is in none of {list(parts)}"
        if isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")


def dying_after(n_shards):
    """Head of a program: `die`, given as `progress`, kills it once so many shards are written."""
    return f"""
import os, signal, sys
n_done = 0
def die(report):
    global n_done
    n_done += len(report.shards)
    if n_done >= {n_shards}:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(program, *arguments, code=0, site=None):
    """What a new process prints that runs a program, in which the toys can be imported.

    - `site`: folder with further packages.
    - Returns: also what it says of errors, if it is to end with a code.
    """
    own = filter(None, [site, os.environ.get("PYTHONPATH")])
    ended = subprocess.run(
        [*python(), "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [ROOT, HERE, *own]))},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == code, ended.stderr
    return ended.stdout.strip() + (ended.stderr if code > 0 else "")
