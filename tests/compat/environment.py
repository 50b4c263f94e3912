"""Make one of the two other environments in which the tests marked `compat` run.

    python tests/compat/environment.py lowest|newest DIRECTORY

The lowest has the oldest version of every library that pyproject.toml allows, on the oldest Python
that it allows. The newest has the newest releases on the newest Python of this machine. Nothing is
compiled, and no Python is downloaded. Run it with a Python that has uv beside it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
UV = Path(sys.executable).parent / "uv"
WHEELS = ("--only-binary", ":all:")
# Where a site has told pip to look for packages, uv looks as well.
FROM_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "cert": "SSL_CERT_FILE",
}
SHOWN = ("numpy", "zarr", "numcodecs", "dask", "distributed", "click", "rich", "h5py", "pytest")


@dataclass(frozen=True, order=True)
class Python:
    """An interpreter of this machine."""

    version: tuple[int, ...]
    path: str

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


def settings(listed: str) -> dict[str, str]:
    """Variables for uv that say what ``pip config list`` says."""
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        if variable := FROM_PIP.get(name.rpartition(".")[2]):
            found[variable] = value.strip("'\"")
    return found


def environ() -> dict[str, str]:
    """Variables in which uv finds the interpreters of pyenv, and packages where pip does."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(pip, check=True, capture_output=True, text=True).stdout
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    here = Path(os.path.realpath(sys.executable)).parent
    places = [here, *sorted(pyenv.glob("versions/3.*/bin")), os.environ.get("PATH", os.defpath)]
    return {
        **settings(listed),
        **os.environ,
        "PATH": os.pathsep.join(map(str, places)),
        "UV_PYTHON_DOWNLOADS": "never",
    }


def uv(*words: str | Path, env: dict[str, str]) -> str:
    """Run uv; what it says is shown if it fails."""
    done = subprocess.run([UV, *words], cwd=ROOT, env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"uv {' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def pythons(listed: str, minimum: tuple[int, ...]) -> list[Python]:
    """Releases of CPython that are new enough, in order, from what uv lists in JSON."""
    return sorted(
        Python(tuple(map(int, one["version"].split("."))), one["path"])
        for one in json.loads(listed)
        if one["implementation"] == "cpython"
        and one["variant"] == "default"
        and re.fullmatch(r"\d+\.\d+\.\d+", one["version"])  # no prereleases
        and tuple(map(int, one["version"].split("."))) >= minimum
    )


def choose(kind: str, found: list[Python]) -> tuple[Python, str]:
    """The interpreter for an environment, and what there is to say about the choice."""
    oldest, newest = found[0].version[:2], found[-1].version[:2]
    if kind == "newest":
        alone = "no newer Python is here; releases that need one are left out"
        return found[-1], alone if oldest == newest else ""
    return max(one for one in found if one.version[:2] == oldest), ""


def make(kind: str, directory: Path) -> None:
    """Make the environment and print what it has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minimum = tuple(map(int, re.findall(r"\d+", project["requires-python"])))
    env = environ()
    listed = uv("python", "list", "--only-installed", "--output-format", "json", env=env)
    python, remark = choose(kind, pythons(listed, minimum))
    if kind == "lowest" and python.version[:2] != minimum:
        remark = f"Python {'.'.join(map(str, minimum))} is not here"
    uv("venv", "--quiet", "--clear", "--python", python.path, directory, env=env)
    pins = directory / "requirements.txt"
    resolution = "lowest-direct" if kind == "lowest" else "highest"
    uv(
        *("pip", "compile", "--quiet", "--resolution", resolution, *WHEELS, "--extra", "test"),
        *("--python", directory / "bin" / "python", "--output-file", pins, "pyproject.toml"),
        env=env,
    )
    into = ("pip", "install", "--quiet", "--python", directory / "bin" / "python")
    uv(*into, *WHEELS, "--requirement", pins, env=env)
    uv(*into, "--no-deps", "--editable", ".", env=env)
    pinned = dict(line.split("==") for line in re.findall(r"^[\w.-]+==\S+", pins.read_text(), re.M))
    print(f"{kind}: {python}", *[f"{name} {pinned[name]}" for name in SHOWN], remark, sep="; ")


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]).resolve())
