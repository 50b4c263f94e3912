"""A sample of the fuzzer's mutants: each succeeds or ends in a typed error, soon, in little memory,
and without a loss."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fuzz


@pytest.mark.long
@pytest.mark.parametrize(("n_mutants", "seed"), [(800, 2000)])
def test_mutants(tmp_path, n_mutants, seed):
    start = time.perf_counter()
    found = fuzz.summary(
        fuzz.campaign(n_mutants, seed, directory=tmp_path), time.perf_counter() - start
    )
    assert not found["troubles"], json.dumps(found["troubles"][:5], indent=2)
    assert found["mutants"] > 0.9 * n_mutants
    assert len(found["operations"]) == len(fuzz.OPERATIONS)
    assert {"success", "SpecError", "JournalError", "CorruptShardError"} <= set(found["outcomes"])


@pytest.mark.long
def test_what_the_fuzzer_tells(tmp_path, monkeypatch):
    """A hang, an error of no type of ours, memory, and a loss are each found."""

    def hang(*_):
        time.sleep(60)

    def fail(*_):
        raise KeyError("x")

    def eat(*_):
        raise fuzz.ShardwriteError("no memory") from MemoryError()

    def lose(at, _):
        (next(path for path in sorted(Path(at).rglob("c/*/*")) if path.is_file())).unlink()

    monkeypatch.setattr(fuzz, "SECONDS", 0.5)
    worker = fuzz.Worker(tmp_path, 0)
    for operation, told in (
        (hang, "Late"),
        (fail, "KeyError"),
        (eat, "memory"),
        (lose, "look changed"),
    ):
        for name in fuzz.READS:
            monkeypatch.setitem(fuzz.OPERATIONS, name, operation)
        number = next(
            n for n in range(100) if fuzz.draw(0, n, worker.scenes)[0].operation in fuzz.READS
        )
        assert told in worker.run(number).trouble
