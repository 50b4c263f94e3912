"""How the rounds of a crash test are drawn: operations, options, faults, and what follows."""

from __future__ import annotations

import errno
import random
from typing import Any

import operations
from operations import Operation
from rounds import NEW, SLOW_TTL, Campaign

COMMON = ("open", "write", "fsync", "rename", "unlink")
CALLS = (*COMMON, *COMMON, "rename", "fsync-directory", "close", "link", "mkdir", "rmdir", "stat", "opendir", "read")  # fmt: skip
ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.ESTALE, errno.EINTR)  # fmt: skip
EFFECTS = ("*", "*", "*/c/*", "*/c/*", "pwrite */c/*", "open *", "rename *", "*write *", "unlink *")
"""Patterns of effects; those with a c are on shards."""
BEFORE = (
    "*",
    "*/c/*",
    "open */c/*",
    "open */c/*",
    "pwrite */c/*",
    "fsync */c/*",
    "rename */c/*",
    "unlink *",
)
"""Where a process is frozen: before it begins a file, fills it, or gives it its name."""
REQUESTS = ("*", "PUT *", "PUT */c/*", "PUT *.json", "DELETE *", "POST *", "*shardwrite-run/*")
READING = ("GET *", "GET */c/*", "HEAD *", "GET *list-type=2*")
HOW = ("before", "lost", "500", "503", "reset", "cut", "slow", "late", "late", "kill before", "kill after")  # fmt: skip
"""Patterns of requests, and how they are struck; see `bucket.py`."""
GROWING = {"append", "stream", "write", "ids", "remove ids"}
_WEIGHTS = (6, 3, 5, 2, 1, 1, 0.3, 1)  # of the arrays
ALONE = {"copy", "consume", "repair"}
"""While these work, no other client does: an array must not change while it is copied or torn."""


def draw(
    rng: random.Random, number: int, campaign: Campaign, version: int, without
) -> dict[str, Any]:
    """The plan of a round, as JSON; what it draws depends on the arrays that are there."""
    world, without = campaign.world, {*without, *campaign.world.without}
    clients: list[list[Operation]] = []
    grower: dict[str, int] = {}
    for client in range(rng.choice([1, 1, 2, 2, 3])):
        ops: list[Operation] = []
        n = rng.choice([1, 2, 3])
        while len(ops) < n:
            name = rng.choices([*operations.KINDS], _WEIGHTS)[0]
            kinds = {k: w for k, w in operations.KINDS[name].items() if k not in without}
            is_there = (
                name == operations.IDS
                or campaign.states[name].versions is not None
                or name in {o["array"] for o in ops}
            )
            kinds = {k: w for k, w in kinds.items() if is_there or k in NEW}
            if not kinds:
                continue
            kind = rng.choices([*kinds], [*kinds.values()])[0]
            is_growing = name in (*operations.STREAMED, operations.IDS) and kind in GROWING
            if is_growing and grower.setdefault(name, client) != client:
                continue
            version += 1
            ops.append(operations.draw(rng, kind, name, version, world))
        clients.append(ops)
    if any(o["kind"] in ALONE for ops in clients for o in ops):
        clients = [[o for ops in clients for o in ops]]
    fault = draw_fault(rng, clients, campaign)
    plan = {"round": number, "clients": clients, "fault": fault}
    if fault["kind"] in ("freeze", "slow"):
        plan["clients"] = clients = [clients[fault["client"]]]
        fault["client"] = 0
        struck = clients[0][fault["op"]]
        version += 1
        kinds = {"write", "update", "erase", "stream"} & set(operations.KINDS[struck["array"]])
        kind = rng.choice(sorted(kinds - set(without)) or ["copy"])
        taking = operations.draw(rng, kind, struck["array"], version, world)
        if rng.random() < 0.5 and struck["kind"] in kinds:  # in the same place
            taking = {**struck, "version": version}
        plan["takeover"] = [{**taking, "restart": True, "scheduler": "sync"}]
        if fault["kind"] == "slow":  # a process that lives for longer than a lease without a sign
            slow = {**struck, "slow": 3 * SLOW_TTL, "pieces": 64, "scheduler": "sync"}
            plan["clients"] = [[slow]]
            plan["takeover"][0]["box"] = struck["box"]
    plan["settle"] = rng.choices(["same", "abandon", "nothing"], [5, 4, 2])[0]
    plan["reads"] = rng.random() < 0.3
    plan["version"] = version
    return plan


def draw_fault(rng: random.Random, clients, campaign: Campaign) -> dict[str, Any]:
    kinds = campaign.world.faults
    kind = rng.choices([*kinds], [*kinds.values()])[0]
    client = rng.randrange(len(clients))
    op = rng.randrange(len(clients[client]))
    most = max(campaign.effects[clients[client][op]["kind"]], 20)
    if kind == "kill":
        which = rng.choice([client, None])
        return {"kind": kind, "client": which, "seconds": rng.uniform(0, 0.4)}
    if kind == "cut":
        return {"kind": kind, "seconds": rng.uniform(0, 0.6), "seed": rng.randrange(2**32)}
    if kind == "request":
        how = rng.choice(HOW)
        is_long = how in ("late", "slow") or rng.random() < 0.1
        return {
            "kind": kind,
            "how": how,
            "of": rng.choice(REQUESTS if how == "late" else (*REQUESTS, *READING)),
            "k": 1 if is_long else rng.randint(1, rng.choice([3, 10, 40])),
            "n": 10**6 if is_long else rng.choice([1, 1, 2, 3]),
            "seconds": rng.uniform(0, 3),
        }
    if kind == "full":
        return {
            "kind": kind,
            "seconds": rng.choice([0, rng.uniform(0, 0.3)]),
            "left": rng.choice([0, 4096, rng.randrange(65536)]),
            "recovers": rng.random() < 0.5,
        }
    if kind == "slow":
        slow = [
            (c, n)
            for c, ops in enumerate(clients)
            for n, o in enumerate(ops)
            if o["kind"] in ("write", "update")
        ]
        if not slow:
            return {"kind": "none"}
        client, op = slow[0]
        return {"kind": kind, "client": client, "op": op}
    if kind == "freeze" and clients[client][op]["kind"] in ("ids", "remove ids", "repair"):
        return {"kind": "none"}  # no other process is to write what these write
    if kind in ("kill at", "freeze"):
        of = rng.choice(EFFECTS if kind == "kill at" else BEFORE)
        k = rng.randint(1, most if of == "*" else 8)
        return {"kind": kind, "client": client, "op": op, "of": of, "k": k}
    if kind == "fail":
        error = rng.choice([0, 0, *ERRORS])  # 0: a short write
        return {
            "kind": kind,
            "client": client,
            "op": op,
            "error": error,
            "call": rng.choice(CALLS) if error else "write",
            "k": rng.randint(1, rng.choice([2, 6, most])),
            "lasts": error != errno.EINTR and rng.random() < 0.3,  # Python would try for ever
        }
    return {"kind": "none"}
