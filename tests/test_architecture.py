"""The shape of the house: imports point down, nothing goes round, and some things are never
done."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection
from functools import cache, wraps
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import shape
from shape import attached, modules_imported

PACKAGE = Path(__file__).parent.parent / "shardwrite"
WINGS = ("datasets", "sources", "hdf5", "legacy", "volumes", "convert", "show", "slurm")
# lowest first; a folder may import from itself and from floors before its own
LAYERS = [
    ["_dataclass", "_lazy", "_version"],
    ["errors", "grid"],
    ["seams", "checks"],
    ["results", "options"],
    ["config"],
    ["codecs"],
    ["format", "records"],
    ["plan", "encode"],
    # ---- no I/O, no dask, no clock, no randomness above this line
    ["stores", "host", "_dask"],
    ["engines", "place", "entry"],
    ["read"],
    ["journal"],
    ["write"],
    ["runs"],
    ["operations", "stream"],
    # ---- the core ends here
    [*WINGS],
    ["__init__"],
    ["cli"],
]
PURE = {name for layer in LAYERS[:7] for name in layer}
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
FILES = sorted(PACKAGE.rglob("*.py"))
ELSEWHERE = {
    "sources",
    "slurm",
    "cli",
    "host",
}  # look at users' paths and at this machine's, not at targets


# Of zarr's stores, in the adapter and in the view that is one of them; and of callers who have one
EVENT_LOOP = {"asyncio"}


def of_each(paths):
    """Have one test check all of some files, and tell what is wrong in each."""

    def made(check):
        @wraps(check)
        def test():
            wrong = []
            for path in paths:
                try:
                    check(path)
                except AssertionError as error:
                    wrong.append(f"{path.relative_to(PACKAGE)}: {error}")
            assert not wrong, "\n".join(wrong)

        del test.__wrapped__  # pytest would ask for its parameter
        return test

    return made


@cache
def walk(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a syntax tree, which many tests look at."""
    return tuple(ast.walk(tree))


def unit(path: Path) -> str:
    """The folder that a file lies in, or its own name in the root."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever it does, and whenever."""
    tree = parsed(path)
    names, modules = attached(tree)
    found = {*names, *modules}
    for node in walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "shardwrite":
                found |= {
                    f"shardwrite.{alias.name}"
                    for alias in node.names
                    if (PACKAGE / f"{alias.name}.py").exists()
                }
    return found


def own(path: Path) -> set[str]:
    """Units of this package that a file imports."""
    units = set()
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "shardwrite":
            units.add(parts[1] if len(parts) > 1 else "__init__")
    return units - {unit(path)}


def test_the_map_tells_the_shape():
    root = list(PACKAGE.glob("*.py"))
    arrows = {(unit(path), other) for path in FILES for other in own(path)}
    shape = (
        f"{len(root)} files in the root, {len(RANK)} rooms on {len(LAYERS)} floors, "
        f"and {len(arrows)} arrows between rooms"
    )
    print(shape)
    told = " ".join((PACKAGE.parent / "ARCHITECTURE.md").read_text().split())
    assert shape in told


