"""Print the shape of the package: what lies in the core and in each wing, and what leaks.

Run as ``python tests/shape.py`` for the working tree, or ``python tests/shape.py COMMIT`` for a
commit. With ``--before COMMIT``, only lines of what keeps and executes runs are compared. Lines of
code leave out docstrings, comments and blank lines. A *leak* is an import, at run
time, lazy or for types, that leads from the core into a wing.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Collection
from fnmatch import fnmatch
from pathlib import Path
from textwrap import dedent

sys.path.insert(0, str(Path(__file__).parent))
from commits import parser_of, tree_of

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
    "datasets": ["datasets/*"],
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
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("option", "argument"):
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


# Files of the core that keep the state of runs, in directories and in buckets, and all that
# executes them; and the functions and classes that make a plan, begin a run, and go through it.
# Older commits have other names, which stand here, too.
IN_BUCKETS = [
    *("journal/bucket_*", "journal/state_*", "journal/deadline.py", "journal/left_over.py"),
    "place/run_state.py",
]
FAMILIES = {
    "run state": ["journal/*", *IN_BUCKETS],
    "  of it, buckets": IN_BUCKETS,
    "runs": ["runs/*"],
}
STEPS = {
    "plans": {
        *("plan_array", "plan_into", "plan_without_data", "region_plan", "convert_array"),
        *("plan_of_copies", "plan_copies", "plan_gathering", "gathering_begun", "plan_begun"),
        "plan_transfer_of",
    },
    "begin and run": {
        *("begin_run", "begin_runs", "begin_beside", "_begin_one", "_begin_all", "begin", "join"),
        *("prepare_jobs", "spooled", "whole_spool", "Stretch.begin", "_begin", "_create", "_claim"),
        *("Run", "execute", "execute_missing", "execute_watched", "execute_settled"),
        *("execute_part", "execute_consuming", "execute_staged", "finish_parts"),
        *("finish_gathering", "finish_together"),
    },
}
ROOMS_OF_STEPS = [
    "journal/*",
    "runs/*",
    "convert/*",
    "volumes/*",
    "operations/*",
    "stream/stretch.py",
]


def families_of(texts: dict[str, str]) -> dict[str, Counter[str]]:
    """The counts of the files that keep the state of runs, and of those that execute them."""

    def counts(patterns: Collection[str]) -> Counter[str]:
        return sum(
            (
                counts_of(text)
                for name, text in texts.items()
                if home(name)[0] == "core" and any(fnmatch(name, each) for each in patterns)
            ),
            Counter[str](),
        )

    return {family: counts(patterns) for family, patterns in FAMILIES.items()}


def steps_of(texts: dict[str, str]) -> dict[str, int]:
    """Lines of code of the functions and classes that take each step of a run."""
    found = dict.fromkeys(STEPS, 0)
    for name, text in texts.items():
        if not any(fnmatch(name, each) for each in ROOMS_OF_STEPS):
            continue
        lines = text.splitlines()
        for node in ast.parse(text).body:
            inside = node.body if isinstance(node, ast.ClassDef) else []
            above = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for each, own in [(node, ""), *((each, above) for each in inside)]:
                if isinstance(each, ast.ClassDef | ast.FunctionDef):
                    for step, names in STEPS.items():
                        if f"{own}{each.name}" in names:
                            own_lines = lines[each.lineno - 1 : each.end_lineno]
                            found[step] += counts_of(dedent("\n".join(own_lines)))["code"]
    return found


def show_families(texts: dict[str, str]) -> str:
    """The counts of the files that keep the state of runs, and of those that execute them."""
    lines = [f"{'':18}" + "".join(f"{head:>11}" for head in (*HEADS, "short"))]
    lines += [line_of(family, counts) for family, counts in families_of(texts).items()]
    lines += [f"{step:18}{'':11}{n:>11,}" for step, n in steps_of(texts).items()]
    return "\n".join(lines)


def show_change(before: dict[str, str], texts: dict[str, str]) -> str:
    """Lines of code of the same, before and now."""

    def code(of: dict[str, str]) -> dict[str, int]:
        return {name: counts["code"] for name, counts in families_of(of).items()} | steps_of(of)

    old, new = code(before), code(texts)
    lines = [f"{'lines of code':18}{'before':>11}{'now':>11}{'share':>11}"]
    lines += [f"{name:18}{old[name]:>11,}{n:>11,}{n / old[name]:>11.0%}" for name, n in new.items()]
    return "\n".join(lines)


PATCHES = ("setattr", "object", "multiple", "patch")  # calls that put something else in a place


def public_names(root: Path) -> set[str]:
    """Names that users and implementers have: those of each `__all__`, and those that pages
    import."""
    found = set()
    for path in (root / "shardwrite").rglob("*.py"):
        module = module_of(path.relative_to(root))
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                names = [
                    each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)
                ]
                found |= {f"{module}.{name}" for name in names}
    for page in (root / "docs").rglob("*.md"):
        for module, names in re.findall(
            r"from (shardwrite[.\w]*) import ([\w, ]+)", page.read_text()
        ):
            found |= {f"{module}.{name.strip()}" for name in names.split(",")}
    errors = {name.rpartition(".")[2] for name in found if name.startswith("shardwrite.errors.")}
    return found | {f"shardwrite.{name}" for name in errors}


def module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def names_used(tree: ast.Module, modules: Collection[str]) -> set[str]:
    """Names of the package that a file imports, or puts something else in the place of."""
    bound, found = {}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardwrite"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                bound[alias.asname or alias.name] = name
                if name not in modules:
                    found.add(name)
        elif isinstance(node, ast.Import):
            bound |= {each.asname or "shardwrite": each.name for each in node.names if each.asname}

    def full(owner: ast.expr) -> str:
        first, _, rest = ast.unparse(owner).partition(".")
        name = bound.get(first, first)
        return f"{name}.{rest}" if rest else name

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and full(node.value) in modules:
            found.add(full(node))
        elif isinstance(node, ast.Call) and node.args:
            patch = ast.unparse(node.func).rpartition(".")[2] in PATCHES
            if patch and len(node.args) > 1 and isinstance(node.args[1], ast.Constant):
                found.add(f"{full(node.args[0])}.{node.args[1].value}")
            elif patch and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return {
        name
        for name in found - set(modules)
        if name.startswith("shardwrite.") and not name.endswith("__")
    }


def private_names(root: Path, below: str = ".") -> dict[str, Counter[str]]:
    """Names that the tests of each folder use and users do not have, with the number of files.
    Members of a class are as public as it.

    - `below`: only a folder of tests.
    """
    modules = {module_of(Path("shardwrite", name)) for name in texts_of(root)}
    public, folders = public_names(root), {}
    for path in sorted((root / "tests" / below).rglob("*.py")):
        if "node_modules" in path.parts:
            continue
        used = names_used(ast.parse(path.read_text()), modules)
        private = {name for name in used if not {name, name.rpartition(".")[0]} & public}
        folder = path.relative_to(root / "tests").parts[0]
        folders.setdefault(folder, Counter()).update(private)
    return folders


def show_tests(root: Path, *, names_them: bool) -> str:
    """How many names that are not public the tests of each folder use."""
    folders, lines = private_names(root), []
    for folder, names in sorted(folders.items()):
        if names:
            lines.append(f"{folder:28}{len(names):5} names in {names.total():4} places")
            lines += [f"    {name}: {n}" for name, n in sorted(names.items()) if names_them]
    verbs = folders.pop("seams.py", Counter())
    others = sum(folders.values(), Counter())
    rooms = Counter(name.split(".")[1] for name in others)
    lines.append("by room: " + ", ".join(f"{room} {n}" for room, n in rooms.most_common(12)))
    lines.append(f"{'all but seams.py':28}{len(others):5} names in {others.total():4} places")
    lines.append(f"{'of these, only in seams.py':28}{len(set(verbs) - set(others)):5} names")
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(__doc__ or "")
    parser.add_argument("--leaks", action="store_true", help="name each import into a wing")
    parser.add_argument(
        "--tests", action="store_true", help="count names in tests that are not public"
    )
    parser.add_argument("--runs", action="store_true", help="only what keeps and executes runs")
    parser.add_argument("--before", help="a commit: how what keeps and executes runs has grown")
    parser.add_argument("--names", action="store_true", help="and tell them")
    chosen = parser.parse_args()
    with tree_of(chosen.commit) as root:
        if chosen.tests:
            print(show_tests(root, names_them=chosen.names))
        elif chosen.before:
            with tree_of(chosen.before) as former:
                print(show_change(texts_of(former), texts_of(root)))
        elif chosen.runs:
            print(show_families(texts_of(root)))
        else:
            print(show(texts_of(root), names_leaks=chosen.leaks))


if __name__ == "__main__":
    main()
