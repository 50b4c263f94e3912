"""What a release consists of: wheel, sdist, notes, workflows, the recipe for conda and the container."""

from __future__ import annotations

import hashlib
import importlib.util
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
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = "9.8.7"
PYTHONS = ("3.11", "3.12", "3.13")
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
def compat() -> dict[str, Any]:
    """What `tests/compat/environment.py` defines."""
    pytest.importorskip("uv")
    return runpy.run_path(str(ROOT / "tests" / "compat" / "environment.py"))


@pytest.fixture(scope="module")
def environ(compat) -> dict[str, str]:
    """Variables with which uv finds packages where pip does, and the interpreters of pyenv."""
    return compat["environ"]()


@pytest.fixture(scope="module")
def interpreters(compat, environ) -> dict[str, str]:
    """Paths of the interpreters of this machine, by their version, as in 3.12."""
    listed = compat["uv"](
        "python", "list", "--only-installed", "--output-format", "json", env=environ
    )
    found = compat["pythons"](listed, (3, 11))
    return {".".join(map(str, one.version[:2])): one.path for one in found}


@pytest.fixture
def release() -> ModuleType:
    """The program that makes a release, as a module."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "packaging" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def git(directory: Path, *words: str) -> None:
    name = ("-c", "user.name=x", "-c", "user.email=x@example.org")
    run("git", *name, *words, cwd=directory)


def tag(directory: Path, version: str) -> None:
    """Commit what a release of a version needs, and give the commit its tag."""
    texts = {
        "CHANGELOG.md": f"# Changelog\n\n## {version}, 2026-12-31\n\nAdded:\n\n- All [of it](docs/a.md).\n",
        "CITATION.cff": f"title: x\nversion: {version}\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text)
    git(directory, "add", *texts)
    git(directory, "commit", "--quiet", "--message", "x")
    git(directory, "tag", f"v{version}")


@pytest.fixture(scope="module")
def released(tmp_path_factory, environ) -> Path:
    """A clone with the tag of a release, in which the release was made; figures may be old."""
    pytest.importorskip("build")
    pytest.importorskip("twine")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone of the repository")
    clone = tmp_path_factory.mktemp("clone")
    git(ROOT, "clone", "--quiet", "--shared", "--no-tags", str(ROOT), str(clone))
    tag(clone, VERSION)
    program = "import release, sys; release.MEASURED = (); release.main()"
    run(sys.executable, "-c", program, cwd=clone / "packaging", env=environ)
    return clone


@pytest.fixture(scope="module")
def dist(released) -> Path:
    return released / "dist"


def venv(directory: Path, python: str, environ: dict[str, str], *more: str) -> Path:
    """A fresh virtual environment; its Python."""
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    assert uv is not None
    run(uv, "venv", "--quiet", "--python", python, *more, directory, cwd=ROOT, env=environ)
    return directory / "bin" / "python"


@pytest.mark.long
def test_wheel_and_sdist_are_whole_and_have_the_version_of_the_tag(released, dist):
    names = sorted(path.name for path in dist.iterdir())
    assert names == [f"shardwrite-{VERSION}-py3-none-any.whl", f"shardwrite-{VERSION}.tar.gz"]
    with zipfile.ZipFile(dist / names[0]) as wheel:
        inside = set(wheel.namelist())
        about = wheel.read(f"shardwrite-{VERSION}.dist-info/METADATA").decode()
    ours = {
        str(path.relative_to(released))
        for path in (released / "shardwrite").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in inside if ".dist-info/" not in name} == ours
    assert "shardwrite/py.typed" in inside
    assert f"\nVersion: {VERSION}\n" in about
    with tarfile.open(dist / names[1]) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert ours | {"CHANGELOG.md", "tests/test_packaging.py", "packaging/release.py"} <= packed
    assert not [name for name in packed if re.search(r"node_modules|\.venv|build/", name)]
    made = released / "build" / "release"
    assert (made / "notes.md").read_text() == "Added:\n\n- All of it.\n"
    recipe = (made / "recipe.yaml").read_text()
    assert f'version: "{VERSION}"' in recipe
    assert hashlib.sha256((dist / names[1]).read_bytes()).hexdigest() in recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Where one fresh environment after the other lies, so that what Python compiles of one serves
    the others, too."""
    return tmp_path_factory.mktemp("environments")


