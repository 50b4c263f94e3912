"""Imports that wait: what importing this package loads, what it gives, and when dask's arrays get
their method."""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import threading
import types
from pathlib import Path

import cloudpickle
import pytest

import shardwrite
from shardwrite._lazy import if_loaded, when_imported

ROOT = Path(__file__).parent.parent
HEAVY = {
    *(
        "dask",
        "distributed",
        "h5py",
        "hdf5plugin",
        "matplotlib",
        "nibabel",
        "numcodecs",
        "numpy",
        "pandas",
        "rich",
        "scipy",
    ),
    *("tifffile", "tornado", "xarray", "zarr", "cryptography", "dask_jobqueue", "asyncio"),
}
WRITE = """
import sys, dask.array as da, shardwrite
x = da.zeros((8, 8), chunks=4) + 1
assert x.to_sharded_zarr(sys.argv[1], shards=(4, 4), chunks=(2, 2)).n_shards == 4
"""
ROOMS_OF_A_WRITE = {
    *("checks", "codecs", "config", "encode", "engines", "entry", "errors", "format", "grid"),
    *("host", "journal", "operations", "options", "place", "plan", "records", "results", "runs"),
    *("seams", "stores", "write"),
}
"""No wing among them, and no room for reading."""
MOST_MODULES = 86
IS_METHOD = "assert dask.array.Array.to_sharded_zarr is shardwrite.to_sharded_zarr"


def run(program, *arguments):
    """What a fresh process prints that runs a program."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def loaded_by(program, *arguments):
    """Top-level packages that a fresh process has imported after a program."""
    printed = run(
        f"{program}\nimport json, sys\nprint(json.dumps([*sys.modules]))", *arguments
    ).splitlines()[-1]
    return {name.partition(".")[0] for name in json.loads(printed)}, json.loads(printed)


@pytest.mark.usefixtures("children_as_users_start_them")
@pytest.mark.parametrize(
    "program",
    [
        "import shardwrite",
        "from shardwrite import SpecError",
        "import shardwrite; dir(shardwrite)",
        "import shardwrite.cli",
    ],
)
def test_importing_the_package_imports_nothing_heavy(program):
    packages, _ = loaded_by(program)
    assert not packages & HEAVY


def test_dask_array_is_not_imported_for_what_takes_no_dask_arrays():
    names = "create, verify, ShardWriter, open_sharded, FixedOrder"
    _, modules = loaded_by(f"from shardwrite import {names}")
    assert "dask.array" not in modules


@pytest.mark.usefixtures("children_as_users_start_them")
def test_the_first_write_imports_neither_distributed_nor_what_draws_a_bar(tmp_path):
    packages, _ = loaded_by(WRITE, tmp_path / "x.zarr")
    assert not packages & {"distributed", "tornado", "rich"}


@pytest.mark.usefixtures("children_as_users_start_them")
def test_the_first_write_loads_only_rooms_that_it_needs(tmp_path):
    _, modules = loaded_by(WRITE, tmp_path / "x.zarr")
    own = {name.removeprefix("shardwrite.") for name in modules if name.startswith("shardwrite.")}
    rooms = {name.partition(".")[0] for name in own if not name.startswith("_")}
    assert rooms <= ROOMS_OF_A_WRITE
    assert not {name for name in own if "bucket" in name or name.startswith("read.")}
    # updates, changes in place, clusters, and arrays that are read
    assert not own & {
        *("journal.undo", "journal.lock", "operations.region", "runs.region_plan"),
        *("write.assemble", "write.copying", "engines.cluster", "place.objects"),
    }
    assert len(own) <= MOST_MODULES, sorted(own)


@pytest.mark.parametrize(
    "imports",
    [
        "import shardwrite, dask.array.core",
        *(
            pytest.param(imports, marks=pytest.mark.long)
            for imports in (
                "import dask.array, shardwrite",
                "from shardwrite import to_sharded_zarr\nimport shardwrite, dask.array",
                "import shardwrite, dask.array, importlib\nimportlib.reload(dask.array)",
                "import shardwrite, dask.array",
                "import dask, shardwrite, dask.array",
                "from shardwrite.plan.plan import Plan\nimport shardwrite, dask.array",
                "import shardwrite, importlib\nimportlib.reload(shardwrite)\nimport dask.array",
            )
        ),
    ],
)
def test_arrays_have_the_method_whatever_is_imported_first(imports):
    run(f"{imports}\n{IS_METHOD}")


@pytest.mark.parametrize(
    "imports",
    [
        "import shardwrite, xarray",
        pytest.param("import xarray, shardwrite", marks=pytest.mark.long),
        pytest.param(
            "import shardwrite, importlib\nimport xarray\nimportlib.reload(shardwrite)",
            marks=pytest.mark.long,
        ),
    ],
)
def test_objects_of_xarray_have_the_accessor_whatever_is_imported_first(imports):
    pytest.importorskip("xarray")
    loaded_late = "import sys\nassert 'shardwrite.datasets' not in sys.modules"
    kinds = "xarray.Dataset(), xarray.DataArray(1), xarray.DataTree()"
    check = f"assert all(hasattr(one.shardwrite, 'to_zarr') for one in ({kinds}))"
    _, modules = loaded_by(f"{imports}\n{loaded_late}\n{check}")
    assert "shardwrite.datasets" in modules


@pytest.mark.long
@pytest.mark.usefixtures("children_as_users_start_them")
def test_arrays_have_the_method_where_threads_import_at_the_same_time():
    run(
        """
