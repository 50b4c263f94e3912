"""The shim that counts, fails and stops system calls, and the harnesses that run under it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SETTINGS = ("SHIM", "LD_PRELOAD")


def missing() -> str:
    """Why no shim can be had here, or an empty string."""
    return (
        "needs Linux and gcc (Debian's package gcc)"
        if shutil.which("gcc") is None or sys.platform != "linux"
        else ""
    )


def build(directory: Path) -> Path:
    """The shim, compiled."""
    shim = directory / "shim.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", shim, HERE / "shim.c", "-ldl"],
        check=True,
    )
    return shim


def environment(shim: Path | None) -> dict[str, str]:
    """This process's environment with the shim, or without any."""
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return plain if shim is None else {**plain, **dict.fromkeys(SETTINGS, str(shim))}


def restarted(script: str, arguments: list[str]) -> int:
    """Start a script anew with the shim; its exit code."""
    with tempfile.TemporaryDirectory() as directory:
        shim = build(Path(directory))
        return subprocess.run(
            [sys.executable, script, *arguments], env=environment(shim), check=False
        ).returncode


def outcome(directory: Path, script: str, *arguments: str, shim: Path | None = None) -> dict:
    """What a harness of this folder has written that runs under a shim; by default, under its own."""
    out = directory / "out.json"
    ended = subprocess.run(
        [sys.executable, HERE / script, *arguments, "--json", out],
        env=environment(shim or build(directory)),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(out.read_text())
    print(json.dumps(found["summary"]))
    return found
