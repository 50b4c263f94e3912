"""Run state of other users: planted beside an array, shared by colleagues, or unreadable; and
commands that only look."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from tiers import some

import shardwrite

sys.path.insert(0, str(Path(__file__).parent))
import oracle
import seams
import users
from users import KILLED, REGION, SHAPE, STRATEGIES, User

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
LAB = 61000
ALICE, BOB, EVE = User(61001, 61001), User(61002, 61002), User(61003, 61003)
NOBODY = User(65534, 65534)
NAME = "scan.zarr"
WANTED = oracle.values(SHAPE)
UPDATED = WANTED.copy()
UPDATED[REGION] = oracle.values(SHAPE, 1)[REGION]


def member(user):
    """The same user as a colleague in the lab's group."""
    return User(user.uid, user.gid, (LAB,), 0o002)


@pytest.fixture(scope="module")
def machine():
    """Where users act."""
    with users.Machine() as found:
        yield found


@pytest.fixture
def place():
    """A directory that every user can reach."""
    path = Path(tempfile.mkdtemp(prefix="shardwrite-users-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def directory(path, mode, uid=0, gid=0):
    path.mkdir()
    os.chown(path, uid, gid)
    path.chmod(mode)
    return path


def give(path, user, mode=0o777):
    """Make a tree a user's, as if the user had made it."""
    for found in (path, *path.rglob("*")):
        os.chown(found, user.uid, user.gid, follow_symlinks=False)
        if not found.is_symlink():
            found.chmod(mode if found.is_dir() else mode & 0o666)


def whole(machine, path, user=ALICE):
    """An array that is finished, in a directory that is there."""
    assert "value" in machine.do(user, "write", path)


def held_by(path):
    """Every file of a tree with its content, owner and times, and every directory with its times."""
    found = {}
    for entry in (path, *sorted(path.rglob("*"))):
        facts = entry.lstat()
        is_file = entry.is_file() and not entry.is_symlink()
        content = entry.read_bytes() if is_file else None
        found[str(entry.relative_to(path))] = (
            facts.st_ino,
            facts.st_mode,
            facts.st_mtime_ns,
            content,
        )
    return found


def beside(path):
    return seams.state_beside(path)


def plan_of(path, run, **more):
    facts = {
        "array": path.name,
        "document_crc32c": crc32c((path / "zarr.json").read_bytes()),
        "run": run,
        "digest": "0" * 64,
        "replaces": False,
        "mode": "w-",
        "durability": "full",
        "identity": {},
        "layout": "fused",
    }
    return json.dumps(seams.seal({**facts, **more}))


def plant_taken(path, place):
    """A run that claims the array as its own, and to be taken away."""
    beside(path).mkdir()
    (beside(path) / "plan.json").write_text(plan_of(path, "abc"))
    (beside(path) / "taken-abc").mkdir()
    shutil.copy(path / "zarr.json", beside(path) / "taken-abc")


def plant_link(path, place):
    """The same behind a symbolic link."""
    elsewhere = directory(place / "elsewhere", 0o777)
    (elsewhere / "plan.json").write_text(plan_of(path, "abc"))
    (elsewhere / "taken-abc").mkdir()
    shutil.copy(path / "zarr.json", elsewhere / "taken-abc")
    give(elsewhere, EVE)
    beside(path).symlink_to(elsewhere)


def plant_update(path, place):
    """An update that was taken away, whose record of a change puts other bytes into ``zarr.json``."""
    run = beside(path) / "updates" / "abc" / "taken-abc"
    run.mkdir(parents=True)
    identity = {"region": [[0, 8], [0, 8]], "mode": "r+"}
    facts = plan_of(path, "abc", mode="r+", identity=identity, shards_from=[[0, 0], [1, 1]])
    (run.parent / "plan.json").write_text(facts)
    (run / "zarr.json").write_bytes((path / "zarr.json").read_bytes())
    data = b"planted"
    (run / "claim-zarr.json").mkdir()
    (run / "claim-zarr.json" / "undo-1").write_bytes(
        seams.undo_record("zarr.json", 4000, [(0, data)])
    )


def plant_undo(path, place):
    """The same of an update that only has died: whoever gives it up follows the record."""
    plant_update(path, place)
    run = beside(path) / "updates" / "abc"
    (run / "taken-abc").rename(run / "run-abc")


PLANTED = {
    "taken": plant_taken,
    "link": plant_link,
    "taken update": plant_update,
    "undo record": plant_undo,
}
LOOKS = {
    "verify": ("command", "verify", "PATH"),
    "info": ("command", "info", "PATH"),
    "census": ("command", "census", "PATH"),
    "repair": ("command", "repair", "PATH"),
    "status": ("command", "slurm", "status", "PATH"),
    "from_sharded_zarr": ("read", "PATH"),
}
WRITERS = {
    "the same call": ("write", {}),
    "another call": ("write", {"version": 2}),
    "replace": ("write", {"version": 2, "mode": "w"}),
    "start over": ("write", {"version": 2, "restart": True}),
    "update": ("update", {}),
    "update by restart": ("update", {"restart": True}),
    "erase": ("erase", {}),
    "compact": ("compact", {}),
    "abandon": ("abandon", {}),
    "repair": ("repair", {"version": 0}),
    "stream": ("stream", {}),
    "finalize": ("finalize", {}),
    "prepare": ("prepare", {"version": 2}),
}


@pytest.mark.parametrize("planted", some(PLANTED))
def test_state_planted_in_a_sticky_directory_is_reported_and_never_followed(
    machine, place, planted
):
    path = directory(place / "scratch", 0o1777) / NAME
    whole(machine, path)
    PLANTED[planted](path, place)
    if not beside(path).is_symlink():
        give(beside(path), EVE)
    os.chown(beside(path), EVE.uid, EVE.gid, follow_symlinks=False)
    before = held_by(path)
    for name, (action, *words) in LOOKS.items():
        told = machine.do(ALICE, action, *(path if word == "PATH" else word for word in words))
        assert held_by(path) == before, f"{name} has changed the array"
        if action == "command":
            assert told["value"]["code"] == 0, (name, told)
            said = " ".join(told["value"]["text"].split())
            assert f"uid {EVE.uid}" in said, (name, said)
            assert "is not followed" in said, (name, said)
        else:
            assert told == {"value": int(WANTED.sum(dtype=np.uint64))}
    for name, (action, keywords) in WRITERS.items():
        told = machine.do(ALICE, action, path, **keywords)
        assert held_by(path) == before, f"{name} has changed the array"
        assert told.get("error") in (
            "UntrustedStateError",
            "SpecError" if planted == "link" else "",
        ), (name, told)
        assert f"owner is uid {EVE.uid}" in told["message"], (name, told)
        assert str(beside(path)) in told["message"], (name, told)
    beside(path).rename(place / "aside")  # what the message says
    assert "value" in machine.do(ALICE, "update", path)
    oracle.check_whole(path, UPDATED)


@pytest.mark.long
def test_a_planted_lease_or_journal_is_noticed_in_a_run_of_ones_own(machine, place):
    path = directory(place / "scratch", 0o1777) / NAME
    careless = User(ALICE.uid, ALICE.gid, umask=0)
    assert machine.do(careless, "write", path, at=9) == {"died": KILLED}
    (run,) = beside(path).glob("run-*")
    for name in (
        "lease-somebody.json",
        "journal-x-y-1-z.jsonl",
        "claim-zarr.json",
        "jobs-7.json",
    ):
        planted = run / name
        planted.write_text(json.dumps({"host": "elsewhere", "pid": 1}))
        give(planted, EVE)
        told = machine.do(careless, "write", path)
        assert (told["error"], told["owner"]) == ("UntrustedStateError", f"uid {EVE.uid}"), (
            name,
            told,
        )
        assert str(planted) in told["message"]
        planted.unlink()
    fifo = run / "lease-fifo.json"
    os.mkfifo(fifo)
    os.chown(fifo, ALICE.uid, ALICE.gid)
    assert (
        "neither a plain directory nor a plain file"
        in machine.do(careless, "write", path)["message"]
    )
    fifo.unlink()
    assert "value" in machine.do(careless, "write", path)
    oracle.check_whole(path, WANTED)


@pytest.mark.long
def test_a_plan_that_was_moved_from_another_array_is_noticed(machine, place):
    folder = directory(place / "own", 0o755, ALICE.uid, ALICE.gid)
    path, other = folder / NAME, folder / "other.zarr"
    whole(machine, path)
    assert machine.do(ALICE, "write", other, version=3, at=9) == {"died": KILLED}
    (run,) = beside(other).glob("run-*")
    run.rename(run.with_name(run.name.replace("run-", "taken-")))
    beside(other).rename(beside(path))
    before = held_by(path)
    told = machine.do(ALICE, "command", "info", str(path))
    assert "'other.zarr'" in told["value"]["text"], told
    for action in ("write", "update", "abandon"):
        told = machine.do(ALICE, action, path)
        assert told.get("error") in ("UntrustedStateError", None), told
        if action != "abandon":  # that is about updates
            assert "'other.zarr'" in told["message"]
    assert held_by(path) == before


@pytest.mark.long
def test_plans_of_the_first_version_name_no_array_and_are_left_to_it(machine, place):
    path = directory(place / "own", 0o755, ALICE.uid, ALICE.gid) / NAME
    assert machine.do(ALICE, "write", path, at=9) == {"died": KILLED}
    plan = beside(path) / "plan.json"
    facts = json.loads(plan.read_text())
    for name in ("array", "crc32c"):
        facts.pop(name, None)
    plan.write_text(json.dumps(facts))
    assert "an earlier version of shardwrite" in machine.do(ALICE, "write", path)["message"]


COLLEAGUES = {
    "write": (("write", {"at": 9}), ("write", {}), WANTED),
    "start over": (("write", {"at": 9, "version": 4}), ("write", {"restart": True}), WANTED),
    **{
        f"update, {strategy}": (
            ("update", {"sync": 4, "strategy": strategy}),
            ("update", {"strategy": strategy}),
            UPDATED,
        )
        for strategy in STRATEGIES
    },
    "take over an update": (
        ("update", {"at": 5, "version": 6}),
        ("update", {"restart": True}),
        UPDATED,
    ),
    "stream": (("stream", {"at": 1}), ("update", {}), UPDATED),
}


@pytest.mark.parametrize("case", some(COLLEAGUES))
def test_colleagues_resume_each_others_runs(machine, place, case):
    path = directory(place / "lab", 0o2775, 0, LAB) / NAME
    (first, keywords), (second, more), wanted = COLLEAGUES[case]
    if first != "write":
        whole(machine, path, member(ALICE))
    assert machine.do(member(ALICE), first, path, **keywords) == {"died": KILLED}
    told = machine.do(member(BOB), "verify", path)
    assert told["value"]["warnings"] == [], told
    told = machine.do(member(BOB), second, path, **more)
    assert "value" in told, told
    oracle.check_whole(path, wanted)


@pytest.mark.long
def test_a_colleague_abandons_and_repairs(machine, place):
    path = directory(place / "lab", 0o2775, 0, LAB) / NAME
    whole(machine, path, member(ALICE))
    for strategy in STRATEGIES:
        assert machine.do(member(ALICE), "update", path, strategy=strategy, sync=4) == {
            "died": KILLED
        }
        told = machine.do(member(BOB), "abandon", path)
        assert told == {"value": [[[0, 16], [0, 32]]]}, (strategy, told)
        oracle.check_tidy(path)
        found = np.asarray(shardwrite.open_sharded(path)[:, :])
        assert ((found == WANTED) | (found == UPDATED)).all()
        assert "value" in machine.do(member(ALICE), "write", path, mode="w", restart=True)
    (path / "c/1/1").write_bytes(b"torn")
    told = machine.do(member(BOB), "repair", path)
    assert [task["key"] for task in told["value"]] == ["c/1/1"], told
    oracle.check_whole(path, WANTED)


@pytest.mark.long
@pytest.mark.parametrize("mode", [0o2755, 0o3775])
def test_members_of_a_group_that_cannot_replace_the_array_are_not_trusted(machine, place, mode):
    path = directory(place / "lab", mode, ALICE.uid, LAB) / NAME
    whole(machine, path, member(BOB) if mode == 0o3775 else ALICE)
    plant_taken(path, place)
    give(beside(path), User(EVE.uid, LAB))
    before = held_by(path)
    victim = member(BOB)
    assert f"uid {EVE.uid}" in machine.do(victim, "command", "info", str(path))["value"]["text"]
    assert machine.do(victim, "write", path, version=2, mode="w")["owner"] == f"uid {EVE.uid}"
    assert held_by(path) == before


def set_acl(path, *entries):
    """Give a directory an access control list, as the kernel keeps it."""
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    try:
        for kind in ("access", "default"):
            os.setxattr(path, f"system.posix_acl_{kind}", packed)
    except OSError as error:
        pytest.skip(f"this file system keeps no access control lists: {error}")


@pytest.mark.long
def test_colleagues_of_an_access_control_list(machine, place):
    path = directory(place / "shared", 0o755) / NAME
    nobody = 2**32 - 1
    owner, group, mask, other = (
        (0x01, 7, nobody),
        (0x04, 5, nobody),
        (0x10, 7, nobody),
        (0x20, 5, nobody),
    )
    set_acl(path.parent, owner, (0x02, 7, ALICE.uid), (0x02, 7, BOB.uid), group, mask, other)
    assert machine.do(ALICE, "write", path, at=9) == {"died": KILLED}
    told = machine.do(BOB, "write", path)
    assert "value" in told, told
    assert machine.do(BOB, "update", path, at=3) == {"died": KILLED}
    assert machine.do(ALICE, "abandon", path) == {"value": [[[0, 16], [0, 32]]]}
    assert "value" in machine.do(ALICE, "update", path)
    oracle.check_whole(path, UPDATED)
    plant_taken(path, place)
    give(beside(path), EVE)
    before = held_by(path)
    assert machine.do(BOB, "update", path, version=2)["owner"] == f"uid {EVE.uid}"
    set_acl(path.parent, owner, (0x02, 5, EVE.uid), group, mask, other)  # may look, and not write
    assert machine.do(BOB, "verify", path)["value"]["warnings"]
    set_acl(path.parent, owner, (0x02, 7, EVE.uid), group, (0x10, 5, nobody), other)  # masked
    assert machine.do(BOB, "verify", path)["value"]["warnings"]
    assert held_by(path) == before


def states(machine, path):
    """Interrupted runs of root beside an array, each with what has to be done first, and its name."""
    assert machine.do(User(0, 0), "write", path, at=9, publish="first") == {"died": KILLED}
    yield "begun"
    (run,) = beside(path).glob("run-*")
    taken = run.rename(run.with_name(run.name.replace("run-", "taken-")))
    yield "taken"
    taken.rename(run)
    assert "value" in machine.do(User(0, 0), "write", path, publish="first")
    assert machine.do(User(0, 0), "update", path, at=5) == {"died": KILLED}
    yield "update begun"
    (run,) = beside(path).glob("updates/*/run-*")
    taken = run.rename(run.with_name(run.name.replace("run-", "taken-")))
    yield "update taken"
    taken.rename(run.with_name(run.name.replace("run-", "ended-")))
    yield "update ended"


@pytest.mark.long
@pytest.mark.parametrize("reader", some([User(0, 0), NOBODY], NOBODY), ids=["owner", "nobody"])
def test_commands_that_look_change_nothing(machine, place, reader):
    path = directory(place / "data", 0o755) / NAME
    for state in states(machine, path):
        (path / ".1.someone.else.swtmp").write_bytes(b"half")
        before = held_by(path.parent)
        for name, (action, *words) in LOOKS.items():
            told = machine.do(reader, action, *(path if word == "PATH" else word for word in words))
            assert held_by(path.parent) == before, f"{name} writes beside a run that is {state}"
            assert "value" in told, (state, name, told)
            if action == "command":
                assert told["value"]["code"] in (0, 85), (state, name, told)
                is_interrupted = any(word in state for word in ("taken", "ended"))
                assert not is_interrupted or "run" in told["value"]["text"], (state, name)
        (path / ".1.someone.else.swtmp").unlink()
    told = machine.do(User(0, 0), "update", path)
    assert "value" in told, told
    oracle.check_whole(path, UPDATED)


@pytest.mark.long
def test_state_that_may_not_be_read_is_reported(machine, place):
    path = directory(place / "data", 0o755) / NAME
    whole(machine, path, User(0, 0))
    assert machine.do(User(0, 0, umask=0o077), "update", path, at=5) == {"died": KILLED}
    told = machine.do(NOBODY, "command", "info", str(path))
    assert told["value"]["code"] == 0, told
    assert "cannot be read by this user; its owner is root" in " ".join(
        told["value"]["text"].split()
    )
    told = machine.do(NOBODY, "update", path)
    assert (told["error"], told["owner"]) == ("UntrustedStateError", "root"), told


def test_an_interrupted_removal_is_told_as_what_it_is(tmp_path):
    path = tmp_path / NAME
    oracle.source(SHAPE, (8, 8)).to_sharded_zarr(path, **users.LAYOUT)
    plant_taken(path, tmp_path)
    report = shardwrite.verify(path)
    assert "was given up, and its removal was interrupted" in report.warnings[0]
    assert "takes its shards away" in str(report)
    assert shardwrite.census(path).warnings == report.warnings
    assert shardwrite.repair(path).is_look
    np.testing.assert_array_equal(np.asarray(shardwrite.open_sharded(path)[:, :]), WANTED)
    oracle.source(SHAPE, (8, 8), 1).to_sharded_zarr(
        path, **users.LAYOUT
    )  # the next writer finishes the removal
    oracle.check_whole(path, oracle.values(SHAPE, 1))


@pytest.mark.long
@pytest.mark.parametrize(
    "planted",
    [
        "link",
        *(pytest.param(p, marks=pytest.mark.long) for p in ("directory", "link of this user")),
    ],
)
def test_a_planted_quarantine_is_not_followed(machine, place, planted):
    """Copies of a private array's shards must not go where another user has pointed."""
    path = directory(place / "scratch", 0o1777) / NAME
    whole(machine, path)
    shard = next(p for p in (path / "c").rglob("*") if p.is_file())
    shard.write_bytes(b"torn")
    quarantine = path.with_name(f"{NAME}.quarantine")
    trap = directory(place / "trap", 0o777, EVE.uid, EVE.gid)
    if planted == "directory":
        directory(quarantine, 0o777, EVE.uid, EVE.gid)
    else:
        owner = ALICE if "this user" in planted else EVE
        quarantine.symlink_to(trap)
        os.chown(quarantine, owner.uid, owner.gid, follow_symlinks=False)
    told = machine.do(ALICE, "repair", path)
    assert told.get("error") == "UntrustedStateError", told
    assert str(quarantine) in told["message"]
    assert "rename it, which deletes nothing" in told["message"]
    assert shard.read_bytes() == b"torn"
    assert not list(trap.iterdir())
    assert not list(quarantine.iterdir())
    quarantine.rename(place / "aside")  # what the message says
    assert "value" in machine.do(ALICE, "repair", path)
    oracle.check_whole(path, WANTED)
    assert quarantine.is_dir()
