"""What stands for Python does what Python does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from forks import python

PROGRAM = """
import os, sys
print(sys.argv, __name__, sys.modules["__main__"].__dict__ is globals(), os.getcwd(), os.environ["GIVEN"])
print(sys.path[:2], sys.stdin.read(), oct(os.umask(0)))
print("wrong", file=sys.stderr)
sys.exit(7)
"""


def same(directory, *arguments, given=""):
    """How a program ends, and what it prints, with Python and with what stands for it."""
    told = []
    for command in (python(), [sys.executable]):
        ended = subprocess.run(
            [*command, *arguments],
            cwd=directory,
            env={**os.environ, "GIVEN": "value"},
            input=given,
            capture_output=True,
            text=True,
            umask=0o27,
        )
        told.append((ended.returncode, ended.stdout, ended.stderr))
    assert told[0] == told[1]
    return told[0]


def test_programs_of_each_kind(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    code, printed, said = same(tmp_path, "-c", PROGRAM, "a", "-b", given="read")
    assert (code, said) == (7, "wrong\n")
    assert "['-c', 'a', '-b'] __main__ True" in printed
    assert "read 0o27" in printed
    assert same(tmp_path, "program.py", "a", given="read")[0] == 7
    assert same(tmp_path, "-", "a", given="print(__name__)")[1] == "__main__\n"
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv, __name__, sys.path[0])")
    assert "__main__" in same(tmp_path, "-m", "program", "a")[1]


def test_a_program_that_fails():
    failed = subprocess.run([*python(), "-c", "1 / 0"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert failed.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_it(number):
    """It does not outlive who has started it, either."""
    program = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(60)"
    with subprocess.Popen(
        [*python(), "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as command:
        pid = int(command.stdout.readline())
        os.kill(pid, 0)
        command.send_signal(number)
        assert command.wait(30) == -number
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_of_its_own():
    program = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    assert subprocess.run([*python(), "-c", program], check=False).returncode == -signal.SIGKILL


def test_this_package_from_elsewhere_is_refused(tmp_path):
    (tmp_path / "shardwrite").mkdir()
    (tmp_path / "shardwrite" / "__init__.py").write_text("")
    refused = subprocess.run(
        [*python(), "-c", "import shardwrite"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 1
    assert "another shardwrite would be imported" in refused.stderr
