"""A write into a bucket that is killed loses nothing, and the same call leaves nothing over."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from harness import struck

ONE = ("write of 16 shards", "region of 16 shards", "stream of 16 shards")
SEVERAL = ("three arrays of 16 shards", "replacement of three arrays of 16 shards")


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "names"),
    [
        ("kill in a bucket", ONE),
        pytest.param("kill in a bucket of SeaweedFS", ONE, marks=pytest.mark.campaign),
        ("kill in a bucket", SEVERAL),
    ],
    ids=["moto", "seaweed", "several arrays"],
)
def test_killed_at_any_moment(tmp_path, fault, names):
    found = struck(tmp_path, fault, *names, "--kills", "6", "--seed", "5")
    assert found["kills"] >= 6, "kills must interrupt something"
    assert found["vacuous"] < found["cases"]
