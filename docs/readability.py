"""Check how well the project's texts read: ``python docs/readability.py [DIRECTORY]``.

Each text is measured: pages one by one, all docstrings together, and all messages together.
Sentences must be short, and few of them in the passive voice. What proselint and write-good find is
an error, except for the words below. ``make check`` runs this. With a directory, the texts of
another checkout are read.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import prose
from prose import Sentence
from proselint.checks import __register__
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).resolve().parent.parent
NODE_MODULES = ROOT / "tests" / "conformance" / "node_modules"

# Words that write-good would have us avoid, and that are facts here rather than hedges.
TECHNICAL = {
    *("a number of", "all of", "completely", "consolidate", "early", "exactly", "exclusively"),
    *("few", "finalize", "finally", "however", "immediately", "in between", "is a number"),
    *("is responsible for", "it is", "it was", "just", "many", "maximum", "minimum", "modify"),
    *("multiple", "only", "outside of", "recently", "several", "shortly", "so", "there are"),
    *("there is", "therefore", "things", "type of", "x", "x,", "x;"),
}
# Checks of proselint that do not fit. "For every" is not archaic, and 0x7f is no product. A run can
# be resumed without accents. Quotes and dots are those of code. write-good finds repeated words.
OFF = (
    "archaism",
    "lexical_illusions",
    "typography.symbols.curly_quotes",
    "typography.symbols.ellipsis",
    "typography.symbols.multiplication",
    "typography.diacritical_marks",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a text may have.

    Attributes
    ----------
    mean_words, most_words : int
        Words in a sentence, on average and at most.
    passive : float
        Share of the sentences that may be in the passive voice.
    """

    mean_words: int
    most_words: int
    passive: float


PAGE = Limits(mean_words=15, most_words=30, passive=1 / 3)
CHANGES = Limits(mean_words=15, most_words=30, passive=1 / 2)  # what was done, not by whom
DOCSTRINGS = Limits(mean_words=30, most_words=30, passive=1)  # only the longest counts
MESSAGES = Limits(mean_words=10, most_words=30, passive=1 / 4)
_LEAST = 3  # sentences in the passive voice that any text may have


@dataclass(frozen=True, slots=True)
class Text:
    """A text that is measured as a whole.

    Attributes
    ----------
    name : str
        What it is called in the report.
    limits : Limits
        What it may have.
    sentences : sequence of (str, Sentence)
        The name of the file and the sentence, for each sentence.
    """

    name: str
    limits: Limits
    sentences: Sequence[tuple[str, Sentence]]


def page(name: str, text: str) -> Text:
    """Make a text of a page in Markdown."""
    limits = CHANGES if name == "CHANGELOG.md" else PAGE
    return Text(name, limits, [(name, sentence) for sentence in prose.of_page(text)])


def code(modules: Iterable[tuple[str, str]]) -> list[Text]:
    """Make two texts of names and contents of modules: of the docstrings, and of the messages."""
    docstrings: list[tuple[str, Sentence]] = []
    messages: list[tuple[str, Sentence]] = []
    for name, text in modules:
        documented, said = prose.of_code(text)
        docstrings += [(name, sentence) for sentence in documented]
        messages += [(name, sentence) for sentence in said]
    return [Text("docstrings", DOCSTRINGS, docstrings), Text("messages", MESSAGES, messages)]


def pages_of(root: Path) -> list[Path]:
    """List the pages of the project."""
    pages = [root / f"{name}.md" for name in ("README", "ARCHITECTURE", "CHANGELOG")]
    return [*pages, *sorted((root / "docs").rglob("*.md"))]


def of_project(root: Path) -> list[Text]:
    """Collect the texts of the project."""
    modules = sorted((root / "shardwrite").rglob("*.py"))
    return [
        *(page(str(path.relative_to(root)), path.read_text()) for path in pages_of(root)),
        *code((str(path.relative_to(root)), path.read_text()) for path in modules),
    ]


def too_long(text: Text) -> list[str]:
    """Find sentences that are too long, or too long on average."""
    found = [
        f"{name}:{sentence.line}: {sentence.n_words} words: {sentence.text}"
        for name, sentence in text.sentences
        if sentence.n_words > text.limits.most_words
    ]
    lengths = [s.n_words for _, s in text.sentences if s.n_words > 2]
    if sum(lengths) > text.limits.mean_words * len(lengths):
        mean = sum(lengths) / len(lengths)
        found.append(f"{text.name}: {mean:.1f} words in a sentence on average")
    return found


def of_proselint(text: Text) -> list[str]:
    """Find what proselint complains of."""
    registry = CheckRegistry()
    if not registry.checks:
        registry.register_many(__register__)
    checks = {**DEFAULT["checks"], **dict.fromkeys(OFF, False)}
    by_depth = dict(sorted(checks.items(), key=lambda check: -check[0].count(".")))
    lines = (f"{s.text}\n({number})" for number, (_, s) in enumerate(text.sentences))
    file = LintFile(text.name, "\n".join(lines))
    found = []
    for result in file.lint(Config(max_errors=1000, checks=by_depth)):
        number = (file.content.count("\n", 0, result.check_result.span[0] + 1) - 1) // 2
        name, sentence = text.sentences[number]
        message = result.check_result.message
        found.append(f"{name}:{sentence.line}: {message} In: {sentence.text}")
    return found


def of_write_good(texts: Sequence[Text]) -> list[str]:
    """Find what write-good complains of, and too many sentences in the passive voice."""
    run = subprocess.run(
        [shutil.which("node") or "node", Path(__file__).parent / "write_good.cjs"],
        input=json.dumps([s.text for text in texts for _, s in text.sentences]),
        env={**os.environ, "NODE_PATH": str(NODE_MODULES)},
        capture_output=True,
        text=True,
        check=True,
    )
    results = iter(json.loads(run.stdout))
    found = []
    for text in texts:
        passive = []
        for (name, sentence), findings in zip(text.sentences, results, strict=False):
            where = f"{name}:{sentence.line}"
            if any("passive" in reason for _, reason in findings):
                passive.append(f"{where}: passive voice: {sentence.text}")
            found += [
                f"{where}: '{words}' {reason}: {sentence.text}"
                for words, reason in findings
                if "passive" not in reason and words.lower() not in TECHNICAL
            ]
        if len(passive) > max(_LEAST, text.limits.passive * len(text.sentences)):
            found += [*passive, f"{text.name}: {len(passive)} sentences in the passive voice"]
    return found


def problems(texts: Sequence[Text]) -> list[str]:
    """Find all that does not read well.

    Without write-good, a line says so. In continuous integration, which sets the variable ``CI``,
    that is a problem, too.
    """
    found = [problem for text in texts for problem in too_long(text) + of_proselint(text)]
    if (NODE_MODULES / "write-good").is_dir():
        return found + of_write_good(texts)
    missing = "write-good is not here: run npm install in tests/conformance to check with it"
    if os.environ.get("CI"):
        return [*found, missing]
    print(missing)
    return found


def main() -> None:
    """Check the project's texts, and print what is wrong with them."""
    texts = of_project(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
    found = problems(texts)
    n_sentences = sum(len(text.sentences) for text in texts)
    print("\n".join(found) or f"{n_sentences} sentences in {len(texts)} texts read well")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
