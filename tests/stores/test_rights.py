"""Modes, groups, owners and access control lists: what takes a file's place keeps them, and is
never wider while it is partial."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import seams

import shardwrite
from shardwrite.stores import posix
from shardwrite.stores.posix import PosixStore, write_file

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="changes owners: needs root on Linux"
)
OWNER, GROUP, OTHER_GROUP = 4321, 5432, 5433
GOOD = {"shards": 8, "chunks": 4}
ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"


@pytest.fixture(autouse=True)
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def source(n=16, value=0):
    return da.from_array(np.arange(n * 16, dtype="i4").reshape(n, 16) + value, chunks=8)


def told(path):
    """Mode, owner and group."""
    found = os.lstat(path)
    return oct(stat.S_IMODE(found.st_mode)), found.st_uid, found.st_gid


def share(path, mode=0o660):
    """Give every file of an array to a user and a group."""
    for directory, _, leaves in os.walk(path):
        os.chown(directory, OWNER, GROUP)
        os.chmod(directory, 0o2770)
        for leaf in leaves:
            os.chown(os.path.join(directory, leaf), OWNER, GROUP)
            os.chmod(os.path.join(directory, leaf), mode)


def rights_below(path):
    files = {file: told(file) for file in sorted(path.rglob("*")) if file.is_file()}
    assert files
    return files


@pytest.fixture
def shared(tmp_path):
    path = tmp_path / "x"
    (source() + 1).to_sharded_zarr(path, **GOOD)
    share(path)
    return path


def acl(*entries):
    """A list as the system keeps it; of tag, permissions and id."""
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", tag, perm, who) for tag, perm, who in entries
    )


NOBODY = 0xFFFFFFFF
LIST = acl((1, 6, NOBODY), (2, 4, 7777), (4, 6, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY))


def set_list(path, name=ACCESS, value=LIST):
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


def update(path, strategy):
    source(8, 1000).to_sharded_zarr(path, region=(slice(2, 10), slice(0, 16)), strategy=strategy)


def append(path):
    source(4).to_sharded_zarr(path, region="append", axis=0)


def stream(path):
    with shardwrite.ShardWriter(path, strategy="fixed-order") as writer:
        writer[3] = np.full(16, 7, dtype="i4")
        writer.append(np.full(16, 8, dtype="i4"))


def repair(path):
    os.truncate(path / "c/0/0", 20)
    (path.parent / "y").mkdir()
    done = shardwrite.repair(path, source() + 1)
    assert done.result is not None


def salvage(path):
    noted = (path / "c/0/0").read_bytes()
    (path / "c/0/0").write_bytes(noted + b"torn")
    assert shardwrite.repair(path, scan=True).salvaged


def compact(path):
    for value in (5, 6, 7):
        source(6, value).to_sharded_zarr(
            path, region=(slice(1, 7), slice(0, 16)), strategy=shardwrite.AppendOnly()
        )
    assert shardwrite.compact(path, above=0.1).n_rewritten


WAYS = {
    "replaced": lambda p: update(p, "fixed-order"),
    "cloned": lambda p: update(p, shardwrite.AppendOnly()),
    "in place": lambda p: update(p, shardwrite.FixedOrder(in_place=True)),
    "appended in place": lambda p: update(p, shardwrite.AppendOnly(in_place=True)),
    "grown": append,
    "streamed": stream,
    "repaired": repair,
    "salvaged": salvage,
    "compacted": compact,
}


@pytest.mark.parametrize("way", WAYS)
def test_whatever_changes_an_array_keeps_mode_owner_and_group(shared, way):
    before = rights_below(shared)
    versions = {file: (file.stat().st_ino, file.read_bytes()) for file in before}
    WAYS[way](shared)
    after = rights_below(shared)
    assert {file: after[file] for file in before} == before
    assert any(
        (file.stat().st_ino, file.read_bytes()) != version for file, version in versions.items()
    ), "nothing has changed"
    assert shardwrite.verify(shared).is_good


@pytest.mark.parametrize("durability", ["full", "batch", "none"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o664, 0o666, 0o440])
def test_any_mode_at_any_level(tmp_path, durability, mode):
    path = tmp_path / "x"
    (source() + 1).to_sharded_zarr(path, **GOOD)
    share(path, mode)
    before = rights_below(path)
    source(8).to_sharded_zarr(path, region=(slice(0, 8), slice(0, 16)), durability=durability)
    after = rights_below(path)
    assert {file: after[file] for file in before} == before


def test_consolidated_metadata_keep_theirs(tmp_path):
    import zarr

    root = tmp_path / "group"
    zarr.create_group(root)
    (source() + 1).to_sharded_zarr(root, name="a", **GOOD)
    zarr.consolidate_metadata(root)
    os.chown(root / "zarr.json", OWNER, GROUP)
    os.chmod(root / "zarr.json", 0o664)
    before = (root / "zarr.json").read_bytes()
    source(4).to_sharded_zarr(root, name="a", region="append", axis=0)
    assert (root / "zarr.json").read_bytes() != before
    assert told(root / "zarr.json") == ("0o664", OWNER, GROUP)


def test_a_temporary_is_for_its_owner_alone_until_it_is_whole(shared, monkeypatch):
    seen = []

    def look(writer, buffers):
        if "/c/" in writer.path:
            seen.append(stat.S_IMODE(os.fstat(writer._fd).st_mode))

    seams.before(monkeypatch, "write a file", look)
    update(shared, "fixed-order")
    assert set(seen) == {0o600}


def test_a_list_is_kept_and_none_is_inherited_by_what_had_none(shared):
    one, other = shared / "c/0/0", shared / "c/0/1"
    set_list(one)
    set_list(shared / "c/0", DEFAULT)
    update(shared, "fixed-order")
    assert os.getxattr(one, ACCESS) == LIST
    assert told(one) == ("0o660", OWNER, GROUP)
    assert ACCESS not in os.listxattr(other)
    assert told(other) == ("0o660", OWNER, GROUP)


def test_new_shards_take_the_umask_and_what_their_directory_hands_down(tmp_path):
    (tmp_path / "lab").mkdir()
    os.chown(tmp_path / "lab", OWNER, GROUP)
    os.chmod(tmp_path / "lab", 0o2775)
    path = tmp_path / "lab" / "x"
    os.umask(0o002)
    (source() + 1).to_sharded_zarr(path, **GOOD)
    append(path)
    files = rights_below(path)
    assert {group for _, _, group in files.values()} == {GROUP}
    assert {mode for mode, _, _ in files.values()} == {"0o664"}
    assert told(path / "c")[0] == "0o2775"


def test_a_fresh_shard_costs_no_look_at_what_is_not_there(tmp_path, monkeypatch):
    looked = []
    real = posix.rights_of
    monkeypatch.setattr(posix, "rights_of", lambda path: looked.append(str(path)) or real(path))
    (source() + 1).to_sharded_zarr(tmp_path / "x", **GOOD)
    assert not [path for path in looked if "/c/" in path]
    update(tmp_path / "x", "fixed-order")
    assert [path for path in looked if "/c/" in path]


def test_a_replaced_array_keeps_the_mode_and_group_of_its_directory(shared):
    set_list(shared, DEFAULT, acl((1, 7, NOBODY), (4, 7, NOBODY), (32, 0, NOBODY)))
    (source() + 5).to_sharded_zarr(shared, mode="w", **GOOD)
    assert told(shared) == ("0o2770", 0, GROUP)
    assert told(shared / "c")[2] == GROUP
    assert DEFAULT in os.listxattr(shared)
    assert shardwrite.verify(shared, deep=True, against=source() + 5).is_good


def test_what_lies_beside_a_private_array_is_as_private(shared, monkeypatch):
    os.chmod(shared, 0o700)
    seen = []

    def look(_):
        seen.extend(told(path) for path in shared.parent.glob("x.shardwrite"))

    seams.before(monkeypatch, "rename a file", look)
    update(shared, "fixed-order")
    os.truncate(shared / "c/0/0", 20)
    shardwrite.repair(shared, source() + 1)
    assert set(seen) == {("0o700", os.geteuid(), GROUP)}
    assert told(shared.parent / "x.quarantine") == ("0o700", os.geteuid(), GROUP)


def test_a_quarantined_copy_keeps_what_the_shard_has(shared, monkeypatch):
    real = os.link

    def link(one, two, **keywords):
        if ".quarantine" in str(two):
            raise OSError(errno.EOPNOTSUPP, "no links here")
        real(one, two, **keywords)

    monkeypatch.setattr(os, "link", link)
    os.truncate(shared / "c/0/0", 20)
    (copy,) = shardwrite.repair(shared, source() + 1).quarantined
    assert told(copy) == ("0o660", OWNER, GROUP)


# ---- users that may not give files away

AS_USER = """
    import json, os, sys
    sys.path.insert(0, sys.argv[1])
    from pathlib import Path
    from shardwrite.stores.posix import write_file
    os.umask(0o002)
    os.setgroups(json.loads(sys.argv[2]))
    os.setgid(6000)
    os.setuid(6000)
    for path in sys.argv[3:]:
        write_file(Path(path), b"new", durability="none", attempt="a.b")