def circles(arrows: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Sets of modules of which each imports the others, directly or through the others."""
    reached: dict[str, set[str]] = {}
    for module in arrows:
        seen: set[str] = set()
        waiting = [module]
        while waiting:
            new = arrows[waiting.pop()] - seen
            seen |= new
            waiting += new
        reached[module] = seen
    round_ = [module for module in arrows if module in reached[module]]
    return sorted(
        {tuple(sorted(m for m in round_ if m in reached[n] and n in reached[m])) for n in round_}
    )


def test_no_imports_go_round():
    """Also inside of a folder. The `__init__` of a folder may name what lies in the folder."""
    modules = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(
            ".__init__"
        ): path
        for path in FILES
    }
    arrows = {name: modules_imported(parsed(path), modules) for name, path in modules.items()}
    assert circles(arrows) == []
    # the check itself: a circle of three that a type-checking import closes
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [("a", "b", "c")]


def test_one_place_makes_the_store_of_an_array():
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if unit(path) != "stores" and "PosixStore" in path.read_text()
    }
    assert found == {"place/directory.py"}


def test_only_formats_know_the_key_of_a_document():
    """`codecs/foreign.py` has an array of zarr-python in memory, which has nothing to do with it.
    Icechunk takes documents and chunks only, so its store tells their keys from others."""
    keys = {"zarr.json", ".zarray", ".zgroup"}
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for node in walk(parsed(path))
        if isinstance(node, ast.Constant) and node.value in keys
    }
    assert found == {"format/node.py", "codecs/foreign.py", "stores/session_store.py"}


def test_one_module_spells_how_the_directory_of_a_run_is_called():
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        for node in walk(parsed(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.fullmatch(r"[\w.]*\.shardwrite/?", node.value)
    }
    assert found == {"stores/directories.py"}


def test_the_steps_of_a_run_are_counted():
    counted = shape.steps_of(shape.texts_of(PACKAGE.parent))
    assert all(0 < n < 2000 for n in counted.values()), counted


def test_every_folder_has_a_floor():
    assert {unit(path) for path in FILES} == set(RANK)


@of_each(FILES)
def test_imports_point_down(path):
    """Wings may import from other wings, as long as nothing goes round."""
    upward = {
        name
        for name in own(path)
        if RANK[name] >= RANK[unit(path)] and not {name, unit(path)} <= {*WINGS}
    }
    assert not upward, f"{path.name} is in layer {RANK[unit(path)]} and imports {sorted(upward)}"


@of_each(FILES)
def test_late_imports_are_those_that_type_checkers_see(path):
    tree = parsed(path)
    names, modules = attached(tree)
    late = {f"{module}.{name}" for module, given in names.items() for name in given} | set(modules)
    seen = {
        f"{statement.module}.{alias.name}"
        for node in tree.body
        if isinstance(node, ast.If)
        and "attach" in {call.func.id for call in walk(node) if isinstance(call, ast.Call)}
        for statement in node.body
        for alias in statement.names
    }
    submodules = {
        name for name in modules if name.startswith("shardwrite.")
    }  # type checkers know them anyway
    assert late - submodules == seen


def test_dask_arrays_are_imported_late():
    """By `_dask`, as `dask.array` takes longer than everything else that this package imports."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in FILES
        if any(name.startswith("dask.array") for name in imports(path))
    }
    assert found == {"_dask.py"}


@of_each([p for p in FILES if unit(p) in PURE])
def test_nothing_below_the_line_touches_the_world(path):
    forbidden = {
        "os",
        "io",
        "pathlib",
        "dask",
        "distributed",
        "time",
        "datetime",
        "random",
        "uuid",
        "asyncio",
        "socket",
        "subprocess",
        "shutil",
    }
    # Files in memory, for libraries that want a file, or one of the system.
    if "BytesIO" in names_from(path, "io"):
        assert names_from(path, "io") <= {"BytesIO", "FileIO"}
        forbidden -= {"io"}
    if "FileIO" in names_from(path, "io"):
        assert attributes_of(path, "os") == {"getpid", "memfd_create", "posix_fallocate", "pread"}
        forbidden -= {"os"}
    assert not {name.split(".")[0] for name in imports(path)} & forbidden


def names_from(path: Path, module: str) -> set[str]:
    """What a file imports from a module, and the module itself if it imports that, too."""
    found = set()
    for node in walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module == module:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & {module}
    return found


