"""Print all that is public: names, signatures, settings, commands, exit codes and remedies.

Run as ``python tests/surface.py`` for the working tree, and as ``python tests/surface.py --against
COMMIT`` for the lines that a commit has and this tree lacks (``-``), and the other way round.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from commits import ROOT, tree_of


def names() -> Iterator[str]:
    """Each public name with its signature; of classes, their bases, fields and methods, too."""
    import shardwrite

    for name in sorted(shardwrite.__all__):
        found = getattr(shardwrite, name)
        if isinstance(found, type):
            bases = [base.__name__ for base in found.__mro__[1:] if base.__module__ == "builtins"]
            yield f"class {name}({', '.join(bases)})"
            if dataclasses.is_dataclass(found):
                yield from (f"  {name}.{field.name}" for field in dataclasses.fields(found))
            for member in sorted(dir(found)):
                if not member.startswith("_"):
                    value = inspect.getattr_static(found, member)
                    call = getattr(value, "__func__", value)
                    told = signature(call) if callable(call) else ""
                    yield f"  {name}.{member}{told}"
        elif callable(found):
            yield f"{name}{signature(found)}"
        else:
            yield name


def signature(function: object) -> str:
    """Names and defaults of parameters, without types; nothing where Python knows none."""
    try:
        parameters = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    told = ", ".join(
        re.sub(r" at 0x[0-9a-f]+", "", str(one.replace(annotation=one.empty))) for one in parameters
    )
    return f"({told})"


def settings() -> Iterator[str]:
    try:
        from shardwrite.cli.settings import as_markdown
    except ImportError:  # an older commit
        from shardwrite.config.reference import as_markdown

    yield from as_markdown().splitlines()


def commands() -> Iterator[str]:
    """Help of each command, with hidden ones."""
    import click

    from shardwrite.cli import main

    def those(command: click.Command, name: str, above: click.Context | None) -> Iterator[str]:
        context = click.Context(command, info_name=name, parent=above, terminal_width=100)
        yield from (
            f"{context.command_path}: {line}" for line in command.get_help(context).splitlines()
        )
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                if found := command.get_command(context, below):
                    yield from those(found, below, context)

    yield from those(main, "shardwrite", None)


def exit_codes() -> Iterator[str]:
    import shardwrite
    from shardwrite.runs.outcome import exit_code_of

    for name in sorted(shardwrite.errors.__all__):
        kind = getattr(shardwrite, name)
        yield f"exit code of {name}: {exit_code_of(kind.__new__(kind))}"


def remedies(root: Path) -> Iterator[str]:
    """Texts of the package that tell what to do, wherever they stand."""
    found = set()
    for path in (root / "shardwrite").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                for text in ast.walk(node.value):
                    if isinstance(text, ast.Constant) and isinstance(text.value, str):
                        found.add(text.value.strip())
    yield from (f"remedy: {text}" for text in sorted(found) if text)


def surface(root: Path) -> Iterator[str]:
    yield from names()
    yield from settings()
    yield from commands()
    yield from exit_codes()
    yield from remedies(root)


def printed_by(root: Path) -> list[str]:
    """What a fresh process prints of the package in a directory."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, __file__, "--root", str(root)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment, cwd=root
    )
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", help="a commit to compare with")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.against is None:
        print("\n".join(surface(chosen.root)))
        return
    with tree_of(chosen.against) as old:
        before, after = printed_by(old), printed_by(ROOT)
    for line in difflib.unified_diff(before, after, "before", "now", lineterm="", n=0):
        print(line)


if __name__ == "__main__":
    main()
