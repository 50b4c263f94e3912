"""Print the shape of the package: what lies in the core and in each wing, and what leaks.

Run as ``python tests/shape.py`` for the working tree, or ``python tests/shape.py COMMIT`` for a
commit. Lines of code leave out docstrings, comments and blank lines. A *leak* is an import, at run
time, lazy or for types, that leads from the core into a wing.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent

# What lies in which wing, until each is a folder: the first pattern that fits decides.
WINGS = {
    "front": ["__init__.py", "cli/main.py"],
    "cli": ["cli/*"],
    "slurm": ["slurm/*", "journal/jobs.py"],
    "show": [
        "notebook/*",
        "picture/*",
        "reporting/*",
        "journal/timeline.py",
        "operations/run_report.py",
        "runs/bar.py",
    ],
    "hdf5": [
        "hdf5/*",
        "format/hdf5_*",
        "format/joined.py",
        "journal/adopting.py",
        "operations/adopt*",
        "operations/hdf5_*",
        "read/hdf5_*",
        "runs/hdf5_kept.py",
        "sources/hdf5_joined.py",
        "sources/hdf5_shard.py",
    ],
    "volumes": [
        "codecs/jpeg.py",
        "codecs/labels.py",
        "codecs/png*",
        "codecs/segmentation.py",
        "codecs/volume.py",
        "encode/cutting.py",
        "encode/uint64_shard.py",
        "format/placed.py",
        "format/precomputed/*",
        "journal/volume_info.py",
        "operations/precomputed.py",
        "operations/scale*",
        "operations/scattered*",
        "operations/uint64_*",
        "operations/volume_scales.py",
        "place/scale.py",
        "read/precomputed.py",
        "read/uint64_shards.py",
        "read/volume_paths.py",
        "runs/gathered.py",
        "sources/precomputed.py",
        "sources/volume_arrays.py",
        "write/uint64_shards.py",
    ],
    "legacy": [
        "format/hierarchy_2022.py",
        "format/transformer*",
        "format/v2.py",
        "operations/transformer.py",
        "place/transformer.py",
        "read/shard_locks.py",
        "read/shard_reads.py",
        "read/transformer_view.py",
        "sources/transformer_2022.py",
        "sources/zip_*",
    ],
    "sources": ["sources/*", "stores/bucket_files.py", "stores/inside.py"],
    "convert": [
        "format/converted.py",
        "format/notes.py",
        "format/passage.py",
        "journal/consuming.py",
        "journal/in_place*",
        "operations/consum*",
        "operations/conver*",
        "operations/hierarchy.py",
        "operations/in_place.py",
        "operations/stores_in_place.py",
        "operations/transfer*",
        "operations/volumes.py",
        "operations/whole_trees.py",
        "plan/copying.py",
        "plan/in_chunks.py",
        "read/hierarchy.py",
        "read/stored_array.py",
        "read/survey.py",
        "runs/consuming.py",
        "runs/conversion.py",
        "runs/growing.py",
        "runs/reencoded.py",
        "runs/stepwise.py",
        "runs/stored_behind.py",
        "runs/stored_chunks.py",
        "runs/watching.py",
        "runs/whole_objects.py",
        "stores/exchange.py",
        "write/comparing.py",
        "write/copying.py",
        "write/donor.py",
        "write/whole_objects.py",
    ],
}


def home(name: str) -> tuple[str, str]:
    """The part of the house that a file lies in ("core" or a wing), and its room there."""
    for wing, patterns in WINGS.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            return wing, wing
    return "core", name.split("/", maxsplit=1)[0].removesuffix(".py")


@dataclass
class Shape:
    """Counts of some files. Lines of imports and signatures are part of those of code."""

    n_files: int = 0
    code: int = 0
    docstrings: int = 0
    imports: int = 0
    signatures: int = 0
    n_functions: int = 0
    n_short: int = 0  # functions of one statement
    leaks: dict[str, list[str]] = field(default_factory=dict)  # by module of a wing: who imports it

    def add(self, other: Shape) -> None:
        self.n_files += other.n_files
        self.code += other.code
        self.docstrings += other.docstrings
        self.imports += other.imports
        self.signatures += other.signatures
        self.n_functions += other.n_functions
        self.n_short += other.n_short

    def row(self) -> list[str]:
        share = f"{self.n_short / self.n_functions:.0%}" if self.n_functions else ""
        counts = (
            self.n_files,
            self.code,
            self.docstrings,
            self.imports,
            self.signatures,
            self.n_functions,
        )
        return [*(f"{count:,}" for count in counts), share]


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def docstring_of(node: ast.AST) -> ast.stmt | None:
    body = getattr(node, "body", None)
    if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
        value = body[0].value
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            return body[0]
    return None


def shape_of(text: str) -> Shape:
    """The counts of one file."""
    tree, found = ast.parse(text), Shape(n_files=1)
    words: set[int] = set()  # lines of texts that stand alone
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.imports += span(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.n_functions += 1
            rest = node.body[1:] if docstring_of(node) else node.body
            found.n_short += len(rest) <= 1
            found.signatures += node.body[0].lineno - node.lineno if span(node) > 1 else 1
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type
        not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        and token.type != tokenize.ENDMARKER
        for line in range(token.start[0], token.end[0] + 1)
    }
    found.docstrings = len(words)
    found.code = len(lines - words)
    return found


def imported(text: str, modules: set[str]) -> Iterator[str]:
    """Files of the package that a file imports, wherever it does, by `attach`, too."""

    def file_of(name: str) -> str | None:
        for suffix in (".py", "/__init__.py"):
            path = name.removeprefix("shardwrite").removeprefix(".").replace(".", "/") + suffix
            if path.removeprefix("/") in modules:
                return path.removeprefix("/")
        return None

    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if file_of(name) else node.module for name in names]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "attach"
            and len(node.args) > 1
        ):
            names = list(ast.literal_eval(node.args[1]))
        for name in names:
            if name.split(".")[0] == "shardwrite" and (path := file_of(name)):
                yield path


def texts_of(commit: str | None) -> dict[str, str]:
    """Text of each file of the package, by its path in it."""
    if commit is None:
        package = ROOT / "shardwrite"
        return {
            str(path.relative_to(package)): path.read_text()
            for path in sorted(package.rglob("*.py"))
        }
    packed = subprocess.run(
        ["git", "archive", commit, "shardwrite"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        return {
            member.name.removeprefix("shardwrite/"): file.read().decode()
            for member in archive.getmembers()
            if member.name.endswith(".py") and (file := archive.extractfile(member))
        }


def measured(texts: dict[str, str]) -> dict[tuple[str, str], Shape]:
    """The shape of each room of the core, and of each wing with what leads into it."""
    rooms: dict[tuple[str, str], Shape] = {}
    modules = set(texts)
    for name, text in texts.items():
        rooms.setdefault(home(name), Shape()).add(shape_of(text))
    for name, text in texts.items():
        if home(name)[0] != "core":
            continue
        for target in sorted(set(imported(text, modules))):
            if home(target)[0] not in ("core", "front"):
                rooms[home(target)].leaks.setdefault(target, []).append(name)
    return rooms


def show(rooms: dict[tuple[str, str], Shape], *, leaks: bool) -> str:
    heads = ["files", "code", "docstrings", "imports", "signatures", "functions", "short", "leaks"]
    lines, total = [f"{'':18}" + "".join(f"{head:>11}" for head in heads)], Shape()
    for is_core, title in ((True, "core"), (False, "wings and front")):
        part, inside = Shape(), []
        n_leaks = 0
        for (wing, room), shape in sorted(rooms.items()):
            if (wing == "core") is is_core:
                part.add(shape)
                count = sum(map(len, shape.leaks.values()))
                n_leaks += count
                inside.append((f"  {room}", [*shape.row(), "" if is_core else str(count)]))
        total.add(part)
        inside.insert(0, (title, [*part.row(), "" if is_core else str(n_leaks)]))
        lines += [f"{name:18}" + "".join(f"{cell:>11}" for cell in row) for name, row in inside]
    lines.append(f"{'all':18}" + "".join(f"{cell:>11}" for cell in total.row()))
    if leaks:
        for (wing, _), shape in sorted(rooms.items()):
            for target, names in sorted(shape.leaks.items(), key=lambda item: -len(item[1])):
                lines.append(f"{wing}: {target} <- {', '.join(names)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="instead of the working tree")
    parser.add_argument("--leaks", action="store_true", help="name each import into a wing")
    chosen = parser.parse_args()
    print(show(measured(texts_of(chosen.commit)), leaks=chosen.leaks))


if __name__ == "__main__":
    main()
