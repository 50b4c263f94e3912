"""What calls of `UInt64Shards` tell: what they have written, and what they have found."""

from __future__ import annotations

from dataclasses import dataclass

from shardwrite.results import Facts, Result, counted, human


@dataclass(frozen=True, slots=True)
class UInt64Written(Result):
    """Result of :meth:`UInt64Shards.write` and :meth:`UInt64Shards.remove`.

    Attributes
    ----------
    n_shards, n_chunks : int
        Number of shards, and of the chunks given, that were written.
    n_kept : int
        Number of shards that were there and were left as they are.
    nbytes : int
        Bytes of the shards that were written.
    """

    n_shards: int
    n_chunks: int
    n_kept: int
    nbytes: int

    def __str__(self) -> str:
        kept = f"; {counted(self.n_kept, 'shard')} kept" if self.n_kept else ""
        return (
            f"{counted(self.n_chunks, 'chunk')} in {counted(self.n_shards, 'shard')}, "
            f"{human(self.nbytes)}{kept}"
        )

    def __repr__(self) -> str:
        return f"<UInt64Written: {self}>"

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        headline = [
            (f"{self.n_chunks:,}", "chunks written"),
            (f"{self.n_shards:,}", "shards"),
            (human(self.nbytes), "stored"),
        ]
        rows = [("shards that were kept", f"{self.n_kept:,}")]
        return Facts(title="chunks by id", headline=headline, rows=rows)


@dataclass(frozen=True, slots=True)
class UInt64Report(Result):
    """Report of :meth:`UInt64Shards.verify`.

    Attributes
    ----------
    n_shards, n_chunks : int
        Number of shards, and of chunks in shards without faults.
    stored_nbytes, unused_nbytes : int
        Bytes of the shards without faults, and those of them that no index names. They may lie
        before chunks, such as the fragments of a mesh before its manifest.
    problems : tuple of (str, str)
        Key and fault of each shard that is damaged; empty if none is.
    warnings : tuple of str
        What is no fault of a shard, and should be known.
    """

    n_shards: int
    n_chunks: int
    stored_nbytes: int
    unused_nbytes: int
    problems: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether no fault was found."""
        return not self.problems

    def __str__(self) -> str:
        first = (
            f"{counted(self.n_shards, 'shard')}, {counted(self.n_chunks, 'chunk')}, "
            f"{human(self.stored_nbytes)}"
        )
        if self.unused_nbytes:
            first += f", of which {human(self.unused_nbytes)} are named by no index"
        problems = (f"{key}: {message}" for key, message in self.problems)
        return "\n".join([first, *problems, *(f"warning: {text}" for text in self.warnings)])

    def __repr__(self) -> str:
        found = counted(len(self.problems), "problem") if self.problems else "no problems"
        return (
            f"<UInt64Report: {counted(self.n_chunks, 'chunk')} in "
            f"{counted(self.n_shards, 'shard')}, {found}>"
        )

    def facts(self) -> Facts:
        """Return what is shown of the result, as text and in notebooks."""
        return Facts(
            title="verified",
            headline=[
                (f"{self.n_chunks:,}", "chunks"),
                (f"{self.n_shards:,}", "shards"),
                (human(self.stored_nbytes), "stored"),
                (f"{len(self.problems):,}" if self.problems else "no", "problems"),
            ],
            problems=self.problems,
            notes=[("warning", text) for text in self.warnings],
            rows=[("bytes that no index names", human(self.unused_nbytes))],
        )