@pytest.mark.long
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("file", "extra"), [*(("wheel", extra) for extra in EXTRAS), ("sdist", ""), ("sdist", "all")]
)
def test_the_built_files_work_in_a_fresh_environment(
    file, extra, python, dist, interpreters, environ, tmp_path, place
):
    if python not in interpreters:
        pytest.skip(f"Python {python} is not here")
    python = venv(place / "venv", interpreters[python], environ, "--clear")
    compiled = {**os.environ, "PYTHONPYCACHEPREFIX": str(place / "compiled")}
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    path = next(dist.glob("*.whl" if file == "wheel" else "*.tar.gz"))
    what = f"shardwrite[{extra}] @ {path.as_uri()}" if extra else str(path)
    # What pip would compile on a machine without compilers is not accepted here.
    how = ("--only-binary", ":all:", "--no-binary", "shardwrite") if file == "sdist" else ()
    run(uv, "pip", "install", "--quiet", *how, "--python", python, what, cwd=tmp_path, env=environ)
    run(uv, "pip", "check", "--quiet", "--python", python, cwd=tmp_path, env=environ)
    program = IMPORTS.format(modules=EXTRAS[extra]) + (WRITES if extra in ("", "all") else "")
    run(python, "-c", program, cwd=tmp_path, env=compiled)
    version = run(python.with_name("shardwrite"), "--version", cwd=tmp_path, env=compiled)
    assert VERSION in version


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
    build, publish, announce = (release["jobs"][name] for name in ("build", "publish", "announce"))
    assert "python packaging/release.py" in [step.get("run") for step in build["steps"]]
    assert build["steps"][0]["with"]["fetch-depth"] == 0
    assert (publish["needs"], publish["permissions"]) == ("build", {"id-token": "write"})
    assert (announce["needs"], announce["permissions"]) == ("publish", {"contents": "write"})


@pytest.fixture
def tagged_clone(tmp_path, release, monkeypatch) -> Path:
    """A small repository that may be released."""
    git(tmp_path, "init", "--quiet")
    tag(tmp_path, VERSION)
    monkeypatch.setattr(release, "ROOT", tmp_path)
    monkeypatch.setattr(release, "MEASURED", (("-c", "pass"),))
    return tmp_path


def test_what_must_not_be_released_is_refused(release, tagged_clone, monkeypatch):
    def reasons():
        return list(release.refused(release.tagged()))

    assert release.tagged() == VERSION
    assert reasons() == []
    monkeypatch.setattr(release, "MEASURED", (("-c", "print('a figure is old'); exit(1)"),))
    (reason,) = reasons()
    assert reason.endswith("says:\na figure is old")
    monkeypatch.setattr(release, "MEASURED", ())
    for name, old, new in (
        ("CHANGELOG.md", "2026-12-31", "unreleased"),
        ("CITATION.cff", VERSION, "9.8.6"),
    ):
        path = tagged_clone / name
        text = path.read_text()
        path.write_text(text.replace(old, new))
        uncommitted, reason = reasons()
        assert uncommitted.startswith("files are not committed")
        assert reason.startswith(name)
        path.write_text(text)
    git(tagged_clone, "commit", "--quiet", "--allow-empty", "--message", "x")
    assert reasons() == ["this commit has no tag such as v0.9.0"]


@pytest.mark.parametrize("rehearsed", [False, True])
def test_only_a_rehearsal_builds_what_it_would_refuse(
    rehearsed, release, tagged_clone, monkeypatch, capsys
):
    built = []
    monkeypatch.setattr(release, "build", built.append)
    monkeypatch.setattr(sys, "argv", ["release.py", *(["--rehearse", VERSION] * rehearsed)])
    release.main()
    assert built == [VERSION]
    (tagged_clone / "more").touch()
    if rehearsed:
        release.main()
        assert built == [VERSION, VERSION]
    else:
        with pytest.raises(SystemExit):
            release.main()
        assert built == [VERSION]
    assert "more" in capsys.readouterr().out


def test_notes_are_the_section_of_the_changelog(release):
    changelog = (
        "# Changelog\n\n## 0.2.0, 2026-12-31\n\nAdded:\n\n- A thing of\n  two lines, see [how](docs/a.md#b)\n"
        "  and [who](https://example.org).\n\n## 0.1.0, 2026-01-31\n\n- Old.\n"
    )
    date, text = release.section(changelog, "0.2.0")
    assert date == "2026-12-31"
    assert release.section(changelog, "0.3.0") is None
    assert release.section(changelog, "0.1.0") == ("2026-01-31", "- Old.")
    rest = "and [who](https://example.org).\n"
    head = "Added:\n\n- A thing of two lines, see"
    assert release.notes(text, "0.2.0", "") == f"{head} how {rest}"
    link = "[how](https://example.org/x/blob/v0.2.0/docs/a.md#b)"
    assert release.notes(text, "0.2.0", "https://example.org/x") == f"{head} {link} {rest}"


