"""Child processes in which wings are missing, as if their files were not installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection
from pathlib import Path

from forks import python

TESTS = Path(__file__).parent.parent
_BLOCK = """
import sys
sys.path.insert(0, {tests!r})
import shape

def is_blocked(name):
    file = name.removeprefix("shardwrite.").replace(".", "/")
    homes = {{shape.home(file + end)[0] for end in (".py", "/__init__.py")}}
    return name in {packages!r} or (name.startswith("shardwrite.") and bool(homes & {wings!r}))

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if is_blocked(name):
            raise ModuleNotFoundError(f"{{name}} is missing in this test", name=name)

assert not any(map(is_blocked, sys.modules))
sys.meta_path.insert(0, Missing)
"""


def run_without(
    wings: Collection[str], program: str, *words: object, packages: Collection[str] = ()
) -> str:
    """What a program prints that runs without some wings, and without packages of others."""
    block = _BLOCK.format(tests=str(TESTS), wings={*wings}, packages={*packages})
    done = subprocess.run(
        [*python(package=False), "-c", block + program, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
