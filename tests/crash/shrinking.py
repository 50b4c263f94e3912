"""The shortest history that fails: a round is tried again with fewer operations."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from operations import Operation
from rounds import Campaign, Outcome

TRIES = 4
"""How often a plan is tried, since moments differ from run to run."""
Plan = dict[str, Any]


class Snapshot:
    """A campaign as it was before a round."""

    def __init__(self, campaign: Campaign, place: Path) -> None:
        self._campaign, self._place = campaign, place
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(campaign.world.tree(), place, symlinks=True)
        self._known = {name: copy.deepcopy(getattr(campaign, name)) for name in _KNOWN}

    @property
    def pending(self) -> list[Operation]:
        """Operations that had not ended."""
        return self._known["pending"]

    def again(self, plan: Plan) -> Outcome:
        """What comes of a plan, from here."""
        campaign = self._campaign
        campaign.world.restore(self._place)
        for name, value in self._known.items():
            setattr(campaign, name, copy.deepcopy(value))
        return campaign.run(copy.deepcopy(plan))


_KNOWN = ("states", "history", "pending", "returned")


def kinds_of(outcome: Outcome) -> set[str]:
    """What went wrong, in one word each."""
    return {text.partition(":")[0] for text in outcome.troubles}


def shrink(snapshot: Snapshot, plan: Plan, outcome: Outcome) -> tuple[Plan, Outcome, int]:
    """A plan with fewer operations that fails in the same way, what came of it, and how often the
    plan itself failed when it was tried again."""
    n_failed, wanted = 0, kinds_of(outcome)
    if any(p["kind"] == "in place" for p in snapshot.pending):
        return plan, outcome, 0  # these know the directories that they change by their inodes
    for _ in range(TRIES):
        n_failed += bool(kinds_of(snapshot.again(plan)) & wanted)
    if not n_failed:
        return plan, outcome, 0
    candidates = _shorter(plan)
    while (shorter := next(candidates, None)) is not None:
        for _ in range(TRIES):
            again = snapshot.again(shorter)
            if kinds_of(again) & wanted:
                plan, outcome, candidates = shorter, again, _shorter(shorter)
                break
    return plan, outcome, n_failed


def _shorter(plan: Plan) -> Iterator[Plan]:
    """Plans with one client or one operation less; the one that is struck stays."""
    fault = plan["fault"]
    for number, ops in enumerate(plan["clients"]):
        if len(plan["clients"]) > 1 and fault.get("client") != number:
            clients = [c for n, c in enumerate(plan["clients"]) if n != number]
            client = fault.get("client")
            moved = {"client": client - 1} if client is not None and client > number else {}
            yield {**plan, "clients": clients, "fault": {**fault, **moved}}
        for at in range(len(ops)):
            is_struck = fault.get("client") == number and "op" in fault
            if len(ops) > 1 and not (is_struck and fault["op"] == at):
                clients = [
                    c[:at] + c[at + 1 :] if n == number else c
                    for n, c in enumerate(plan["clients"])
                ]
                moved = {"op": fault["op"] - 1} if is_struck and fault["op"] > at else {}
                yield {**plan, "clients": clients, "fault": {**fault, **moved}}


def told(plan: Plan) -> str:
    """A plan for people."""
    lines = [f"fault: {json.dumps(plan['fault'])}", f"then: {plan['settle']}"]
    for number, ops in enumerate(plan["clients"]):
        lines += [f"client {number}: {json.dumps(operation)}" for operation in ops]
    lines += [f"takes over: {json.dumps(operation)}" for operation in plan.get("takeover", [])]
    return "\n".join(lines)
