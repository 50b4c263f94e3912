"""Print the shape of the package: what lies in the core and in each wing, and what leaks.

Run as ``python tests/shape.py`` for the working tree, or ``python tests/shape.py COMMIT`` for a
commit. Lines of code leave out docstrings, comments and blank lines. A *leak* is an import, at run
time, lazy or for types, that leads from the core into a wing.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from same_bytes import checked_out

ROOT = Path(__file__).parent.parent
HEADS = ("files", "code", "docstrings", "imports", "signatures", "functions")
WITHOUT_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}

# What lies in which wing: a folder of its name, and what older commits had elsewhere. The first
# pattern that fits decides.
WINGS = {
    "front": ["__init__.py", "cli/main.py"],
    "cli": ["cli/*", "operations/previews.py"],
    "slurm": ["slurm/*", "journal/jobs.py"],
    "show": [
        "show/*",
        "notebook/*",
        "picture/*",
        "reporting/*",
        "journal/timeline.py",
        "operations/run_report.py",
        "runs/bar.py",
    ],
    "hdf5": [
        "hdf5/*",
        "format/hdf5*",
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
        "volumes/*",
        "codecs/jpeg.py",
        "codecs/png*",
        "codecs/segmentation.py",
        "codecs/volume.py",
        "encode/uint64_shard.py",
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
        "legacy/*",
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
        "convert/*",
        "format/converted.py",
        "format/notes.py",
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
        "plan/in_chunks.py",
        "runs/consuming.py",
        "runs/conversion*",
        "runs/growing.py",
        "runs/reencoded.py",
        "runs/stepwise.py",
        "runs/whole_objects.py",
        "stores/exchange.py",
        "write/whole_objects.py",
    ],
}


def home(name: str) -> tuple[str, str]:
    """The part of the house that a file lies in ("core" or a wing), and its room there."""
    for wing, patterns in WINGS.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            return wing, wing
    return "core", name.split("/", maxsplit=1)[0].removesuffix(".py")


def span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def counts_of(text: str) -> Counter[str]:
    """The counts of one file. Lines of imports and signatures are part of those of code."""
    tree, found = ast.parse(text), Counter(files=1)
    words: set[int] = set()  # lines of texts that stand alone
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                words.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "described"):
            for told in node.args:  # of which docstrings are made
                if isinstance(told, ast.Constant) and " " in str(told.value):
                    words.update(range(told.lineno, (told.end_lineno or told.lineno) + 1))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found["imports"] += span(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found["functions"] += 1
            found["short"] += len(node.body) - (ast.get_docstring(node) is not None) <= 1
            found["signatures"] += node.body[0].lineno - node.lineno if span(node) > 1 else 1
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in WITHOUT_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    found.update(docstrings=len(words), code=len(lines - words))
    return found


def attached(tree: ast.Module) -> tuple[dict[str, list[str]], list[str]]:
    """What a file imports by `attach`: names by their modules, and whole modules."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "attach"
        ):
            modules = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords}
            return ast.literal_eval(node.args[1]), modules.get("modules", [])
    return {}, []


def modules_imported(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Modules of this package that a file imports, late and type-checking imports included."""
    names, whole = attached(tree)
    found = {*names, *whole}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules)
            found |= inner or {node.module}
    return found & set(modules)


def texts_of(root: Path) -> dict[str, str]:
    """Text of each file of the package in a checkout, by its path in the package."""
    package = root / "shardwrite"
    return {str(p.relative_to(package)): p.read_text() for p in sorted(package.rglob("*.py"))}


Room = tuple[str, str]
"""A wing, or the core, and a room of it; see `home`."""


def rooms_of(texts: dict[str, str]) -> dict[Room, Counter[str]]:
    """The counts of each room of the core, and of each wing."""
    rooms: dict[Room, Counter[str]] = {}
    for name, text in texts.items():
        rooms.setdefault(home(name), Counter()).update(counts_of(text))
    return rooms


def leaks_of(texts: dict[str, str]) -> dict[Room, dict[str, list[str]]]:
    """For each wing, which of its files the core imports, and where."""
    files = {
        f"shardwrite/{name}".removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name in texts
    }
    leaks: dict[Room, dict[str, list[str]]] = {}
    for name, text in texts.items():
        if home(name)[0] == "core":
            for module in sorted(modules_imported(ast.parse(text), files)):
                if home(files[module])[0] not in ("core", "front"):
                    inside = leaks.setdefault(home(files[module]), {})
                    inside.setdefault(files[module], []).append(name)
    return leaks


def line_of(name: str, counts: Counter[str], leaks: str = "") -> str:
    share = f"{counts['short'] / counts['functions']:.0%}" if counts["functions"] else ""
    cells = [*(f"{counts[head]:,}" for head in HEADS), share, leaks]
    return f"{name:18}" + "".join(f"{cell:>11}" for cell in cells)


def show(texts: dict[str, str], *, names_leaks: bool) -> str:
    rooms, leaks = rooms_of(texts), leaks_of(texts)
    n_leaks = {room: sum(map(len, inside.values())) for room, inside in leaks.items()}
    lines = [f"{'':18}" + "".join(f"{head:>11}" for head in (*HEADS, "short", "leaks"))]
    for is_core, title in ((True, "core"), (False, "wings and front")):
        part = {
            room: counts for room, counts in sorted(rooms.items()) if (room[0] == "core") is is_core
        }
        told = "" if is_core else str(sum(n_leaks.values()))
        lines.append(line_of(title, sum(part.values(), Counter()), told))
        for room, counts in part.items():
            lines.append(
                line_of(f"  {room[1]}", counts, "" if is_core else str(n_leaks.get(room, 0)))
            )
    lines.append(line_of("all", sum(rooms.values(), Counter())))
    if names_leaks:
        for (wing, _), inside in sorted(leaks.items()):
            for target, where in sorted(inside.items(), key=lambda item: -len(item[1])):
                lines.append(f"{wing}: {target} <- {', '.join(where)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="instead of the working tree")
    parser.add_argument("--leaks", action="store_true", help="name each import into a wing")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = checked_out(chosen.commit, Path(scratch)) if chosen.commit else ROOT
        print(show(texts_of(root), names_leaks=chosen.leaks))


if __name__ == "__main__":
    main()
