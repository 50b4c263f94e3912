"""Reading and writing all bytes, however few of them a system call takes."""

from __future__ import annotations

import errno
import os

import pytest

from shardwrite.stores.looking import pread_all, pwrite_all, write_all


@pytest.fixture
def few_at_a_time(monkeypatch):
    """System calls that take three bytes at most."""
    write, pwrite, pread = os.write, os.pwrite, os.pread
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:3]))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 3), at))


@pytest.mark.usefixtures("few_at_a_time")
def test_short_calls_go_on_where_they_stopped(tmp_path):
    with open(tmp_path / "x", "w+b") as file:
        write_all(file.fileno(), b"0123456789")
        pwrite_all(file.fileno(), b"abcdefgh", 4)
        assert pread_all(file.fileno(), 0, 12) == b"0123abcdefgh"
        assert pread_all(file.fileno(), 5, 4) == b"bcde"
        assert pread_all(file.fileno(), 5, 0) == b""


@pytest.mark.usefixtures("few_at_a_time")
def test_a_file_that_ends_too_early(tmp_path):
    with open(tmp_path / "x", "w+b") as file:
        write_all(file.fileno(), b"0123456789")
        with pytest.raises(OSError, match="it ends at byte 10") as caught:
            pread_all(file.fileno(), 4, 7)
    assert caught.value.errno == errno.EIO
