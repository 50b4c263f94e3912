"""Record a run that is killed and goes on, for the README: ``python docs/recording.py``.

An interactive shell runs in a terminal of its own. It gets the commands below, as if somebody typed
them. The first write is killed when half of it is done. What the terminal shows becomes an animated
picture, with the transcript as its description. Numbers differ from recording to recording, so the
picture is committed, and the tests compare the words.
"""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from html import escape
from itertools import groupby
from pathlib import Path

import numpy as np
import pyte

PICTURE = Path(__file__).resolve().parent / "pictures" / "killed-and-continued.svg"
WRITE = "shardwrite write scan.npy scan.zarr --shards 64 --chunks 32"
VERIFY = "shardwrite verify scan.zarr --deep"
_SHAPE = (512, 256, 512)
_COLUMNS, _ROWS, _ROWS_OF_TRANSCRIPT = 92, 25, 100
_PROMPT = "$ "
_TIMEOUT_SECONDS = 120
_PAUSE_SECONDS = 1.0  # before a command is typed
_FRAME_SECONDS, _LONGEST_SECONDS, _LAST_SECONDS = 0.15, 1.2, 5.0
_DONE = re.compile(r"([\d.]+)/([\d.]+) MB")
_CELL, _LINE, _BORDER = 8.4, 18, 14
_COLOURS = {  # of the terminal: on a light page, and on a dark one
    "red": ("#a40e26", "#ff7b72"),
    "brightred": ("#0072b2", "#56b4e9"),  # the part of the bar that is done
    "green": ("#116329", "#7ee787"),
    "cyan": ("#1b7c83", "#76e3ea"),
    "brightblack": ("#c0c6cd", "#484f58"),
    "prompt": ("#0072b2", "#56b4e9"),
}
Screen = tuple[tuple[tuple[str, str], ...], ...]  # rows of cells: a character and its colour


class Terminal:
    """A shell in a terminal, and what both have shown.

    Attributes
    ----------
    frames : list of (float, Screen)
        When the screen changed, in seconds, and what it shows since then.
    """

    def __init__(self, directory: Path) -> None:
        self.frames: list[tuple[float, Screen]] = []
        self._screen = pyte.Screen(_COLUMNS, _ROWS)
        self._all = pyte.Screen(_COLUMNS, _ROWS_OF_TRANSCRIPT)
        self._streams = [pyte.Stream(self._screen), pyte.Stream(self._all)]
        self._text = codecs.getincrementaldecoder("utf-8")()
        self._begun = time.monotonic()
        self._terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=inside, stdout=inside, stderr=inside, cwd=directory, start_new_session=True,
            env={**os.environ, "PATH": path, "PS1": _PROMPT, "TERM": "xterm", "LANG": "C.UTF-8"},
        )  # fmt: skip
        os.close(inside)

    def transcript(self) -> str:
        """All that the terminal has shown, as text."""
        return "\n".join(line.rstrip() for line in self._all.display).rstrip()

    def run(self, command: str, kill_at: float | None = None) -> None:
        """Type a command, and wait until the shell asks for the next one.

        Parameters
        ----------
        command : str
            One line.
        kill_at : float, optional
            Kill the command when this share of its work is done.
        """
        self._read(self._asks)
        time.sleep(_PAUSE_SECONDS)
        os.write(self._terminal, f"{command}\n".encode())
        self._read(lambda: self._row().endswith(command.split()[-1]))
        if kill_at is not None:
            self._read(lambda: self._share() >= kill_at)
            children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children")
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        self._read(self._asks)

    def close(self) -> None:
        """End the shell."""
        self._shell.kill()
        self._shell.wait()
        os.close(self._terminal)

    def _row(self) -> str:
        rows = [line.rstrip() for line in self._screen.display]
        return next((row for row in reversed(rows) if row), "")

    def _asks(self) -> bool:
        cursor = self._screen.cursor
        line = self._screen.display[cursor.y].rstrip()
        return line == _PROMPT.rstrip() and cursor.x == len(_PROMPT)

    def _share(self) -> float:
        found = _DONE.search(self._row())
        return float(found[1]) / float(found[2]) if found else 0.0

    def _read(self, is_done: Callable[[], bool]) -> None:
        """Show what comes, until something is there."""
        end = time.monotonic() + _TIMEOUT_SECONDS
        while not is_done():
            if time.monotonic() > end:
                raise TimeoutError(self.transcript())
            if not select.select([self._terminal], [], [], 0.1)[0]:
                continue
            text = self._text.decode(os.read(self._terminal, 65536))
            for stream in self._streams:
                stream.feed(text)
            self._keep()

    def _keep(self) -> None:
        now, screen = time.monotonic() - self._begun, self._cells()
        if self.frames and self.frames[-1][1] == screen:
            return
        if self.frames and now - self.frames[-1][0] < _FRAME_SECONDS:
            self.frames[-1] = (self.frames[-1][0], screen)
        else:
            self.frames.append((now, screen))

    def _cells(self) -> Screen:
        rows = []
        for y in range(_ROWS):
            cells = [self._screen.buffer[y][x] for x in range(_COLUMNS)]
            colours = [cell.fg if cell.fg in _COLOURS else "" for cell in cells]
            if cells[0].data + cells[1].data == _PROMPT:
                colours[0] = "prompt"
            rows.append(tuple((cell.data, c) for cell, c in zip(cells, colours, strict=True)))
        return tuple(rows)


