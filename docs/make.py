"""Build the site of these pages: ``python docs/make.py`` writes it to ``build/site``.

Pages are copied to ``build/pages``, where those that are made from the code join them: commands,
the API, the changelog and pictures. Zensical then builds the site, strictly, and `links` looks at
the result. Nothing is written outside of ``build``.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import click
import dask.array as da

import shardwrite
from shardwrite.cli import main
from shardwrite.cli.settings import as_markdown
from shardwrite.show.png import write_png

sys.path.insert(0, str(Path(__file__).parent))
import links
from roles import path_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
# What pages link to outside of this folder, and where the site has it.
_ELSEWHERE = {
    "../README.md": "index.md",
    "../CHANGELOG.md": "changelog.md",
    "../../CHANGELOG.md": "../changelog.md",
    "../ARCHITECTURE.md": "architecture.md",
    "../../ARCHITECTURE.md": "../architecture.md",  # of the pages in folders
    "../slurm/": "slurm-scripts/",
    "../../slurm/": "../slurm-scripts/",
}


def copy_pages() -> None:
    """Copy the pages and what they show, with links that hold in the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    programs = shutil.ignore_patterns("*.py", "*.cjs", "__py*")
    shutil.copytree(Path(__file__).parent, PAGES, ignore=programs)
    shutil.copytree(ROOT / "slurm", PAGES / "slurm-scripts")
    for name in ("CHANGELOG", "ARCHITECTURE"):
        shutil.copy(ROOT / f"{name}.md", PAGES / f"{name.lower()}.md")
    for page in PAGES.rglob("*.md"):
        text = page.read_text()
        for there, here in _ELSEWHERE.items():
            text = text.replace(f"]({there}", f"]({here}")
        page.write_text(text.replace("(docs/", "("))
    citing = PAGES / "citing.md"
    data = f"```yaml\n{(ROOT / 'CITATION.cff').read_text()}```"
    citing.write_text(citing.read_text().replace("<!-- CITATION.cff -->", data))


def write_api() -> None:
    """Add every public name to the page of the API."""
    page = PAGES / "reference" / "api.md"
    names = [name for name in shardwrite.__all__ if not name.startswith("__")]
    errors = [name for name in names if name in shardwrite.errors.__all__]
    classes = [n for n in names if isinstance(getattr(shardwrite, n), type) and n not in errors]
    functions = [name for name in names if name not in errors and name not in classes]
    parts = []
    for title, those in (("Functions", functions), ("Classes", classes), ("Errors", errors)):
        parts.append(f"## {title}\n")
        parts += [f"::: {path_of(name)}\n" for name in those]
    page.write_text(page.read_text().replace("<!-- api -->", "\n".join(parts)))


def write_commands() -> None:
    """Write the page of all commands, from their help."""
    parts = ["# Commands\n", "This page is what `--help` prints. It is generated from the code.\n"]

    def add(command: click.Command, name: str, parent: click.Context | None) -> None:
        context = click.Context(command, info_name=name, parent=parent, terminal_width=96)
        parts.append(f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n")
        if isinstance(command, click.Group):
            for below in command.list_commands(context):
                found = command.get_command(context, below)
                if found is not None and not found.hidden:
                    add(found, below, context)

    add(main, "shardwrite", None)
    (PAGES / "reference" / "commands.md").write_text("\n".join(parts))


def write_settings() -> None:
    """Write the table of settings into the page about the configuration."""
    page = PAGES / "reference" / "configuration.md"
    page.write_text(page.read_text().replace("<!-- settings -->", as_markdown()))


def draw_gallery() -> None:
    """Draw the pictures of the gallery from arrays that its examples have made."""
    folder = PAGES / "gallery"
    folder.mkdir()
    work = ROOT / "build" / "gallery"
    shutil.rmtree(work, ignore_errors=True)
    x = da.random.default_rng(0).integers(0, 4000, (96, 96), dtype="uint16", chunks=16)
    near = da.indices((96, 96), chunks=16).sum(axis=0) < 96
    filled = da.where(near, x, 0).astype("uint16")
    shardwrite.to_sharded_zarr(filled, work / "sparse.zarr", shards=16, chunks=8)
    census = replace(shardwrite.census(work / "sparse.zarr"), path="sparse.zarr")
    for mode in ("light", "dark"):
        write_png(census, folder / f"census-{mode}.png", is_dark=mode == "dark")


def build() -> list[str]:
    """Build the site, and return what is wrong with it."""
    copy_pages()
    write_api()
    write_commands()
    write_settings()
    draw_gallery()
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True
    )
    return links.problems(SITE)


if __name__ == "__main__":
    found = build()
    print("\n".join(found) or f"{SITE}/index.html: every link and every anchor is there")
    sys.exit(bool(found))
