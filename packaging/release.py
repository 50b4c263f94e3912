"""Build and check a release: ``python packaging/release.py``.

Run this at a commit that has a tag such as ``v0.9.0``, in a clone with all commits. It refuses what
must not be released: changes that are not committed, a changelog or a citation that do not name
the version, and figures or promises that were measured too long ago. Then it makes

- ``dist/``: the wheel and the sdist, which ``twine`` has checked,
- ``build/release/notes.md``: the section of the changelog,
- ``build/release/recipe.yaml``: the recipe for conda-forge, with the version and the sha256 of the
  sdist.

With ``--rehearse 0.9.0``, it does so at any commit, as if the commit had that tag. It prints what
it would refuse, and builds. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Commands that end with another code than 0 if something was measured too long ago.
MEASURED = (("-m", "benchmarks.figures", "check"), ("tests/faults/campaign.py", "check"))
# Where GitHub runs this, it says of which repository.
REPOSITORY = "/".join(
    filter(None, (os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_REPOSITORY")))
)


def git(*words: str) -> str:
    """What git prints, nothing if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def tagged() -> str | None:
    """The version that the tag of this commit names."""
    tag = git("describe", "--tags", "--exact-match", "--match", "v[0-9]*")
    return tag.removeprefix("v") or None


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """Date and text of a version in the changelog."""
    heading = rf"^## {re.escape(version)}, (.*)\n((?:(?!## ).*\n)*)"
    found = re.search(heading, changelog, re.MULTILINE)
    return None if found is None else (found[1], found[2].strip())


def notes(text: str, version: str, repository: str) -> str:
    """A section as a page of its own: one line for each item, and links that hold elsewhere."""
    text = re.sub(r"\n +(?=\S)", " ", text)
    link = rf"[\1]({repository}/blob/v{version}/\2)" if repository else r"\1"
    return re.sub(r"\[([^\]]*)\]\((?!https?:)([^)]*)\)", link, text) + "\n"


def filled_in(recipe: str, version: str, sha256: str) -> str:
    """The recipe for conda with a version and the checksum of its sdist."""
    recipe = re.sub(r'(?m)^  version: ".*"$', f'  version: "{version}"', recipe)
    return re.sub(r'(?m)^  sha256: ".*"$', f'  sha256: "{sha256}"', recipe)


def refused(version: str | None) -> Iterator[str]:
    """Why this is not released."""
    if version is None:
        yield "this commit has no tag such as v0.9.0"
        return
    if changed := git("status", "--porcelain"):
        yield f"files are not committed:\n{changed}"
    found = section((ROOT / "CHANGELOG.md").read_text(), version)
    if found is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", found[0]):
        yield f"CHANGELOG.md has no section '## {version}, DATE'"
    if f"\nversion: {version}\n" not in (ROOT / "CITATION.cff").read_text():
        yield f"CITATION.cff does not say 'version: {version}'"
    for words in MEASURED:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, check=False, capture_output=True, text=True
        )
        if done.returncode:
            yield f"python {' '.join(words)} says:\n{done.stdout}{done.stderr}".rstrip()


def build(version: str) -> None:
    """Make all files of a release."""
    dist, more = ROOT / "dist", ROOT / "build" / "release"
    for directory in (dist, more):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    python = (sys.executable, "-m")
    env = {**os.environ, "SETUPTOOLS_SCM_PRETEND_VERSION": version}
    subprocess.run([*python, "build", "--outdir", dist, ROOT], env=env, check=True)
    wheel = dist / f"shardwrite-{version}-py3-none-any.whl"
    sdist = dist / f"shardwrite-{version}.tar.gz"
    subprocess.run([*python, "twine", "check", "--strict", wheel, sdist], check=True)
    found = section((ROOT / "CHANGELOG.md").read_text(), version)
    (more / "notes.md").write_text(notes(found[1] if found else "", version, REPOSITORY))
    recipe = (ROOT / "packaging" / "conda" / "recipe.yaml").read_text()
    sha256 = hashlib.sha256(sdist.read_bytes()).hexdigest()
    (more / "recipe.yaml").write_text(filled_in(recipe, version, sha256))
    print(f"{wheel}\n{sdist}\n{more / 'notes.md'}\n{more / 'recipe.yaml'}")


def main() -> None:
    """Refuse or build."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", metavar="VERSION", help="as if this commit had that tag")
    rehearsed: str | None = parser.parse_args().rehearse
    version = rehearsed or tagged()
    reasons = list(refused(version))
    for reason in reasons:
        print(f"{'would refuse' if rehearsed else 'refused'}: {reason}", flush=True)
    if version is None or (reasons and not rehearsed):
        sys.exit(1)
    build(version)


if __name__ == "__main__":
    main()
