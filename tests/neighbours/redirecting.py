"""What the plugins share: tests that are left out, each with its reason, and counts of writes."""

from __future__ import annotations

import json
import os
import re
from collections import Counter


class Redirection:
    """Counts of one process, and the tests that it leaves out."""

    def __init__(self, left_out):
        self.left_out = left_out
        self.counts = Counter()
        self.deselected = {}

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

    def tell(self):
        """Leave the counts for the process that has started this one."""
        with open(os.environ["SHARDWRITE_TOLD"], "w") as file:
            json.dump({"counts": self.counts, "deselected": self.deselected}, file)