def attributes_of(path: Path, module: str) -> set[str]:
    """What a file takes by name from a module that it imports as a whole."""
    return {
        node.attr
        for node in walk(parsed(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == module
    }


@of_each(FILES)
def test_never_done(path):
    names = {name.split(".")[0] for name in imports(path)}
    of_others = {"stores/zarr_store.py", "legacy/view.py", "host/threads.py"}
    allowed = EVENT_LOOP if str(path.relative_to(PACKAGE)) in of_others else set()
    assert not names & {"asyncio", "pickle", "multiprocessing"} - allowed, (
        "no event loop, no pickle, no fork in this package"
    )
    for node in walk(parsed(path)):
        if isinstance(node, ast.ExceptHandler):
            is_bare = node.type is None
            only_passes = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not is_bare, f"line {node.lineno}: a bare except"
            assert not only_passes, f"line {node.lineno}: an error is swallowed"
        if isinstance(node, ast.Attribute):
            assert not (
                isinstance(node.value, ast.Name) and node.value.id == "os" and node.attr == "fork"
            ), "no fork"


@of_each(
    [
        p
        for p in FILES
        if unit(p) not in ELSEWHERE and p.relative_to(PACKAGE).parts[1:] != ("source.py",)
    ]
)
def test_what_cannot_be_looked_at_is_not_taken_for_absent(path):
    """What `pathlib` and `os.path` answer where storage fails depends on the version of Python;
    `stores.looking` raises."""
    asked = {
        "exists",
        "lexists",
        "is_file",
        "isfile",
        "is_dir",
        "isdir",
        "is_symlink",
        "islink",
        "glob",
        "rglob",
        "iterdir",
    }
    if path == PACKAGE / "stores" / "session_store.py":
        asked -= {"exists"}  # of Icechunk, whose method of this name alone raises
    for node in walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in asked, f"line {node.lineno}: {node.func.attr}"


BELOW_OPERATIONS = {
    *("grid", "codecs", "format", "plan", "encode", "stores", "host", "engines"),
    *("place", "read", "journal", "write", "runs", "entry", "config"),
}


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Parameters of a function, but for `self` and `cls`."""
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    found += [one for one in (given.vararg, given.kwarg) if one is not None]
    return found[1:] if found and found[0].arg in {"self", "cls"} else found


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_all_rooms_below_the_operations_are_counted():
    first = next(rank for rank, layer in enumerate(LAYERS) if "operations" in layer)
    rooms = {name for layer in LAYERS[:first] for name in layer}
    assert rooms - BELOW_OPERATIONS == {
        "errors",
        "_version",
        "_lazy",
        "_dataclass",
        "_dask",
        "seams",
        "results",
        "options",
        "checks",
        "records",
    }
    assert rooms >= BELOW_OPERATIONS


@of_each([path for path in FILES if unit(path) in {*BELOW_OPERATIONS, "operations"}])
def test_options_are_no_dictionaries(path):
    """A misspelt key of a dictionary is found by nobody; a field of a class by every tool."""
    told = [
        (argument.arg, argument.annotation)
        for one in functions(path)
        for argument in parameters(one)
        if argument.annotation is not None
    ]
    told += [
        (node.target.id, node.annotation)
        for node in walk(parsed(path))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    for name, annotation in told:
        if name in {"options", "keywords", "given", "knobs"}:
            assert "dict[str, Any]" not in ast.unparse(annotation), name


def removals(tree: ast.Module) -> set[str]:
    """Functions of a file that remove, move or cut something, whatever it is."""
    found = set()
    functions = [
        node for node in walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        for node in walk(function):
            if isinstance(node, ast.Attribute):
                is_module = isinstance(node.value, ast.Name) and node.value.id in ("os", "shutil")
                if node.attr in ANYWHERE or (is_module and node.attr in OF_MODULES):
                    found.add(function.name)
    return found


def calls(tree: ast.Module, name: str) -> set[str]:
    """Functions of a file that call another."""
    return {
        function.name
        for function in walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == name
    }


ANYWHERE = {"rmtree", "unlink", "rmdir", "rename", "ftruncate"}
OF_MODULES = {"remove", "removedirs", "replace", "renames", "truncate", "move"}
REMOVES_DATA = {
    "convert/removal.py": {"remove"},  # what was copied, by a line that was synced
    "stores/posix.py": {"remove"},  # a shard, by the line of the journal that its task began with
    "journal/takeover.py": {"_remove_data"},  # what a run has set aside, by its plan
    "volumes/uint64_writing.py": {
        "sweep"
    },  # obsolete objects that a call was removing that is gone
    "convert/swap.py": {"_remove_data"},  # an old tree after the exchange, or a new one given up
}
EXCHANGES = {"journal/handover.py": {"take_name"}}
SETS_ASIDE = {
    "stores/removal.py": {"remove_data"},
    # the array that a run replaces, and the one that a run has begun and not published
    "place/directory.py": {"make_room", "take_away"},
}
REMOVES_ITS_OWN = {
    "stores/removal.py": {
        "_remove",
        "abort_temporary",
        "discard_open_temporaries",
        "link_from",
        "link_new",
        "remove_data",  # what NFS has left of them gets another name
        "remove_state",
        "set_aside",
    },
    "stores/posix.py": {
        "discard_scope",
        "discard_temporary",
        "publish",
        "skip",
        "check_movable",
        "cut",
        "give_room",
    },  # temporaries, whether a directory can be renamed, and what a change in place has appended
    # the temporary that it has linked
    "stores/directories.py": {"make_directories"},  # that it has just made
    "journal/begin.py": {"_create"},
    "convert/removal.py": {
        "hide",
        "give_back",
        "remove_rest",
    },  # documents are renamed and come back; empty directories
    "journal/lease.py": {"__enter__", "_give_back", "release_all", "file_system_time"},
    "convert/swap.py": {
        "begun",
        "_end",
        "_link_record",
        "_take_over",
        "_tidy",
    },  # trees that are converted, whose inode numbers are compared; its directory and record
    # the new array, until it has the name; an old one goes back, and what is none
    "journal/handover.py": {"make_new", "rename_aside", "take_name", "rename_new"},
    "journal/lock.py": {
        "settle",
        "release",
        "record",
        "_make",
        "_succeed",
        "_remove_empty",
    },  # claims
    "journal/rundir.py": {
        "discard_drafts",
        "remove_empty",
        "remove_empty_home",
        "remove_around",
    },
    "place/directory.py": {
        "make_room",
        "remove_mark",
        "put_back",
    },  # a new directory is renamed, an old one goes back; marks of runs
    "place/base.py": {"remove_temporaries"},
    "convert/transferring.py": {"_remove_if_empty"},  # the directory of an upload's run state
    # what was beside a store that is gone from memory, and this process's copies of states
    "place/run_state.py": {"_discard", "_discard_private", "own_run_dir"},
    "journal/state_log.py": {"restore"},  # in the directory that is made from a log
    "journal/state_work.py": {
        "_lose",
        "begin_private",
        "_close",
        "open",
    },  # this process's copy of a state
    "journal/state_shared.py": {"open", "_restore", "_discard"},  # this block's copy of a state
    "journal/takeover.py": {
        "end_run",
        "discard_run",
        "drop_orphan",
        "_settle_arrays",
        "_move_plan",
        "_remove_record",
        "_remove_tokens",
        "make_end",
    },  # a directory is renamed, tokens go
    # of processes that are gone
    "journal/undo.py": {"recover_shard", "_forget"},  # records
    "write/context.py": {"probe"},  # what it has written itself
    "write/spool.py": {"__exit__"},
    "volumes/uint64_writing.py": {"_remove_obsolete"},  # the directory by which it removes data
    "runs/session.py": {"enter", "discard_parts"},
    "write/assemble.py": {"revise_from"},  # the spool of a shard
}


def test_data_are_removed_by_one_function_that_takes_a_proof():
    """Nothing else removes, moves or cuts a shard or an array; what does so with other files is
    listed here."""
    found, removing, moving, swapping = {}, {}, {}, {}
    for path in FILES:
        tree, name = parsed(path), str(path.relative_to(PACKAGE))
        removing[name] = calls(tree, "remove_data")
        moving[name] = calls(tree, "set_aside")
        swapping[name] = calls(tree, "exchange")
        if unit(path) not in ("slurm", "cli"):  # have directories of their own
            found[name] = removals(tree)
    assert {name: functions for name, functions in removing.items() if functions} == REMOVES_DATA
    assert {name: functions for name, functions in moving.items() if functions} == SETS_ASIDE
    assert {name: functions for name, functions in swapping.items() if functions} == EXCHANGES
    assert {name: functions for name, functions in found.items() if functions} == REMOVES_ITS_OWN


def test_strategies_and_metadata_do_not_know_each_other():
    for path in FILES:
        if unit(path) == "format" and path.stem in {"strategies", "strategy", "registry"}:
            assert "shardwrite.format.metadata" not in imports(path)
        if unit(path) == "format" and path.stem == "metadata":
            assert not imports(path) & {
                "shardwrite.format.strategies",
            }


def kinds_compared(tree: ast.Module) -> list[str]:
    """What is asked for a `kind` that is then compared, other than dtypes of numpy."""
    found = []
    for node in walk(tree):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        found += [
            ast.unparse(one.value)
            for one in compared
            if isinstance(one, ast.Attribute) and one.attr == "kind"
        ]
    return [name for name in found if not name.endswith("dtype")]


def test_nobody_asks_an_engine_what_it_is_called():
    """Engines have flags for what others need to know; a new engine has a name of its own."""
    for path in FILES:
        tree = parsed(path)
        names = kinds_compared(tree)
        if unit(path) != "engines":
            is_user = any(name.startswith("shardwrite.engines.cluster") for name in imports(path))
            assert not [name for name in names if is_user or "engine" in name], path


def test_stores_and_engines_know_nothing_of_shards():
    for path in FILES:
        if unit(path) in {"stores", "engines"}:
            assert own(path) <= {"_lazy", "_dataclass", "config", "errors", "host"}


FREE = {"dict[str, Any]", "Mapping[str, Any]"}
MAY_BE_FREE = {
    "runs/delayed.py": {"layers"},  # a graph of dask
    "runs/job.py": {"layers"},  # a graph of dask
}
FREE_ELSEWHERE = {
    # a document of Neuroglancer; those of Zarr are a `codecs.documents.Document`
    "volumes/uint64_shards.py": {"sharding"},
    # what stores of zarr-python and of obstore, and pools of dask, are made of
    "codecs/foreign.py": {"memory", "open"},
    "engines/local.py": {"_pool"},
    "format/document.py": {"memory"},
    "stores/bucket.py": {"self._given"},
    "stores/bucket_url.py": {"_mapping", "_translated", "config", "rest"},
    # settings of dask and of dask_jobqueue, and calls of dask that are patched
    "config/table.py": {"as_tree", "tree"},
    "entry/public.py": {"configured"},
    "host/environment.py": {"_unsaid"},
    "entry/patch.py": {"others"},
    "operations/dask_patch.py": {"_how_new"},
    "slurm/elastic.py": {"_address", "_section", "arguments_of", "configuration_of", "options"},
    "slurm/inside.py": {"_SETTINGS"},
    # fields of errors, and fields from a file of JSON that are checked as they are taken
    "errors.py": {"fields", "self.fields"},
    "hdf5/adopt.py": {"fields"},
}
"""None of these describes a plan, options of a call, or facts of a run."""
OF_CLICK = {"options", "given", "known", "taken", "jobs_of", "of_group"}
"""Keywords as the parser of the command line hands them on; a call names each of them."""


def free_dicts(tree: ast.Module, free: Collection[str] = FREE) -> set[str]:
    """Functions, parameters, fields and variables annotated as dictionaries of anything."""

    def is_free(annotation: ast.expr | None) -> bool:
        """Also within another type, and as text."""
        if annotation is None:
            return False
        parts = [
            part
            for node in walk(annotation)
            for part in (
                walk(ast.parse(node.value, mode="eval"))
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
                else [node]
            )
        ]
        return any(isinstance(part, ast.Subscript) and ast.unparse(part) in free for part in parts)

    found = set()
    for node in walk(tree):
        if isinstance(node, ast.FunctionDef) and is_free(node.returns):
            found.add(node.name)
        elif isinstance(node, ast.arg) and is_free(node.annotation):
            found.add(node.arg)
        elif isinstance(node, ast.AnnAssign) and is_free(node.annotation):
            found.add(ast.unparse(node.target))
    return found


def test_no_facts_in_dictionaries_of_anything():
    """What the journal holds is typed; a document of Zarr is a `codecs.documents.Document`."""
    found = {
        str(path.relative_to(PACKAGE)): free_dicts(parsed(path))
        for path in FILES
        if unit(path) in {"journal", "runs"}
    }
    assert {name: free for name, free in found.items() if free} == MAY_BE_FREE


def test_no_plan_and_no_options_are_dictionaries_of_anything():
    """Results that users see have `to_dict`, which makes a document of JSON for them."""
    found = {}
    for path in FILES:
        name, room = str(path.relative_to(PACKAGE)), unit(path)
        if room not in {"journal", "runs"}:  # of which more is asked
            found[name] = free_dicts(parsed(path), {"dict[str, Any]"}) - {"to_dict"}
        if room == "cli":
            found[name] -= OF_CLICK
    assert {name: free for name, free in found.items() if free} == FREE_ELSEWHERE


@pytest.mark.parametrize(
    "line",
    [
        "x: dict[str, Any] = {}",
        "def x() -> list[Mapping[str, Any]]: ...",
        "def f(x: 'dict[str, Any] | None'): ...",
    ],
)
def test_a_dictionary_of_anything_is_noticed(line):
    assert free_dicts(ast.parse(line)) == {"x"}


def test_nothing_leads_from_the_core_into_wings():
    """A wing stands on the core, which does not know it."""
    assert shape.leaks_of(shape.texts_of(PACKAGE.parent)) == {}


def test_faults_know_nothing_of_how_runs_keep_their_state():
    """They use the verbs of `seams.py`."""
    for folder in ("faults", "crash"):
        names = shape.private_names(PACKAGE.parent, folder)[folder]
        assert [name for name in names if name.split(".")[1] in ("journal", "place", "runs")] == []
