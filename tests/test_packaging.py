"""What a release consists of: wheel, sdist, workflows, the recipe for conda and the container."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import shardwrite

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# What users may ask for, and a module that each brings.
EXTRAS = {
    "": "shardwrite",
    "fast": "isal, zlib_ng, zstandard",
    "hdf5": "h5py, hdf5plugin",
    "tiff": "tifffile",
    "nifti": "nibabel",
    "precomputed": "PIL, compressed_segmentation, simplejpeg",
    "netcdf3": "scipy",
    "blosc2": "blosc2",
    "cf": "xarray",
    "cloud": "obstore",
    "xarray": "xarray",
    "icechunk": "icechunk",
    "plot": "matplotlib",
    "slurm": "cryptography, dask_jobqueue",
    "demo": "nibabel, zstandard",
    "all": "h5py, tifffile, nibabel, scipy, xarray, matplotlib, dask_jobqueue, isal, PIL",
}
FOR_DEVELOPERS = {"test", "bench", "check", "docs"}
# Nothing of the checkout may be seen from there.
IMPORTS = """
import pathlib, sys, shardwrite, {modules}
assert pathlib.Path(shardwrite.__file__).is_relative_to(sys.prefix), shardwrite.__file__
"""
WRITES = """
import dask.array as da
x = da.arange(64, chunks=16).reshape(8, 8)
assert x.to_sharded_zarr("x.zarr", shards=4, chunks=2).n_shards == 4
assert shardwrite.verify("x.zarr", deep=True, against=x).is_good
"""


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    environ = {k: v for k, v in (env or os.environ).items() if k != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def environ() -> dict[str, str]:
    """Variables with which uv finds packages where pip does."""
    pytest.importorskip("uv")
    return runpy.run_path(str(ROOT / "tests" / "compat" / "environment.py"))["environ"]()


@pytest.fixture(scope="module")
def dist(tmp_path_factory, environ) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    run(
        sys.executable, "-m", "build", "--installer=uv", "--outdir", out, ROOT, cwd=out, env=environ
    )
    return out


def venv(directory: Path, environ: dict[str, str], *more: str) -> Path:
    """A fresh virtual environment; its Python."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    assert uv is not None
    run(uv, "venv", "--quiet", "--python", sys.executable, *more, directory, cwd=ROOT, env=environ)
    return directory / "bin" / "python"


