"""Texts of the package that users read, taken from its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["texts_in"]


def texts_in(path: Path) -> Iterator[tuple[int, str]]:
    """Texts of more than one word in a module, each with its line.

    Docstrings and the help of options are left out. What a text is formatted with is ``{}``.
    """
    tree = ast.parse(path.read_text())
    others: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            others.add(node.value)
        elif isinstance(node, ast.keyword) and node.arg in ("help", "command_help"):
            others.update(ast.walk(node))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "argument"):
            others.update(inner for text in node.args for inner in ast.walk(text))
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in (
            "HELP",
            "COMMAND_HELP",
        ):
            others.update(ast.walk(node))
        elif isinstance(node, ast.JoinedStr):
            others.update(inner for inner in ast.walk(node) if isinstance(inner, ast.Constant))
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            pieces = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
            text = "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and node not in others:
            text = node.value if isinstance(node.value, str) else ""
        if " " in text:
            yield node.lineno, text
