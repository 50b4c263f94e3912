"""Completion, by the script that the program prints, in real shells on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import shlex
import shutil
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from forks import python
from tiers import some

from shardwrite.cli import main

ROOT = Path(__file__).parent.parent.parent
PROMPT = "ready> "
SECONDS = 90  # a whole import may be needed, on a machine that has other things to do


EVAL, DONE = 'eval "$(shardwrite completion', ')" && echo did-$((40+2))\n'
# For each shell: how it is started without the settings of a user, and what has it read the script.
# Only a shell that controls its terminal edits lines as for a person.
SHELLS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        f"bind 'set enable-bracketed-paste off'; bind 'set bell-style none'\n{EVAL} bash{DONE}",
    ),
    "zsh": (["zsh", "-f", "-i"], f"{EVAL} zsh{DONE}"),
    "fish": (
        ["fish", "--private", "-C", f"function fish_prompt; echo -n '{PROMPT}'; end"],
        "shardwrite completion fish | source; and echo did-(math 40+2)\n",
    ),
}


class Shell:
    """An interactive shell that has read the script."""

    def __init__(self, name: str, directory: Path) -> None:
        program = directory / "bin" / "shardwrite"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\nexec {shlex.join(python())} -c "from shardwrite.cli import main; '
            'main(prog_name=\'shardwrite\')" "$@"\n'
        )
        program.chmod(0o755)
        environ = {
            **os.environ,
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PS1": PROMPT,
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
            "HOME": str(directory),
            **{f"XDG_{kind}_HOME": str(directory / "xdg") for kind in ("CONFIG", "DATA", "CACHE")},
        }
        started, begin = SHELLS[name]
        self.terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *started],
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=directory,
            env=environ,
        )
        os.close(other)
        self.shown = ""
        self.wait_for(PROMPT)
        for line in begin.splitlines(keepends=True):
            self.type(line)
        self.wait_for("did-42")

    def type(self, text: str) -> None:
        self.shown = ""
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> None:
        end = time.monotonic() + SECONDS
        while text not in self.shown:
            assert time.monotonic() < end, self.shown
            if select.select([self.terminal], [], [], 1)[0]:
                self.shown += os.read(self.terminal, 4096).decode(errors="replace")

    def clear(self) -> None:
        """Give up the line."""
        self.type("\x15\n")
        self.wait_for(PROMPT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(params=some(SHELLS, "bash"))
def shell(request, tmp_path):
    if shutil.which(request.param) is None or shutil.which("setsid") is None:
        pytest.skip(f"there is no {request.param}, or no setsid")
    (tmp_path / "measured.npy").write_bytes(b"")
    (tmp_path / "arrays").mkdir()
    (tmp_path / "arrays" / "inner.npy").write_bytes(b"")
    (tmp_path / "arrangement.txt").write_text("")
    with contextlib.closing(Shell(request.param, tmp_path)) as found:
        yield found


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_shell_completes_commands_paths_options_and_choices(shell):
    for typed, completed in {
        "shardwrite uns": "shardwrite unshard ",
        "shardwrite write meas": "measured.npy",
        "shardwrite write arrays/inn": "arrays/inner.npy",
        "shardwrite info arra": "arrays/",
        "shardwrite write x y --durability fu": "--durability full ",
        "shardwrite write x y --over": "--overwrite ",
        "shardwrite write x y --strategy mor": "--strategy morton ",
    }.items():
        shell.type(f"{typed}\t")
        shell.wait_for(completed)
        shell.clear()


def test_a_script_for_zsh_can_lie_in_a_file_of_functions():
    script = CliRunner().invoke(main, ["completion", "zsh"]).output
    assert script.startswith("#compdef shardwrite\n")


@pytest.mark.compat
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell):
    ended = CliRunner().invoke(main, ["completion", shell])
    assert ended.exit_code == 0, ended.output
    assert f"_SHARDWRITE_COMPLETE={shell}_complete" in ended.output


def test_a_list_of_commands_is_completed_without_importing_them():
    program = "from shardwrite.cli import main; import sys; main(prog_name='shardwrite')"
    environ = {
        **os.environ,
        "_SHARDWRITE_COMPLETE": "bash_complete",
        "COMP_WORDS": "shardwrite un",
        "COMP_CWORD": "1",
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", program],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["plain,unshard"]
    assert " dask" not in done.stderr
