"""The table of docs/reliability.md: ``python tests/faults/campaign.py --write docs/reliability.md``, as root; half an hour.

Runs the harnesses beside this file, each as its own command, and replaces what stands between the marks in the document.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import preloaded

HERE = Path(__file__).parent
BEGIN, END = "<!-- campaign -->", "<!-- end of campaign -->"
HEAD = ("fault", "runs", "acknowledged commits", "lost", "torn", "vacuous runs", "upper bound on the share lost (95 %)")


def harness(script, *arguments, environment=None):
    """What a harness found."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        command = [sys.executable, HERE / script, *arguments, "--json", out]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
        return json.loads(out.read_text())


def row(name, n_runs, n_acked, n_lost, n_torn, n_vacuous):
    bound = f"{3 / n_acked:.1e}" if n_acked and not n_lost else "does not hold" if n_lost else "unknown"
    return (name, f"{n_runs:,}", f"{n_acked:,}", f"{n_lost:,}", f"{n_torn:,}", f"{n_vacuous:,}", bound)


def power_cuts(filesystem, durability, n_states):
    found = harness("power_cut.py", "--filesystem", filesystem, "--durability", durability, "--states", str(n_states))
    numbers = (found[name] for name in ("states", "acked", "lost", "torn", "vacuous"))
    return row(f"power cut, {filesystem}, level {durability}", *numbers)


def failed_writes(filesystem, n_cases):
    found = harness("lossy_disk.py", "--filesystem", filesystem, "--cases", str(n_cases))
    assert not found["troubles"], found["troubles"]
    assert not found["false"], "verify did not say what the readers found"
    numbers = (found[name] for name in ("cases", "acked", "lost", "torn", "vacuous"))
    return row(f"write-back fails once, twice or until the disk is well, {filesystem}", *numbers)


def kills(name, *arguments):
    found = harness("kills.py", *arguments)["summary"]
    assert not found["troubles"], found["troubles"]
    return row(name, found["kills"], found["acked"], found["lost"], 0, found["vacuous"])


def failing_calls():
    with tempfile.TemporaryDirectory() as scratch:
        shim = preloaded.build(Path(scratch))
        found = harness("failing_calls.py", environment={"LD_PRELOAD": str(shim), "SHIM": str(shim)})["summary"]
    assert not found["troubles"], found["troubles"]
    name = "the k-th open, read, write, fsync, close, stat, list, rename, link, unlink, mkdir or rmdir fails, every k"
    return row(name, found["cases"], found["acked"], found["lost"], 0, found["vacuous"])


def rows(scale):
    """Every line of the table."""
    for filesystem in ("ext4", "xfs"):
        for durability in ("full", "batch", "none"):
            n_states = {"full": 250, "batch": 125, "none": 40}[durability]
            yield power_cuts(filesystem, durability, max(4, int(n_states * scale)))
        yield failed_writes(filesystem, max(20, int(500 * scale)))
    n_kills = max(4, int(200 * scale))
    yield kills("SIGKILL at a random moment", "--kills", str(n_kills), "--seed", "2")
    yield kills(
        "a job of 10,000 shards killed 20 times", "--one-array", "--shards", str(max(400, int(10_000 * scale))), "--kills", "20"
    )
    yield failing_calls()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="replace the table in this document")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    given = parser.parse_args()
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    for cells in rows(given.scale):
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    when = datetime.now(UTC).date().isoformat()
    lines += ["", f"Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {when}."]
    if given.write:
        before, _, rest = given.write.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        given.write.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


if __name__ == "__main__":
    main()
