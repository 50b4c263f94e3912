"""Groups with consolidated metadata that several writers change: a call that has returned is listed,
whatever path it was given, the same call mends a list, and `verify` compares list and tree."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import textwrap
import threading
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from forks import python
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.memory import MemoryFileSystem

import shardwrite
from shardwrite.cli import main
from shardwrite.stores.looking import version_of

pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata")
X = np.arange(64, dtype="u4").reshape(8, 8) + 1
GOOD = {"shards": 8, "chunks": 4, "durability": "none"}


def write(path, values=X, **keywords):
    how = {} if "region" in keywords else GOOD
    return da.from_array(values, chunks=5).to_sharded_zarr(
        path, **{"source_id": "x", **how, **keywords}
    )


@pytest.fixture
def group(tmp_path):
    zarr.create_group(tmp_path / "g")
    zarr.consolidate_metadata(tmp_path / "g")
    return tmp_path / "g"


def listed(group):
    document = json.loads((group / "zarr.json").read_text())
    return document["consolidated_metadata"]["metadata"]


OPERATIONS = {
    "write": lambda group: write(group / "b"),
    "name": lambda group: write(group, name="b"),
    "replace": lambda group: write(group / "old", X + 1, mode="w", source_id="new"),
    "append": lambda group: write(group / "old", region="append", source_id="new"),
    "shard": lambda group: shardwrite.shard(group / "flat", group / "b", shards=8),
    "in place": lambda group: shardwrite.shard(group / "flat", shards=8),
    "download": lambda group: shardwrite.download(group.parent / "other", group / "b"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OPERATIONS)
def test_no_change_of_a_list_is_lost(tmp_path, group, monkeypatch, name):
    """Another writer enters its array right before a list is replaced that was made without it."""
    write(group / "old")
    write(group / "flat", shards=None, chunks=4)
    write(tmp_path / "other")
    rename, others = os.rename, []

    def late(source, to, **keywords):
        if str(to) == str(group / "zarr.json") and not others:
            others.append(threading.Thread(target=write, args=(group / "quick",)))
            others[0].start()
            others[0].join(0.7)  # it has to wait
        rename(source, to, **keywords)

    monkeypatch.setattr(os, "rename", late)
    OPERATIONS[name](group)
    others[0].join()
    assert set(listed(group)) == {path.parent.name for path in group.glob("*/zarr.json")}
    assert not list(group.glob(".*")), "nothing is left"
    assert not list(group.glob("*.shardwrite"))
    assert shardwrite.verify(group).is_good


def test_the_same_call_mends_a_list(group):
    write(group / "a")
    before = version_of(group / "a/c/0/0")
    document = json.loads((group / "zarr.json").read_text())
    document["consolidated_metadata"]["metadata"] = {}
    (group / "zarr.json").write_text(json.dumps(document))
    (warning,) = shardwrite.verify(group / "a").warnings
    assert "does not list the array" in warning
    report = shardwrite.verify(group)
    assert not report.is_good
    assert [(problem.key, "does not list" in problem.message) for problem in report.problems] == [
        ("a", True)
    ]
    write(group / "a")
    assert version_of(group / "a/c/0/0") == before, "nothing is written again"
    assert list(listed(group)) == ["a"]
    assert shardwrite.verify(group).is_good
    assert not shardwrite.verify(group / "a").warnings


def test_verify_of_a_group(group):
    for name in ("a", "b", "c", "deep/d"):
        write(group, name=name)
    zarr.consolidate_metadata(group)
    zarr.consolidate_metadata(group, path="deep")
    report = shardwrite.verify(group)
    assert report.is_good
    assert report.n_nodes == 5
    result = CliRunner().invoke(main, ["verify", str(group)])
    assert result.exit_code == 0, result.output
    assert "5 arrays and groups" in result.output

    os.rename(group / "a", group.parent / "gone")  # and as other programs do it
    zarr.open_array(group / "b").attrs["who"] = "somebody"
    zarr.open_group(group / "deep", use_consolidated=False).create_array("e", data=X)
    told = {problem.key: problem.message for problem in shardwrite.verify(group).problems}
    assert "no node stands there" in told["a"]
    assert "another document" in told["b"]
    assert "does not list it" in told["deep/e"]
    assert set(told) == {"a", "b", "deep/e"}
    result = CliRunner().invoke(main, ["verify", str(group)])
    assert result.exit_code == 1
    assert "deep/e" in result.output
    with pytest.raises(shardwrite.SpecError, match="is for arrays"):
        shardwrite.verify(group, deep=True)
    zarr.consolidate_metadata(group)
    zarr.consolidate_metadata(group, path="deep")
    assert shardwrite.verify(group).is_good


@pytest.mark.parametrize(
    "document", ["{", '{"zarr_format": 3, "node_type": "group", "consolidated_metadata": 1}']
)
def test_a_bad_document_above_is_no_fault_of_the_array(group, document):
    write(group / "b")
    (group / "zarr.json").write_text(document)
    report = shardwrite.verify(group / "b", deep=True)
    assert report.is_good
    assert "groups above" in report.warnings[0]
    assert "zarr.json" in report.warnings[0]


def test_verify_of_a_group_without_a_list(tmp_path):
    write(tmp_path / "g", name="a")
    report = shardwrite.verify(tmp_path / "g")
    assert report.is_good
    assert "lists no nodes" in str(report)
    assert "not checked  the shards of its arrays" in str(report)


@pytest.mark.parametrize("kind", ["obstore", "fsspec", "part of a store"])
def test_an_array_that_is_a_store_of_its_own_is_listed(tmp_path, kind):
    fsspec = pytest.importorskip("fsspec")
    root = zarr.storage.FsspecStore.from_url(f"memory://{tmp_path.name}{kind[:3]}/g")
    if kind == "obstore":
        store = pytest.importorskip("obstore.store").MemoryStore()
        root = zarr.storage.ObjectStore(store)
    group = zarr.create_group(root)
    zarr.consolidate_metadata(root)
    if kind == "obstore":
        write(store, name="a")
    elif kind == "fsspec":
        write(f"memory://{tmp_path.name}{kind[:3]}/g/a")
    else:
        write(group, name="a")
    assert fsspec
    found = zarr.open_consolidated(root, mode="r")
    np.testing.assert_array_equal(found["a"][...], X)


class Web(MemoryFileSystem):
    """Paths in it are URLs, as in those of fsspec for HTTP."""

    store: dict = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return path

    def cat_file(self, path, start=None, end=None, **_):
        if path not in self.store:
            raise FileNotFoundError(path)
        return self.store[path][start:end]

    def info(self, path, **_):
        return {"name": path, "size": len(self.cat_file(path)), "type": "file"}


@pytest.mark.parametrize("is_listed", [True, False])
def test_groups_above_an_array_on_the_web(group, monkeypatch, is_listed):
    write(group / "b")
    files = {f"https://host/{p.relative_to(group.parent)}": p for p in group.rglob("*")}
    monkeypatch.setattr(Web, "store", {u: p.read_bytes() for u, p in files.items() if p.is_file()})
    if not is_listed:
        document = json.loads(Web.store["https://host/g/zarr.json"])
        document["consolidated_metadata"]["metadata"] = {}
        Web.store["https://host/g/zarr.json"] = json.dumps(document).encode()
    fs = AsyncFileSystemWrapper(Web(), asynchronous=True)
    store = zarr.storage.FsspecStore(fs, path="https://host/g/b", read_only=True)
    report = shardwrite.verify(store)
    assert report.is_good
    assert ["does not list the array" in told for told in report.warnings] == [True] * (
        not is_listed
    )


def test_a_conversion_keeps_what_others_have_entered(tmp_path):
    """Two calls convert other parts of one hierarchy, the second one after the first."""
    src, dst = tmp_path / "src", tmp_path / "dst"
    group = zarr.create_group(src)
    for name in ("a", "b"):
        group.create_array(name, data=X, chunks=(4, 4))
    zarr.consolidate_metadata(src)
    shardwrite.shard(src, dst, shards=8, include="a")
    shardwrite.shard(src, dst, shards=8, include="b")
    write(dst / "c")
    zarr.open_group(src).attrs["new"] = 1
    shardwrite.shard(src, dst, shards=8, include="b", mode="w")
    assert list(listed(dst)) == ["a", "b", "c"]
    assert json.loads((dst / "zarr.json").read_text())["attributes"] == {"new": 1}
    assert shardwrite.verify(dst).is_good


SECOND_USER = """
    import os, sys
    from pathlib import Path
    import numpy as np, dask.array as da, shardwrite
    x = da.from_array(np.ones((8, 8), "u4"), chunks=4)

    def attempt(what, group):
        try:
            if what == "shard":
                shardwrite.shard(group / "mine/flat", shards=8)
            elif what == "append":
                x.to_sharded_zarr(group / "mine/old", region="append", source_id="b")
            else:
                name, mode = ("new", "w-") if what == "new" else ("old", "w")
                x.to_sharded_zarr(group / "mine" / name, shards=8, chunks=4, mode=mode)
            return "done"
        except shardwrite.ShardwriteError as error:
            return f"{type(error).__name__}: {error}"

    paths = [Path(path) for path in sys.argv[1:]]
    refuse, allow = paths[1:3], paths[3:]
    for what in ("new", "replace", "append", "shard"):
        assert attempt(what, paths[0]) == "done"  # which also imports everything
    os.setgroups([])
    os.setgid(4321), os.setuid(4321)
    for path in refuse:
        for what in ("new", "replace", "append", "shard"):
            print(what, attempt(what, path))
    for path in allow:
        told = attempt("new", path)
        assert told == "done", told
