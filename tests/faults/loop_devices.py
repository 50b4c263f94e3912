"""Loop devices of their own for the tests that mount images.

`mount -o loop` shares and reuses a device that still has the image, which may be about to let it go,
and reports every failure of it in the same words.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

_SECONDS = 30


def attach(image: Path) -> str:
    """Set a loop device up.

    Another process may take the free one first, and then the next is tried.

    Parameters
    ----------
    image : path
        A file.

    Returns
    -------
    str
        The device, for example ``"/dev/loop3"``.

    Raises
    ------
    OSError
        None could be set up in half a minute, with what `losetup` says.
    """
    deadline = time.monotonic() + _SECONDS
    while True:
        done = subprocess.run(
            ["losetup", "--find", "--show", str(image)], capture_output=True, text=True
        )
        if not done.returncode:
            return done.stdout.strip()
        if time.monotonic() > deadline or not image.exists():
            raise OSError(done.stderr.strip())
        time.sleep(0.05)


def detach(device: str, image: Path) -> None:
    """Take a loop device down, and wait until it has let its file go.

    Raises
    ------
    OSError
        It still had the file after half a minute.
    """
    subprocess.run(["losetup", "--detach", device], check=True)
    deadline = time.monotonic() + _SECONDS
    while _backing_file(device) == str(image):
        if time.monotonic() > deadline:
            raise OSError(f"{device} still has {image}")
        time.sleep(0.005)


def _backing_file(device: str) -> str:
    try:
        path = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
        return path.read_text().rstrip("\n")
    except OSError:  # nothing is attached to it
        return ""
