"""Directories that are made while other processes make and remove them, too."""

from __future__ import annotations

import os

import pytest

from shardwrite.stores.directories import make_directories


def test_a_directory_that_is_removed_as_soon_as_it_was_found(tmp_path, monkeypatch):
    """Another process has made it just before, and removes it because it is empty."""
    mkdir, met = os.mkdir, []

    def late(path, *mode, **more):
        if os.fspath(path).endswith("updates") and not met:
            met.append(path)
            raise FileExistsError(17, "File exists", os.fspath(path))
        mkdir(path, *mode, **more)

    monkeypatch.setattr(os, "mkdir", late)
    make_directories(tmp_path / "x.shardwrite" / "updates" / "draft", "full")
    assert met
    assert (tmp_path / "x.shardwrite" / "updates" / "draft").is_dir()


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
def test_what_is_no_directory_is_an_error(tmp_path, kind):
    path = tmp_path / "there"
    path.write_text("a file") if kind == "file" else path.symlink_to(tmp_path / "nothing")
    with pytest.raises((FileExistsError, NotADirectoryError)):
        make_directories(path / "below", "full")
