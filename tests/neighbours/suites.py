"""Test suites and environments of other projects, fetched once, and run in a process of their own.

They are kept below pytest's cache, which git ignores. Nothing of them is part of this repository.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "compat"))

from environment import environ, uv

ROOT = Path(__file__).parent.parent.parent


def _pip(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    if done.returncode:
        pytest.skip(f"pip cannot fetch it here: {done.stderr.strip().splitlines()[-1:]}")


@contextlib.contextmanager
def alone(into):
    """Wait for another process of the tests that makes the same directory."""
    with open(into.with_name(f"{into.name}.lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def source_of(project, cache, release=None):
    """Unpacked source distribution of a project, by default of the version that is installed."""
    release = release or version(project)
    name = f"{project.replace('-', '_')}-{release}"
    into = Path(cache.mkdir("neighbours"))
    with alone(into / name):
        if not (into / name).is_dir():
            _pip("download", "--no-deps", "--no-binary", project, "--dest", str(into),
                 f"{project}=={release}")  # fmt: skip
            with tarfile.open(into / f"{name}.tar.gz") as archive:
                archive.extractall(into / "unpacked", filter="data")
            (into / "unpacked" / name).rename(into / name)
    return into / name


def packages(names, cache):
    """Directory with packages that only these suites need, without what they depend on."""
    into = Path(cache.mkdir("neighbours")) / "-".join(names)
    with alone(into):
        if not into.is_dir():
            draft = into.with_name(f"{into.name}.{os.getpid()}")
            _pip("install", "--no-deps", "--target", str(draft), *names)
            draft.rename(into)
    return into


def python_with(name, cache, *needed, python=sys.executable):
    """A Python in an environment of its own, with what `uv pip install` is told to install."""
    into = Path(cache.mkdir("neighbours")) / name
    with alone(into):
        if not (into / "done").exists():
            env = environ()
            try:
                uv("venv", "--quiet", "--clear", "--python", python, into, env=env)
                at = ("--quiet", "--python", into / "bin/python")
                uv("pip", "install", *at, *needed, env=env)
            except SystemExit as ended:
                pytest.skip(f"uv cannot make the environment here: {str(ended).splitlines()[-1:]}")
            (into / "done").touch()
    return into / "bin/python"


def run_suite(tmp_path, plugin, *arguments, cwd, paths=(), **environ):
    """Run a suite under a plugin of this folder, or of one in `paths`.

    Returns
    -------
    outcomes : dict of str to int
        Number of tests by outcome.
    told : dict
        What the plugin has left.
    output : str
        What pytest printed.
    """
    left = tmp_path / "told.json"
    environ = {
        **os.environ,
        **environ,
        "PYTHONPATH": os.pathsep.join(map(str, (*paths, ROOT, Path(__file__).parent))),
        "SHARDWRITE_TOLD": str(left),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-o", "addopts=", "-p", "no:cacheprovider",
               "--basetemp", str(tmp_path / "theirs"), "-p", plugin, *arguments]  # fmt: skip
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=580, check=False
    )
    print(done.stdout[-3000:], done.stderr[-1000:])
    last = next((n for n in reversed(done.stdout.splitlines()) if " in " in n), "")
    outcomes = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", last)}
    told = json.loads(left.read_text()) if left.exists() else {}
    return outcomes, told, done.stdout
