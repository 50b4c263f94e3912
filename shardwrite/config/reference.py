"""The table of settings as a file of defaults, and as a page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator

from shardwrite.config.table import PREFIX, SETTINGS, Setting

_WIDTH = 96


def as_yaml() -> str:
    """All settings with their defaults and meanings, as the text of a YAML file."""
    lines = [
        "# Defaults of shardwrite. To change some, copy them into a YAML file that dask reads,",
        "# such as ~/.config/dask/shardwrite.yaml.",
        f"{PREFIX}:",
    ]
    above = ""
    for setting in sorted(SETTINGS, key=lambda one: "." in one.name):
        parent, _, leaf = setting.name.rpartition(".")
        if parent != above:
            lines.append(f"  {parent}:")
            above = parent
        indent = "    " if parent else "  "
        lines += [f"{indent}# {line}" for line in _wrapped(setting, len(indent))]
        lines.append(f"{indent}{leaf}: {_shown(setting)}")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """All settings as a table of a page."""
    rows = ["| setting | default | type | keyword | meaning |", "|---|---|---|---|---|"]
    for setting in SETTINGS:
        keyword = f"`{setting.keyword}`" if setting.keyword else ""
        rows.append(
            f"| `{setting.path}` | `{_shown(setting)}` | {setting.kind.label} | {keyword} "
            f"| {setting.meaning} |"
        )
    return "\n".join(rows)


def _wrapped(setting: Setting[object], indent: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{setting.meaning} Type: {setting.kind.label}.", _WIDTH - indent)


def _shown(setting: Setting[object]) -> str:
    return json.dumps(setting.default)
