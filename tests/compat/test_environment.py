"""Which interpreters the two other environments take, and where uv looks for packages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from environment import choose, pythons, settings


def listed(*versions, **changes):
    kind = {"implementation": "cpython", "variant": "default", **changes}
    return [{**kind, "version": version, "path": f"/{version}"} for version in versions]


FOUND = [
    *listed("3.13.0", "3.12.1", "3.11.2", "3.11.7", "3.10.13", "3.15.0b1", "3.9.18"),
    *listed("3.14.0", variant="freethreaded"),
    *listed("3.11.13", implementation="pypy"),
]


@pytest.mark.parametrize(
    ("found", "lowest", "newest", "said"),
    [
        (FOUND, "/3.11.7", "/3.13.0", ""),
        (listed("3.11.2"), "/3.11.2", "/3.11.2", "no newer Python is here"),
        (listed("3.13.9", "3.13.10"), "/3.13.10", "/3.13.10", "no newer Python is here"),
    ],
)
def test_the_oldest_and_the_newest_release_that_fit(found, lowest, newest, said):
    known = pythons(json.dumps(found), (3, 11))
    assert choose("lowest", known)[0].path == lowest
    python, remark = choose("newest", known)
    assert python.path == newest
    assert said in remark
    assert bool(remark) == bool(said)


def test_packages_come_from_where_pip_takes_them():
    assert settings(
        "global.find-links='/wheels'\n"
        "global.index-url='https://one.example/simple?a=b'\n"
        "user.index-url='https://two.example/simple'\n"
        ":env:.default-timeout='180'\n"
    ) == {"UV_DEFAULT_INDEX": "https://two.example/simple", "UV_HTTP_TIMEOUT": "180"}
