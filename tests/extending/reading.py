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


def files_to_read(what):
    """Files in a row of the table "To change X, read Y"."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    row = re.search(rf"^\| {re.escape(what)} \|(.*)\|$", text, re.MULTILINE)
    assert row is not None, what
    named = re.findall(r"`([^`]+\.py)`", row.group(1))
    return [next(f for f in (ROOT / "shardwrite" / n, ROOT / n) if f.exists()) for n in named]


def n_lines(files):
    return sum(len(file.read_text().splitlines()) for file in files)


def check_toy(toy, files):
    """It is short, and takes public names only, each of which is seen in the files to read."""
    text = toy.read_text()
    assert len(text.splitlines()) <= 100
    seen = "\n".join(file.read_text() for file in files)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("shardwrite"):
            names = {alias.name for alias in node.names}
            assert names <= set(importlib.import_module(node.module).__all__)
            for name in names:
                assert re.search(rf"\b{name}\b", seen), f"{name} is in none of {files}"
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