@pytest.mark.long
def test_wheel_and_sdist_are_whole(dist):
    pytest.importorskip("twine")
    names = sorted(path.name for path in dist.iterdir())
    version = shardwrite.__version__
    assert names == [f"shardwrite-{version}-py3-none-any.whl", f"shardwrite-{version}.tar.gz"]
    run(sys.executable, "-m", "twine", "check", "--strict", *dist.iterdir(), cwd=dist)
    with zipfile.ZipFile(dist / names[0]) as wheel:
        inside = set(wheel.namelist())
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "shardwrite").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in inside if ".dist-info/" not in name} == ours
    assert "shardwrite/py.typed" in inside
    with tarfile.open(dist / names[1]) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert ours | {"CHANGELOG.md", "tests/test_packaging.py", "packaging/shardwrite.def"} <= packed
    assert not [name for name in packed if re.search(r"node_modules|\.venv|build/", name)]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where one fresh environment after the other lies, so that what Python compiles of one serves
    the others, too."""
    return tmp_path_factory.mktemp("environments")


@pytest.mark.long
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_wheel_works_in_a_fresh_environment(extra, dist, environ, tmp_path, place):
    python = venv(place / "venv", environ, "--clear")
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    wheel = next(dist.glob("*.whl"))
    what = f"shardwrite[{extra}] @ {wheel.as_uri()}" if extra else str(wheel)
    run(uv, "pip", "install", "--quiet", "--python", python, what, cwd=tmp_path, env=environ)
    run(uv, "pip", "check", "--quiet", "--python", python, cwd=tmp_path, env=environ)
    program = IMPORTS.format(modules=EXTRAS[extra]) + (WRITES if extra in ("", "all") else "")
    run(python, "-c", program, cwd=tmp_path, env=compiled)
    version = run(python.with_name("shardwrite"), "--version", cwd=tmp_path, env=compiled)
    assert shardwrite.__version__ in version


def test_every_extra_for_users_is_tried():
    assert set(PROJECT["optional-dependencies"]) == (EXTRAS.keys() - {""}) | FOR_DEVELOPERS


def test_workflows_and_citation_fit_their_schemas(tmp_path):
    pytest.importorskip("check_jsonschema")
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    run(*checker, "vendor.github-workflows", *WORKFLOWS, cwd=ROOT)
    run(*checker, "vendor.citation-file-format", ROOT / "CITATION.cff", cwd=ROOT)
    bad = tmp_path / "bad.yml"
    bad.write_text(WORKFLOWS[0].read_text().replace("runs-on:", "runs-upon:"))
    with pytest.raises(AssertionError, match=r"bad\.yml"):
        run(*checker, "vendor.github-workflows", bad, cwd=ROOT)


def test_the_release_workflow_publishes_what_it_has_checked():
    yaml = pytest.importorskip("yaml")
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    commands = [step.get("run", "") for step in build["steps"]]
    order = ["__version__", "CHANGELOG.md", "-m build", "twine check --strict"]
    places = [next(k for k, c in enumerate(commands) if what in c) for what in order]
    assert places == sorted(places)
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    # The checks are those of the files that are here: run them as a release of this version does.
    version = "9.8.7"
    env = {**os.environ, "GITHUB_REF_NAME": f"v{version}"}
    for place, file in zip(places[:2], ("shardwrite/_version.py", "CHANGELOG.md"), strict=True):
        for text, code in ((f'__version__ = "{version}"\n## {version}, 2026-01-31\n', 0), ("", 1)):
            command = commands[place].replace(file, "/dev/stdin")
            done = subprocess.run(["bash", "-c", command], env=env, input=text, text=True)
            assert done.returncode == code, (file, text)


def test_version_and_changelog_follow_the_conventions():
    version = shardwrite.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(version)}, (unreleased|\d{{4}}-\d\d-\d\d)", headings[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+, \d{4}-\d\d-\d\d", one) for one in headings[1:])
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_recipe_for_conda_has_the_dependencies_of_the_project():
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    assert recipe["schema_version"] == 1
    assert recipe.keys() >= {
        "context",
        "package",
        "source",
        "build",
        "requirements",
        "tests",
        "about",
    }
    assert recipe["context"]["version"] == shardwrite.__version__
    assert PROJECT["requires-python"] == f">={recipe['context']['python_min']}"
    assert re.fullmatch("[0-9a-f]{64}", recipe["source"]["sha256"])
    assert recipe["about"]["license"] == PROJECT["license"]
    assert (ROOT / recipe["about"]["license_file"]).is_file()
    entry_points = dict(line.split(" = ") for line in recipe["build"]["python"]["entry_points"])
    assert entry_points == PROJECT["scripts"]
    _, *others = recipe["requirements"]["run"]
    names = {"dask[array]": "dask-core"}  # conda has no extras
    wanted = [re.fullmatch(r"([\w\[\]-]+)(>=.*)", line) for line in PROJECT["dependencies"]]
    assert all(wanted)
    assert others == [f"{names.get(one[1], one[1])} {one[2]}" for one in wanted]
    # Each value that is filled in is one that the context or conda-forge's build gives.
    text = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    given = {*recipe["context"], "name[0]", "PYTHON"}
    assert set(re.findall(r"\$\{\{ (.*?) \}\}", text)) <= given


@pytest.fixture(scope="module")
def container():
    """The definition of the container, and its lines by section."""
    parsers = pytest.importorskip("spython.main.parse.parsers")
    path = ROOT / "packaging" / "shardwrite.def"
    (recipe,) = parsers.get_parser("singularity")(str(path)).parse().values()
    sections = re.split(r"^%(\w+)\n", path.read_text(), flags=re.MULTILINE)
    return recipe, dict(zip(sections[1::2], sections[2::2], strict=True))


def test_the_container_is_parsed(container):
    recipe, sections = container
    assert recipe.fromHeader == "python:3.13-slim"
    assert recipe.cmd == 'exec shardwrite "$@"'
    post = [line.strip() for line in sections["post"].strip().splitlines()]
    assert post == recipe.install[: len(post)]
    assert [line.split()[0] for line in sections["files"].strip().splitlines()] == [
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "shardwrite",
    ]


@pytest.mark.long
def test_the_lines_of_the_container_work_in_a_fresh_environment(container, environ, tmp_path):
    _, sections = container
    for line in sections["files"].strip().splitlines():
        source, target = line.split()
        place = tmp_path / Path(target).relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, place)
    python = venv(tmp_path / "venv", environ, "--seed")
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    cache = run(uv, "cache", "dir", cwd=tmp_path, env=environ).strip()
    path = f"{python.parent}{os.pathsep}{environ['PATH']}"
    env = {**environ, "PATH": path, "UV_CACHE_DIR": cache}
    post = sections["post"].replace("/opt/shardwrite", str(tmp_path / "opt" / "shardwrite"))
    run("bash", "-euo", "pipefail", "-c", post, cwd=tmp_path, env=env)
    run("bash", "-euo", "pipefail", "-c", sections["test"], cwd=tmp_path, env=env)