"""


@pytest.fixture
def public():
    """A directory that other users may enter, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="shardwrite-groups-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes users: needs root")
@pytest.mark.long
def test_a_list_of_another_user_is_refused_before_the_first_byte(public):
    """The directory below is the second user's own, and the group is not."""
    groups = [public / name for name in ("root", "closed", "sticky", "open", "no list")]
    for group in groups:
        mine = zarr.create_group(group).create_group("mine").store_path.store.root / "mine"
        write(mine / "old")
        write(mine / "flat", shards=None, chunks=4)
        if group.name != "no list":
            zarr.consolidate_metadata(group)
        for directory, _, leaves in os.walk(mine):
            for path in [directory, *(os.path.join(directory, leaf) for leaf in leaves)]:
                os.chown(path, 4321, 4321)
    groups[2].chmod(0o1777)
    groups[3].chmod(0o777)
    before = {path: path.stat().st_mtime_ns for group in groups[1:3] for path in group.rglob("*")}
    told = subprocess.run(
        [*python(), "-c", textwrap.dedent(SECOND_USER), *map(str, groups)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    lines = told.stdout.splitlines()
    assert len(lines) == 8
    assert [line for line in lines if "you may not change it" not in line] == []
    assert {line.split()[1] for line in lines} == {"SpecError:"}
    after = {path: path.stat().st_mtime_ns for group in groups[1:3] for path in group.rglob("*")}
    assert after == before
    assert "mine/new" in listed(groups[3])


SHARED = """
    import os, signal, sys
    from pathlib import Path
    import dask.array as da, shardwrite
    warm, group, user = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    x, rename = da.ones((8, 8), chunks=4, dtype="u4"), os.rename
    x.to_sharded_zarr(warm / str(user), shards=8, chunks=4)  # which imports everything

    def killed(source, to, **keywords):
        if str(to) == f"{group}/zarr.json" and user == 4321:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, to, **keywords)

    os.umask(0o022)
    os.setgroups([])
    os.setgid(4321), os.setuid(user)
    os.rename = killed
    x.to_sharded_zarr(group / str(user), shards=8, chunks=4)
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="changes users: needs root")
def test_a_killed_user_is_in_the_way_of_no_other_user_of_the_group(public):
    for name in ("warm", "g"):
        zarr.create_group(public / name)
        zarr.consolidate_metadata(public / name)
    os.chown(public / "g", 0, 4321)
    (public / "g").chmod(0o2775)
    for user in (4321, 4322):
        words = [*python(), "-c", textwrap.dedent(SHARED), public / "warm", public / "g", str(user)]
        told = subprocess.run(words, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert list(listed(public / "g")) == ["4322"]
    assert not (public / "g/zarr.json.shardwrite").exists()
    assert not list((public / "g").glob(".*"))


KILLED = """
    import os, signal, sys
    import dask.array as da, shardwrite
    group, when = sys.argv[1:]
    rename = os.rename

    def late(source, to, **keywords):
        if str(to) == group + "/zarr.json":
            if when == "after":
                rename(source, to, **keywords)
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, to, **keywords)

    os.rename = late
    da.ones((8, 8), dtype="u4", chunks=4).to_sharded_zarr(
        group + "/a", shards=8, chunks=4, durability="none", source_id="x")
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("then", ["again", "another"])
def test_a_process_that_is_killed_at_the_list_leaves_nothing(group, when, then):
    program = textwrap.dedent(KILLED)
    killed = subprocess.run([*python(), "-c", program, str(group), when], check=False)
    assert killed.returncode != 0
    assert list(group.glob("zarr.json.shardwrite")), "else it was not killed there"
    if then == "another":
        write(group / "b")
    da.ones((8, 8), dtype="u4", chunks=4).to_sharded_zarr(group / "a", **GOOD, source_id="x")
    assert "a" in listed(group)
    assert shardwrite.verify(group).is_good
    names = {path.name for path in group.iterdir()}
    assert names == {"zarr.json", "a"} | ({"b"} if then == "another" else set())


NOTED = """
    import os, signal, sys
    import shardwrite
    group, rename = sys.argv[1], os.rename

    def noted(source, to, **keywords):
        if str(to) == group + "/zarr.json" and "listing" in str(source):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, to, **keywords)

    os.rename = noted
    shardwrite.reshard(group + "/a", 4)
"""


@pytest.mark.parametrize("name", ["a", "."])
def test_abandon_removes_what_a_process_left_that_was_killed_at_the_list(group, name):
    """The conversion was over by then, so nothing but that is left of it."""
    write(group / "a")
    program = textwrap.dedent(NOTED)
    killed = subprocess.run([*python(), "-c", program, str(group)], check=False)
    assert killed.returncode != 0
    assert list(group.glob("zarr.json.shardwrite")), "else it was not killed there"
    assert shardwrite.abandon(group / name) == []
    assert {path.name for path in group.iterdir()} == {"zarr.json", "a"}