def record() -> Terminal:
    """Write an array, kill that, make the same call again, and verify the result.

    This happens in a directory with a short name, so that no line of the terminal is too long.
    """
    with tempfile.TemporaryDirectory(prefix="recording-") as scratch:
        return _recorded(Path(scratch))


def _recorded(directory: Path) -> Terminal:
    steps = np.random.default_rng(0).integers(-3, 4, _SHAPE, dtype="int16")
    np.save(directory / "scan.npy", np.cumsum(steps, axis=2, dtype="int16").view("uint16"))
    terminal = Terminal(directory)
    try:
        terminal.run(WRITE, kill_at=0.5)
        terminal.run(WRITE)
        terminal.run(VERIFY)
    finally:
        terminal.close()
    return terminal


def _runs(row: tuple[tuple[str, str], ...]) -> Iterator[tuple[int, str, str]]:
    """Pieces of a row in one colour: column, text and colour; without blanks at their ends."""
    column = 0
    for colour, cells in groupby(row, key=lambda cell: cell[1]):
        text = "".join(character for character, _ in cells)
        if text.strip():
            yield column + len(text) - len(text.lstrip()), text.strip(), colour
        column += len(text)


def _drawn(row: tuple[tuple[str, str], ...]) -> str:
    parts = []
    for column, text, colour in _runs(row):
        kind = f' class="{colour}"' if colour else ""
        place = f'x="{column * _CELL:g}" textLength="{len(text) * _CELL:g}"'
        parts.append(f"<text {place}{kind}>{escape(text)}</text>")
    return "".join(parts)


def draw(frames: list[tuple[float, Screen]], transcript: str) -> str:
    """Draw frames as an animated SVG; pauses are shortened.

    Parameters
    ----------
    frames : list of (float, Screen)
        What the terminal showed, and since when.
    transcript : str
        All of it as text.
    """
    begins, now = [], 0.0
    for k, (begun, _) in enumerate(frames):
        begins.append(now)
        after = frames[k + 1][0] if k + 1 < len(frames) else begun + _LAST_SECONDS
        now += after - begun if k + 1 == len(frames) else min(after - begun, _LONGEST_SECONDS)
    width, height = _COLUMNS * _CELL + 2 * _BORDER, _ROWS * _LINE + 2 * _BORDER
    names: dict[str, str] = {}
    film = []
    for k, (_, screen) in enumerate(frames):
        for y, row in enumerate(screen):
            drawn = _drawn(row)
            if drawn:
                name = names.setdefault(drawn, f"r{len(names)}")
                top = k * height + _BORDER + (y + 0.75) * _LINE
                film.append(f'<use href="#{name}" x="{_BORDER}" y="{top:g}"/>')
    steps = "".join(
        f"{100 * begun / now:.3f}%{{transform:translateY({-k * height:g}px)}}"
        for k, begun in enumerate(begins)
    )
    last = -(len(frames) - 1) * height
    light, dark = (
        "".join(f".{name}{{fill:{pair[mode]}}}" for name, pair in _COLOURS.items())
        for mode in (0, 1)
    )
    style = (
        "text{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}"
        "text{fill:#24292f;white-space:pre}.page{fill:#f6f8fa;stroke:#d0d7de}"
        f"{light}@media(prefers-color-scheme:dark){{text{{fill:#e6edf3}}"
        f".page{{fill:#0d1117;stroke:#30363d}}{dark}}}"
        # It begins with its last screen, which tells all.
        f".film{{animation:film {now:.2f}s step-end -{begins[-1]:.2f}s infinite}}"
        f"@keyframes film{{{steps}}}"
        f"@media(prefers-reduced-motion:reduce){{.film{{animation:none;transform:translateY({last:g}px)}}}}"
    )
    rows = "".join(f'<g id="{name}">{drawn}</g>' for drawn, name in names.items())
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n'
        "<title>A run is killed, and goes on by the same call</title>\n"
        f"<desc>{escape(transcript)}\n</desc>\n<style>{style}</style>\n<defs>{rows}</defs>\n"
        f'<rect class="page" x=".5" y=".5" width="{width - 1:g}" height="{height - 1:g}" rx="6"/>\n'
        f'<g class="film">{"".join(film)}</g>\n</svg>\n'
    )


def story(svg: str) -> str:
    """Words of a recording, with ``#`` for each number and without bars.

    Parameters
    ----------
    svg : str
        The picture.
    """
    text = svg.split("<desc>")[1].split("</desc>")[0]
    lines = (re.sub(r"[━╸╺]+", "-", line) for line in text.splitlines())
    plain = (re.sub(r"array .*", "array", re.sub(r"\d[\d.,:]*", "#", line)) for line in lines)
    return "\n".join(" ".join(line.split()) for line in plain)


if __name__ == "__main__":
    recorded = record()
    PICTURE.write_text(draw(recorded.frames, recorded.transcript()))
    print(recorded.transcript())
