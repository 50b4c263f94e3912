"""The command ``shardwrite`` of this source tree, as the tests' jobs find it; with ``PAUSE`` in the
environment, slower."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent.parent))
runpy.run_path(str(HERE / "pause.py"))

from shardwrite.cli import main  # noqa: E402 (this tree's)

if (
    __name__ == "__main__"
):  # worker processes import this file, too, so that they are slower as well
    main()
