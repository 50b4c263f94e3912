"""Which cases of a test run by default, and which in the long tier only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def some(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test, of which those that are not `quick` run in the long tier only."""
    values = list(values)
    assert all(value in values for value in quick), "a quick case is none of the cases"
    return [pytest.param(v, marks=() if v in quick else pytest.mark.long) for v in values]
