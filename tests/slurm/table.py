"""The table of interruptions in the documentation: ``python tests/slurm/table.py --write
docs/slurm.md``, as root, ten minutes.

Runs the tests of the three ways on a real SLURM, and takes what they measured.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BEGIN, END = "<!-- interruptions -->", "<!-- end of interruptions -->"
WAYS = ("array", "allocation", "elastic")
HEAD = (
    "interruption",
    "shards done before",
    "of these written again",
    "seconds to the end",
    "result",
)


def measured():
    """Rows, in the order of the tests."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "rows"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "long",
            *(HERE / f"test_{way}.py" for way in WAYS),
        ]
        subprocess.run(command, check=True, env={**os.environ, "INTERRUPTIONS": str(out)})
        return [json.loads(line) for line in out.read_text().splitlines()]


def table(rows):
    """As Markdown."""
    cells = [
        (r["what"], f"{r['before']} of 256", str(r["redone"]), f"{r['seconds']:.0f}", r["result"])
        for r in rows
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in (HEAD, ("---",) * len(HEAD), *cells))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="Put the table between its marks in this file.")
    arguments = parser.parse_args()
    text = table(measured())
    print(text)
    if arguments.write:
        page = arguments.write.read_text()
        pattern = f"{re.escape(BEGIN)}.*?{re.escape(END)}"
        assert re.search(pattern, page, re.DOTALL), "no marks in that file"
        arguments.write.write_text(
            re.sub(pattern, lambda _: f"{BEGIN}\n{text}\n{END}", page, flags=re.DOTALL)
        )


if __name__ == "__main__":
    main()
