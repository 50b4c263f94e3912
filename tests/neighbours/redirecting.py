"""What the plugins share: tests that are left out, each with its reason, how others end, and counts."""

from __future__ import annotations

import json
import os
import re
from collections import Counter


class Redirection:
    """Counts of one process, how its tests end, and the tests that it leaves out."""

    def __init__(self, left_out=()):
        self.left_out = dict(left_out)
        self.counts = Counter()
        self.deselected = {}
        self.outcomes = {}

    def select(self, config, items):
        """Leave tests out, as pytest's ``pytest_collection_modifyitems`` does."""
        kept, out = [], []
        for item in items:
            reason = next((why for what, why in self.left_out.items()
                           if re.search(what, item.nodeid)), None)  # fmt: skip
            (kept if reason is None else out).append(item)
            if reason is not None:
                self.deselected.setdefault(reason, []).append(item.nodeid)
        config.hook.pytest_deselected(items=out)
        items[:] = kept

    def note(self, report):
        """Note how a test ends, as pytest's ``pytest_runtest_logreport`` does."""
        if report.when == "call" or report.outcome != "passed":
            is_expected = hasattr(report, "wasxfail")
            outcome = f"x{report.outcome}" if is_expected else report.outcome
            self.outcomes[name_of(report.nodeid)] = outcome

    def tell(self):
        """Leave all that for the process that has started this one."""
        told = {name: getattr(self, name) for name in ("counts", "deselected", "outcomes")}
        with open(os.environ["SHARDWRITE_TOLD"], "w") as file:
            json.dump(told, file)


def name_of(nodeid):
    """Name of a test, from its file on."""
    return nodeid.partition("::")[0].rpartition("/")[2] + "::" + nodeid.partition("::")[2]