"""


def rewritten(modes, groups, value=None):
    """Mode, owner and group of files of OWNER and GROUP, and their list, after a user of some
    groups has written them anew."""
    directory = Path(tempfile.mkdtemp(prefix="shardwrite-rights-"))  # where other users may go, too
    try:
        directory.chmod(0o777)
        files = [directory / oct(mode) for mode in modes]
        for file, mode in zip(files, modes, strict=True):
            file.write_bytes(b"old")
            os.chown(file, OWNER, GROUP)
            file.chmod(mode)
            if value is not None:
                set_list(file, value=value)
        package = shardwrite.__path__[0].removesuffix("/shardwrite")
        command = [
            sys.executable,
            "-c",
            textwrap.dedent(AS_USER),
            package,
            str(groups),
            *map(str, files),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert all(file.read_bytes() == b"new" for file in files)
        return [told(file) for file in files], [
            os.getxattr(f, ACCESS) if ACCESS in os.listxattr(f) else None for f in files
        ]
    finally:
        shutil.rmtree(directory)


def test_a_colleague_keeps_mode_and_group():
    modes = [0o600, 0o640, 0o660, 0o664]
    assert rewritten(modes, [GROUP])[0] == [(oct(mode), 6000, GROUP) for mode in modes]


def test_another_group_gains_nothing():
    kept = {0o600: 0o600, 0o640: 0o600, 0o660: 0o600, 0o664: 0o644, 0o666: 0o666, 0o604: 0o600}
    assert rewritten(list(kept), [OTHER_GROUP])[0] == [
        (oct(mode), 6000, 6000) for mode in kept.values()
    ]


def test_a_colleague_keeps_the_list_and_a_stranger_what_it_says_of_others():
    assert rewritten([0o660], [GROUP], LIST) == ([("0o660", 6000, GROUP)], [LIST])
    stays = acl((1, 6, NOBODY), (2, 4, 7777), (4, 0, NOBODY), (16, 6, NOBODY), (32, 0, NOBODY))
    assert rewritten([0o660], [], LIST) == (
        [("0o660", 6000, 6000)],
        [stays],
    )  # whose group's bits are the mask


def test_a_link_in_the_place_lends_its_rights_to_nothing(tmp_path):
    (tmp_path / "secret").write_bytes(b"secret")
    os.chmod(tmp_path / "secret", 0o666)
    (tmp_path / "file").symlink_to(tmp_path / "secret")
    write_file(tmp_path / "file", b"new", durability="none", attempt="a.b")
    assert told(tmp_path / "file")[0] == "0o644"
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_what_vanishes_meanwhile_has_lent_its_rights(tmp_path):
    write_file(tmp_path / "x", b"old", durability="none", attempt="a.a")
    os.chmod(tmp_path / "x", 0o640)
    with PosixStore(tmp_path).transaction("none", "a.b") as transaction:
        writer = transaction.create("x")
        writer.write([b"new"])
        (tmp_path / "x").unlink()
        writer.finish()
    assert told(tmp_path / "x")[0] == "0o640"
