"""Sentences of the project: of its pages, its docstrings, and the messages in its code.

Code, tables, headings and what programs have written are left out, so that only prose remains.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

_GENERATED = re.compile(r"<!-- (\S+) -->.*?<!-- end of \1 -->", re.DOTALL)
_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+)[^`]*\1")
_ROLE = re.compile(r":\w+:(?=`)")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_BOUNDARY = re.compile(
    r"\n\s*\n"  # a paragraph ends
    r"|\n(?=\s*(?:[-*:]|\d+\.)\s)"  # an item of a list begins
    r"|(?<=[.!?:])\s+(?=[A-Z\[*(]|zarr-python|shardwrite|glibc)"  # a sentence ends
)
_NOT_PROSE = re.compile(r"^[|#<!].*", re.MULTILINE)  # tables, headings, HTML and pictures
_MARK = re.compile(r"^\s*(?:[-*:]|\d+\.)\s+")
# A section of numpydoc, and those in which lines that are not indented are names and types.
_SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}$", re.MULTILINE)
_OF_NAMES = {"Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns"}
_DOCTEST = re.compile(r"^ *>>> .*?(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
# A text in the code that is prose: lower-case words, and several of them.
_PROSE = re.compile(r"\b[a-z]+(?: [a-z]+){2}\b")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of the project.

    Attributes
    ----------
    line : int
        Where it begins in its file, from 1.
    text : str
        The sentence in one line. ``X`` stands for code and for values.
    """

    line: int
    text: str

    @property
    def n_words(self) -> int:
        """Number of words."""
        return len(self.text.split())


def _blank(found: re.Match[str]) -> str:
    return "\n" * found[0].count("\n")


def _sentences(text: str, first_line: int = 1) -> Iterator[Sentence]:
    """Split prose at the ends of sentences, items and paragraphs."""
    text = _CODE.sub(lambda found: "X" + _blank(found), _ROLE.sub("", text))
    text = _LINK.sub(lambda found: found[1], text).replace("**", "")
    begin = 0
    ends = [(found.start(), found.end()) for found in _BOUNDARY.finditer(text)]
    for end, after in [*ends, (len(text), len(text))]:
        piece = text[begin:end]
        words = " ".join(_MARK.sub("", piece).split())
        if words:
            begin += len(piece) - len(piece.lstrip())
            yield Sentence(first_line + text.count("\n", 0, begin), words)
        begin = after


def of_page(text: str) -> list[Sentence]:
    """List the sentences of a page in Markdown."""
    text = _FENCED.sub(_blank, _GENERATED.sub(_blank, text))
    return list(_sentences(_NOT_PROSE.sub("", _without_code(text))))


def of_docstring(text: str, first_line: int = 1) -> list[Sentence]:
    """List the sentences of a docstring in the format of numpydoc."""
    text = _DOCTEST.sub(_blank, inspect.cleandoc(text))
    begin, *sections = _SECTION.split(text)
    parts = [_without_code(begin)]
    for name, body in zip(sections[::2], sections[1::2], strict=True):
        if name in _OF_NAMES:
            body = "\n".join(line if line.startswith(" ") else "" for line in body.split("\n"))
            body = textwrap.dedent(body)
        parts.append(_without_code(body))
    return list(_sentences("\n".join(parts), first_line))


def _without_code(text: str) -> str:
    """Blank lines that are indented after an empty line."""
    kept: list[str] = []
    for line in text.split("\n"):
        is_code = line.startswith("    ") and not (kept and kept[-1].strip())
        kept.append("" if is_code else line)
    return "\n".join(kept)


def _documented(tree: ast.AST) -> Iterator[tuple[ast.Constant, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value, str(first.value.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "described"):
            for text in node.args:  # of which docstrings are made
                if isinstance(text, ast.Constant) and " " in str(text.value):
                    yield text, str(text.value)
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "HELP":
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and " " in str(part.value):
                    yield part, str(part.value)


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find the texts in the code, with ``X`` for each value that is filled in."""
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in joined for part in ast.walk(node) if part is not node}
    inside |= {id(node) for node, _ in _documented(tree)}
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            parts = (str(p.value) if isinstance(p, ast.Constant) else "X" for p in node.values)
            yield node.lineno, "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def of_code(text: str) -> tuple[list[Sentence], list[Sentence]]:
    """List the sentences of all docstrings in a module, and those of its messages."""
    tree = ast.parse(text)
    docstrings = [
        sentence
        for node, value in _documented(tree)
        for sentence in of_docstring(value, node.lineno)
    ]
    messages = [
        sentence
        for line, value in _messages(tree)
        if _PROSE.search(value) and "\n" not in value.strip()
        for clause in value.split("; ")  # the fault, and what to do
        for sentence in _sentences(clause, line)
    ]
    return docstrings, messages