def test_version_and_changelog_follow_the_conventions():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version, _, when = headings[0].partition(", ")
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert re.fullmatch(r"unreleased|\d{4}-\d\d-\d\d", when)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+, \d{4}-\d\d-\d\d", one) for one in headings[1:])
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f'version: "{version}"' in (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()


def test_a_checkout_that_was_never_installed_says_so(tmp_path):
    shutil.copytree(ROOT / "shardwrite", tmp_path / "shardwrite")
    program = "import shardwrite; print(shardwrite.__version__)"
    # Without the packages of this environment, among which the version is looked for.
    assert run(sys.executable, "-S", "-c", program, cwd=tmp_path) == "0+unknown\n"


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


def test_the_recipe_for_conda_is_rendered(release):
    rattler_build = pytest.importorskip("rattler_build")
    text = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    recipe = rattler_build.Stage0Recipe.from_yaml(release.filled_in(text, VERSION, "ab" * 32))
    (variant,) = recipe.render(rattler_build.VariantConfig())
    rendered = variant.recipe.to_dict()
    assert rendered["package"] == {"name": "shardwrite", "version": VERSION}
    (source,) = rendered["source"]
    assert source["url"].endswith(f"/s/shardwrite/shardwrite-{VERSION}.tar.gz")
    assert source["sha256"] == "ab" * 32
    assert rendered["requirements"]["host"][0] == "python 3.11.*"


@pytest.mark.long
def test_the_steps_of_the_recipe_work_in_a_fresh_environment(dist, environ, tmp_path):
    yaml = pytest.importorskip("yaml")
    recipe = yaml.safe_load((ROOT / "packaging" / "conda" / "recipe.yaml").read_text())
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        sdist.extractall(tmp_path, filter="data")
    python = venv(tmp_path / "venv", sys.executable, environ, "--seed")
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    names = {"dask-core": "dask[array]"}  # conda has no extras
    _, *host = recipe["requirements"]["host"]
    wanted = [line.split() for line in [*host, *recipe["requirements"]["run"][1:]]]
    packages = ["".join((names.get(line[0], line[0]), *line[1:])) for line in wanted]
    run(uv, "pip", "install", "--quiet", "--python", python, *packages, cwd=tmp_path, env=environ)
    path = f"{python.parent}{os.pathsep}{environ['PATH']}"
    env = {**environ, "PATH": path, "PYTHON": str(python)}
    script = recipe["build"]["script"].replace("${{ PYTHON }}", "$PYTHON")
    run("bash", "-euc", script, cwd=tmp_path / f"shardwrite-{VERSION}", env=env)
    python_test, script_test = recipe["tests"]
    assert python_test["python"]["pip_check"]
    run(python, "-m", "pip", "check", cwd=tmp_path, env=env)
    for module in python_test["python"]["imports"]:
        run(python, "-c", f"import {module}", cwd=tmp_path, env=env)
    for line in script_test["script"]:
        run("bash", "-euc", line, cwd=tmp_path, env=env)
    assert VERSION in run("bash", "-euc", "shardwrite --version", cwd=tmp_path, env=env)


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
    assert sections["files"].split() == ["dist", "/opt/shardwrite"]


@pytest.mark.long
def test_the_lines_of_the_container_work_in_a_fresh_environment(container, dist, environ, tmp_path):
    _, sections = container
    _, target = sections["files"].split()
    shutil.copytree(dist, tmp_path / Path(target).relative_to("/"))
    python = venv(tmp_path / "venv", sys.executable, environ, "--seed")
    uv = shutil.which("uv", path=Path(sys.executable).parent)
    cache = run(uv, "cache", "dir", cwd=tmp_path, env=environ).strip()
    path = f"{python.parent}{os.pathsep}{environ['PATH']}"
    env = {**environ, "PATH": path, "UV_CACHE_DIR": cache}
    post = sections["post"].replace(target, str(tmp_path / Path(target).relative_to("/")))
    run("bash", "-euo", "pipefail", "-c", post, cwd=tmp_path, env=env)
    run("bash", "-euo", "pipefail", "-c", sections["test"], cwd=tmp_path, env=env)