import sys, threading
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(4)
def load(name):
    barrier.wait()
    __import__(name)
names = "dask.array", "shardwrite", "dask.array.core", "shardwrite.plan"
threads = [threading.Thread(target=load, args=(name,)) for name in names]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
import dask.array, shardwrite
"""
        + IS_METHOD
    )


@pytest.mark.long
def test_processes_that_are_spawned_have_the_method():
    run("""
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from operator import attrgetter
import shardwrite, dask.array
with ProcessPoolExecutor(1, get_context("spawn"), import_module, ("shardwrite",)) as pool:
    found = pool.submit(attrgetter("__func__.__module__"), dask.array.ones(3).to_sharded_zarr).result()
    assert found == "shardwrite.operations.write"
""")


def test_a_module_knows_nothing_of_the_finder():
    run("""
import shardwrite, dask.array, inspect
from importlib.machinery import SourceFileLoader
assert type(dask.array.__loader__) is type(dask.array.__spec__.loader) is SourceFileLoader
assert inspect.getsource(dask.array).startswith("from __future__")
""")


@pytest.mark.compat
def test_every_public_name_is_what_its_module_calls_so():
    for name in shardwrite.__all__:
        value = getattr(shardwrite, name)
        if hasattr(value, "__module__"):
            assert getattr(sys.modules[value.__module__], value.__qualname__) is value
    assert set(shardwrite.__all__) <= set(dir(shardwrite))


@pytest.mark.parametrize(
    "first",
    [
        "import shardwrite.plan.plan",
        pytest.param("import shardwrite", marks=pytest.mark.long),
        pytest.param("from shardwrite import Plan", marks=pytest.mark.long),
    ],
)
def test_plan_is_the_function_whenever_the_folder_is_imported(first):
    run(
        f"{first}\nimport shardwrite, shardwrite.plan.model\nassert shardwrite.plan.__module__ == 'shardwrite.operations.plan'"
    )


@pytest.mark.long
def test_no_name_is_lost_to_a_module_of_that_name():
    run("""
import importlib, pkgutil, sys, types, shardwrite
for found in pkgutil.walk_packages(shardwrite.__path__, "shardwrite."):
    importlib.import_module(found.name)
for name in ("shardwrite", "shardwrite.engines", "shardwrite.sources", "shardwrite.stores"):
    package = sys.modules[name]
    assert not [one for one in package.__all__ if isinstance(getattr(package, one), types.ModuleType)], name
