"""Child processes in which a wing is missing, as if its files were not installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent.parent
_BLOCK = """
import sys
sys.path.insert(0, {tests!r})
import shape

class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.startswith("shardwrite."):
            file = name.removeprefix("shardwrite.").replace(".", "/")
            if {wing!r} in (shape.home(file + ".py")[0], shape.home(file + "/__init__.py")[0]):
                raise ModuleNotFoundError(f"{{name}} is missing in this test", name=name)

sys.meta_path.insert(0, Missing)
"""


def run_without(wing: str, program: str, *words: object) -> str:
    """What a program prints that runs without a wing."""
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK.format(tests=str(TESTS), wing=wing) + program]
        + [str(word) for word in words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
