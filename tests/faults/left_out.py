"""All cases that the long tier leaves out: those that are marked ``campaign``.

Run as ``python tests/faults/left_out.py --json out.json``, or by `campaign.py`. Other arguments are
pytest's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> dict[str, object]:
    """How many cases there were, and those that failed."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.xml"
        command = [sys.executable, "-m", "pytest", "-m", "campaign", f"--junitxml={out}"]
        done = subprocess.run([*command, *arguments], cwd=ROOT, check=False)
        if done.returncode not in (0, 1):
            sys.exit(done.returncode)
        cases = [*ET.parse(out).getroot().iter("testcase")]
    failed = [
        case for case in cases if not {one.tag for one in case}.isdisjoint(("failure", "error"))
    ]
    skipped = [case for case in cases if case.find("skipped") is not None]
    return {
        "cases": len(cases),
        "vacuous": len(skipped),
        "troubles": [f"{case.get('classname')}::{case.get('name')}" for case in failed],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    given, others = parser.parse_known_args()
    found = run(*others)
    if given.json:
        given.json.write_text(json.dumps(found))
    sys.exit(1 if found["troubles"] else 0)


if __name__ == "__main__":
    main()