""")


def test_the_package_is_pickled_by_reference_with_a_function_that_uses_it():
    def use():
        return shardwrite.__version__

    use.__module__ = "__main__"  # then it is pickled with what it refers to
    assert cloudpickle.loads(cloudpickle.dumps(shardwrite)) is shardwrite
    assert cloudpickle.loads(cloudpickle.dumps(use))() == shardwrite.__version__


def test_folders_are_attributes_as_soon_as_the_package_is_imported():
    run(
        "import shardwrite\nassert shardwrite.engines.active_engine().kind == 'threads'\nassert shardwrite.stores.MemoryStore"
    )


def test_a_name_that_is_not_there():
    with pytest.raises(
        AttributeError, match="module 'shardwrite' has no attribute 'to_sharded_zar'"
    ):
        shardwrite.to_sharded_zar  # noqa: B018 (looked up)
    with pytest.raises(ImportError):
        exec("from shardwrite import nothing_of_the_kind")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The full name of a package whose names are imported late."""
    (tmp_path / "lazy_package").mkdir()
    (tmp_path / "lazy_package" / "one.py").write_text("def first():\n    return 1\n")
    (tmp_path / "lazy_package" / "other.py").write_text("")
    (tmp_path / "lazy_package" / "__init__.py").write_text(
        "from shardwrite._lazy import attach\n"
        "names = {'lazy_package.one': ('first', 'gone')}\n"
        "__getattr__, __dir__ = attach(__name__, names, modules=('json.tool', 'lazy_package.other'))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "lazy_package"
    for name in [name for name in sys.modules if name.partition(".")[0] == "lazy_package"]:
        del sys.modules[name]


def test_a_name_is_imported_when_it_is_asked_for(package):
    found = importlib.import_module(package)
    assert {"first", "gone", "tool", "other"} <= set(dir(found))
    assert "lazy_package.one" not in sys.modules
    assert found.first() == 1
    assert vars(found)["first"] is sys.modules["lazy_package.one"].first
    assert found.other is sys.modules["lazy_package.other"]
    assert found.tool is sys.modules["json.tool"]
    with pytest.raises(AttributeError, match="gone"):
        found.gone  # noqa: B018 (looked up)


def test_a_module_that_is_there_is_acted_on_at_once_and_one_that_is_not_when_it_comes(package):
    seen = []
    finders = sys.meta_path[:]
    try:
        when_imported("json", seen.append)
        when_imported("lazy_package.other", seen.append)
        when_imported("no_module_of_this_name", seen.append)
        assert [module.__name__ for module in seen] == ["json"]
        assert importlib.util.find_spec("no_module_of_this_name") is None
        importlib.import_module("lazy_package.other")
        assert [module.__name__ for module in seen] == ["json", "lazy_package.other"]
    finally:
        sys.meta_path[:] = finders


def test_nobody_acts_on_a_module_that_another_thread_has_not_finished(tmp_path, monkeypatch):
    (tmp_path / "slow_module.py").write_text(
        "import slow_gate\nslow_gate.begun.set()\nslow_gate.go.wait(60)\ndone = True\n"
    )
    (tmp_path / "slow_gate.py").write_text(
        "import threading\nbegun, go = threading.Event(), threading.Event()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    finders, seen = sys.meta_path[:], []
    gate = importlib.import_module("slow_gate")
    importing = threading.Thread(target=importlib.import_module, args=("slow_module",))
    waiting = threading.Thread(
        target=when_imported, args=("slow_module", lambda module: seen.append(module.done))
    )
    try:
        importing.start()
        assert gate.begun.wait(60)
        waiting.start()
        waiting.join(0.2)
        assert not seen
        gate.go.set()
        importing.join()
        waiting.join()
        assert seen == [True]
    finally:
        gate.go.set()
        sys.meta_path[:] = finders


def test_a_class_of_a_module_that_another_thread_imports_is_not_there_yet(monkeypatch):
    monkeypatch.setitem(sys.modules, "half_imported", types.ModuleType("half_imported"))
    assert if_loaded("half_imported", "Store") == ()
    assert if_loaded("not_imported", "Store") == ()
    assert if_loaded("pathlib", "Path") == (Path,)
