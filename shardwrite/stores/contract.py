"""Contract of a store, as a suite that anyone can run who writes one.

`CLAUSES` says what every store does. A store also has each capability that it claims, and refuses
what it does not claim.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import cloudpickle

from shardwrite.errors import SpecError, StoreError
from shardwrite.stores.base import Capability, Store, Transaction, require
from shardwrite.stores.removal import Proof
from shardwrite.stores.whole import WholeStore

__all__ = ["CLAUSES", "BrokenContractError", "check_store"]

# ---- Checks, one function for each clause


_ODD_KEYS = ("c/0/0/0", ".zattrs", "data.json", "a b/ü", "100%/+#,=~;@!'&$()", "x.y-z_0")
_BAD_KEYS = ("", "/c", "..", "../c", "c/../d", "c//d", "./c", "c/", "c\0")
_N = 100_000


class _LeftError(Exception):
    """Leaves a transaction."""


class Subject:
    """The store under test, with shorthands."""

    def __init__(self, store: Store, run_path: Path) -> None:
        self.store, self.run_path = store, run_path
        self.can = store.capabilities

    def begin(self, attempt: str = "run.1", *keys: str) -> Transaction:
        """Start a transaction that may remove `keys`."""
        proof = Proof(self.run_path, {"attempt": attempt}, lambda: keys)
        return self.store.transaction("none", attempt, proof=proof)

    def put(self, key: str, *data: bytes) -> None:
        """Put an object of several buffers."""
        with self.begin() as transaction:
            writer = transaction.create(key)
            _same(writer.write(data), sum(map(len, data)), "the number of bytes written")
            writer.finish()
            _same(self.holds(key), b"".join(data), "a finished object")
        _same(transaction.committed, {key}, "the keys that are committed")

    def holds(self, key: str) -> bytes | None:
        """Bytes of an object; None if it is missing."""
        reader = self.store.open(key)
        if reader is None:
            _same(self.store.version(key), None, "the version of a missing object")
            _same(self.store.read_whole(key, 1), None, "the bytes of a missing object")
            return None
        with reader:
            _same(reader.version, self.store.version(key), "the version of an open object")
            data = reader.read(0, reader.nbytes)
        for most in {0, len(data) // 2, len(data), len(data) + 1}:
            _same(self.store.read_whole(key, most), data[: most + 1], "an object read at once")
        return data

    def keys(self, prefix: str = "") -> list[str]:
        """Sorted keys."""
        return sorted(self.store.list_keys(prefix))


def _same(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise AssertionError(f"{what} is {found!r:.80} and not {wanted!r:.80}")


def _refuses(call: Callable[[], object], what: str, kind: type[Exception] = StoreError) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{what} is not refused")


def whole(on: Subject) -> None:
    """An object of any size, of one buffer or many, is read as it was written."""
    _same(isinstance(on.store, Store), True, "a whole store")
    _same(on.holds("c/0"), None, "a missing object")
    _same(on.store.size("c/0"), None, "the size of a missing object")
    for n, data in enumerate(([], [b""], [b"abc"], [b"a", b"", b"bc"] * 2000, [bytes(_N)])):
        on.put(f"c/{n}", *data)
        _same(on.store.size(f"c/{n}"), sum(map(len, data)), "the size of an object")
    buffer = bytearray(b"one")
    with on.begin() as transaction:
        writer = transaction.create("kept")
        writer.write([buffer])
        buffer[:] = b"two"  # buffers of the caller are used for the next object
        writer.finish()
    _same(on.holds("kept"), b"one", "an object whose buffer was reused")


def ranges(on: Subject) -> None:
    """Exactly the range that is asked for is read; past the end is an error."""
    on.put("c/0", bytes(range(100)))
    reader = on.store.open("c/0")
    assert reader is not None
    with reader:
        for start, n in ((0, 100), (0, 1), (99, 1), (40, 20), (50, 0), (100, 0)):
            _same(reader.read(start, n), bytes(range(start, start + n)), f"range {start}+{n}")
        for start, n in ((0, 101), (99, 2), (100, 1), (500, 1)):
            _refuses(partial(reader.read, start, n), f"range {start}+{n} of 100 bytes")


def unfinished(on: Subject) -> None:
    """An unfinished object is invisible, and leaves nothing if it is aborted."""
    on.put("old", b"old")
    for end in ("abort", "leave", "raise"):
        with contextlib.suppress(_LeftError), on.begin() as transaction:
            writers = [transaction.create(key) for key in ("old", "new")]
            for writer in writers:
                writer.write([b"half"])
            _same((on.holds("old"), on.holds("new")), (b"old", None), "what is visible")
            _same(on.keys(), ["old"], "the list of keys")
            if end == "abort":
                for writer in writers:
                    writer.abort()
            if end == "raise":
                raise _LeftError
        _same((on.holds("old"), on.holds("new")), (b"old", None), "what is left")
        _same((on.keys(), transaction.committed), (["old"], set()), "what is left")


def guards(on: Subject) -> None:
    """A guard that raises keeps an object from being visible, or removed."""

    def guard() -> None:
        raise KeyError("guard")

    on.put("old", b"old")
    proof = Proof(on.run_path, {"attempt": "run.1"}, lambda: ["old"])
    for outer, inner in ((guard, None), (None, guard)):
        for act in ("finish", "remove"):
            transaction = on.store.transaction("none", "run.1", outer, proof=proof)
            try:
                with transaction:
                    writer = transaction.create("old")
                    writer.write([b"new"])
                    if act == "finish":
                        writer.finish(inner)
                    else:
                        transaction.remove("old", inner)
            except KeyError:
                _same(on.holds("old"), b"old", f"an object whose guard stopped {act}")
            else:
                raise AssertionError(f"{act} did not pass on the error of its guard")


def attempts(on: Subject) -> None:
    """Two attempts at one object do not disturb each other; the last one stays."""
    with on.begin("run.1") as one, on.begin("run.2") as two:
        first, second = one.create("c/0"), two.create("c/0")
        for _ in range(3):
            first.write([b"one"])
            second.write([b"two"])
        second.finish()
        _same(on.holds("c/0"), b"twotwotwo", "the second attempt")
        first.finish()
    _same(on.holds("c/0"), b"oneoneone", "the first attempt, which ended last")


def keys(on: Subject) -> None:
    """Keys may have odd characters; those that leave the store are refused."""
    for key in _ODD_KEYS:
        on.put(key, key.encode())
    for key in _ODD_KEYS:
        _same(on.holds(key), key.encode(), key)
    _same(on.keys(), sorted(_ODD_KEYS), "the list of keys")
    for key in _BAD_KEYS:
        _refuses(partial(on.store.open, key), f"opening {key!r}")
        _refuses(partial(on.store.version, key), f"the version of {key!r}")
        with on.begin("run.1", key) as transaction:
            _refuses(partial(transaction.create, key), f"creating {key!r}")
            _refuses(partial(transaction.remove, key), f"removing {key!r}")


def listing(on: Subject) -> None:
    """Exactly the visible objects are listed; a path gives a store below."""
    keys = [f"{name}/{i}" for name in ("a", "ab", "a/c") for i in range(12)]
    for key in keys:
        on.put(key, key.encode())
    _same(on.keys(), sorted(keys), "the list of all keys")
    _same(on.keys("a/c/"), sorted(keys[24:]), "the list below a/c/")
    _same(on.keys("a/"), sorted(keys[:12] + keys[24:]), "the list below a/")
    _same(on.keys("b/"), [], "the list below a missing prefix")
    below = Subject(on.store.at("a"), on.run_path)
    _same(below.keys("c/"), sorted(key[2:] for key in keys[24:]), "the list in a store below")
    below.put("d", b"below")
    _same((below.holds("c/3"), on.holds("a/d")), (b"a/c/3", b"below"), "objects by both paths")


def removal(on: Subject) -> None:
    """A removed object is gone, and no other; none is without a proof."""
    for key in ("c/0", "c/00", "c/[0-1]", "c/1"):
        on.put(key, key.encode())
    with on.begin("run.1", "c/1") as transaction:
        _refuses(lambda: transaction.remove("c/0"), "removing what the proof does not name")
    with on.store.transaction("none", "run.1") as transaction:
        _refuses(lambda: transaction.remove("c/0"), "removing without a proof")
    with on.begin("run.1", "c/[0-1]", "never") as transaction:
        transaction.remove("c/[0-1]")
        _same((on.holds("c/[0-1]"), on.holds("c/1")), (None, b"c/1"), "what is left")
        transaction.remove("c/[0-1]")
        transaction.remove("never")
    _same(on.keys(), ["c/0", "c/00", "c/1"], "the list of keys")


def versions(on: Subject) -> None:
    """The version changes when an object is replaced by another of its size."""
    seen = []
    for n in range(5):
        on.put("c/0", b"%d" % n)
        on.put("c/1", b"other")
        version = on.store.version("c/0")
        _same(version is not None and version not in seen, True, "the version is a new one")
        _same(on.store.version("c/0"), version, "the version of the same object")
        seen.append(version)


def threads(on: Subject) -> None:
    """Threads can write different keys at once."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: on.put(f"t/{n % 7}/{n}", b"%d," % n * 1000), range(64)))
    for n in range(64):
        _same(on.holds(f"t/{n % 7}/{n}"), b"%d," % n * 1000, f"the object of thread {n}")


def atomic(on: Subject) -> None:
    """Replace in one step: a reader sees the old object or the new one, and never a part."""
    states = [b"a" * _N, b"b" * (_N // 2), b"c" * (2 * _N)]

    def write() -> None:
        for n in range(30):
            on.put("c/0", states[n % 3])

    on.put("c/0", states[2])
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        while not writing.done():
            reader = on.store.open("c/0")
            assert reader is not None, "an object that is replaced is missing for a while"
            with reader:
                try:
                    data = reader.read(0, reader.nbytes)
                except StoreError:
                    _same(Capability.SNAPSHOT in on.can, False, "an open reader that fails")
                    continue
            if on.store.version("c/0") == reader.version:  # else see `snapshot`
                _same(data in states, True, "an object that is one of those written")
        writing.result()


def durable(on: Subject) -> None:
    """Keep objects durably (only whether they are visible can be seen here)."""
    for durability in ("full", "batch"):
        keys = {f"{durability}/{n}" for n in range(3)}
        with on.store.transaction(durability, "run.1") as transaction:
            for key in sorted(keys):
                writer = transaction.create(key)
                writer.write([key.encode()])
                writer.finish()
        _same(transaction.committed, keys, "the keys that are committed")
        _same([on.holds(key) for key in keys], [key.encode() for key in keys], "what is kept")


def not_durable(on: Subject) -> None:
    """Refuse the levels that cannot be kept."""
    for durability in ("full", "batch"):
        begin = partial(on.store.transaction, durability, "run.1")
        _refuses(begin, f"durability={durability!r}", SpecError)


def shared(on: Subject) -> None:
    """See the same objects from a store that was pickled."""
    on.put("c/0", b"mine")
    other = Subject(cloudpickle.loads(cloudpickle.dumps(on.store)), on.run_path)
    _same(other.holds("c/0"), b"mine", "an object in the store that was pickled")
    _same(other.store.version("c/0"), on.store.version("c/0"), "its version")
    _same(other.can, on.can, "what the store that was pickled can do")
    other.put("c/1", b"other")
    _same(on.holds("c/1"), b"other", "an object that the store that was pickled has put")


def not_shared(on: Subject) -> None:
    """Refuse to be pickled."""
    _refuses(partial(cloudpickle.dumps, on.store), "pickling", SpecError)


def snapshot(on: Subject) -> None:
    """Read on from an object that was replaced or removed."""
    for act in ("replace", "remove"):
        on.put("c/0", b"a" * _N)
        reader = on.store.open("c/0")
        assert reader is not None
        with reader, on.begin("run.1", "c/0") as transaction:
            if act == "replace":
                on.put("c/0", b"b")
            else:
                transaction.remove("c/0")
            _same(reader.read(0, _N), b"a" * _N, f"an open object after {act}")


def patch(on: Subject) -> None:
    """Overwrite what was appended, while later bytes stay and follow."""
    with on.begin() as transaction:
        writer = transaction.create("c/0")
        writer.write([bytes(8), b"data"])
        writer.write_at(2, b"abc")
        writer.write([b"end"])
        writer.finish()
    _same(on.holds("c/0"), b"\0\0abc\0\0\0dataend", "a patched object")


def skip(on: Subject) -> None:
    """Leave gaps of zeros, at the end too."""
    with on.begin() as transaction:
        writer = transaction.create("c/0")
        for n in (2, _N):
            writer.write([b"ab"])
            writer.skip(n)
        writer.finish()
    _same(on.holds("c/0"), b"ab\0\0ab" + bytes(_N), "an object with gaps")


def copy(on: Subject) -> None:
    """Copy a range of another object, and go on after it."""
    on.put("c/0", bytes(range(256)) * 1000)
    reader = on.store.open("c/0")
    assert reader is not None
    with reader, on.begin() as transaction:
        writer = transaction.create("c/1")
        writer.write([b"before"])
        writer.copy(reader, 255, 70_000)
        writer.write([b"after"])
        writer.finish()
    wanted = b"before" + (bytes(range(256)) * 1000)[255:70_255] + b"after"
    _same(on.holds("c/1"), wanted, "an object with a copied range")


def edit(on: Subject) -> None:
    """Modify an object in place, and notice that it is another."""
    on.put("c/0", b"0123456789")
    version = on.store.version("c/0")
    with on.store.edit("c/0") as editor:
        editor.check_version(version)
        editor.write_at(8, b"abcd")
        editor.sync()
        _refuses(partial(editor.check_version, version), "the old version of a modified object")
    _same(on.holds("c/0"), b"01234567abcd", "a modified object")
    _same(on.store.version("c/0") != version, True, "the version is a new one")


def exclusive(on: Subject) -> None:
    """Create an object that is missing, once."""
    with ThreadPoolExecutor(8) as pool:
        for key in ("a/0", "a/1", "b"):
            tokens = [b"%d" % n for n in range(16)]
            won = list(pool.map(partial(on.store.create_new, key), tokens))
            _same(sum(won), 1, "the number of those who created it")
            _same(on.holds(key), tokens[won.index(True)], "an object that was created once")
            _same(on.store.create_new(key, b"late"), False, "the answer to one who comes late")


def conditional(on: Subject) -> None:
    """Replace the version that is expected, and nothing else."""

    def replace(data: bytes, version: object) -> None:
        with on.begin() as transaction:
            writer = transaction.create("c/0")
            writer.write([data])
            writer.expect(version)
            writer.finish()

    replace(b"first", None)
    first = on.store.version("c/0")
    _refuses(partial(replace, b"late", None), "a new object where one stands")
    replace(b"second", first)
    _refuses(partial(replace, b"late", first), "to replace what is not there any more")
    _same(on.holds("c/0"), b"second", "an object that late ones have not replaced")
    with on.begin("run.1", "c/0") as transaction:
        transaction.remove("c/0")
    _refuses(partial(replace, b"late", first), "to replace what was removed")
    _same(on.holds("c/0"), None, "an object that was removed")


def state(on: Subject) -> None:
    """A store that keeps the state of runs lets one of several writers win."""
    if not on.store.keeps_state:
        return
    store = on.store
    assert isinstance(store, WholeStore), "a store of whole objects can hold the state of runs"
    store.prepare()
    for needed in (Capability.EXCLUSIVE, Capability.CONDITIONAL, Capability.SHARED):
        require(store, needed, field="keeps_state", value=True)
    other = cloudpickle.loads(cloudpickle.dumps(store))
    assert isinstance(other, WholeStore), "what another process gets"
    names = [f"state/{n:08}" for n in range(5)]
    for name in names:
        _same(store.create_new(name, name.encode()), True, "the first to create an object")
        _same(other.create_new(name, b"late"), False, "the second one")
    _same(sorted(other.list_keys("state/")), names, "what another process lists")
    version = other.version(names[0])
    store.replace_object(store.prefix + names[0], bytearray(b"renewed"), version)
    _refuses(
        lambda: other.replace_object(other.prefix + names[0], bytearray(b"late"), version),
        "to replace what another process has replaced",
    )
    _same(other.read_whole(names[0], 100), b"renewed", "what another process reads")
    store.remove_object(store.prefix + names[0])
    _same(other.version(names[0]), None, "the version of what was removed")
    times = [store.changed_at(name) or 0.0 for name in names[1:]]
    _same(times, sorted(times), "a clock that goes forward")


def without(method: str, on: Subject) -> None:
    """Refuse the method of a capability."""
    on.put("c/0", b"abc")
    reader = on.store.open("c/0")
    assert reader is not None
    with reader, on.begin() as transaction:
        writer = transaction.create("c/1")
        writer.write([b"abc"])
        calls: dict[str, Callable[[], object]] = {
            "write_at": partial(writer.write_at, 0, b"x"),
            "skip": partial(writer.skip, 2),
            "expect": partial(writer.expect, None),
            "copy": partial(writer.copy, reader, 0, 2),
            "edit": partial(on.store.edit, "c/0"),
            "create_new": partial(on.store.create_new, "c/2", b"abc"),
        }
        _refuses(calls[method], f"{method}, which the store does not claim,")


def nothing(on: Subject) -> None:
    """Nothing is to be seen from outside."""


CAPABILITIES: dict[Capability, tuple[Callable[[Subject], None], Callable[[Subject], None]]] = {
    Capability.ATOMIC: (atomic, nothing),
    Capability.DURABLE: (durable, not_durable),
    Capability.SHARED: (shared, not_shared),
    Capability.SNAPSHOT: (snapshot, nothing),
    Capability.PATCH: (patch, partial(without, "write_at")),
    Capability.SKIP: (skip, partial(without, "skip")),
    Capability.COPY: (copy, partial(without, "copy")),
    Capability.EDIT: (edit, partial(without, "edit")),
    Capability.EXCLUSIVE: (exclusive, partial(without, "create_new")),
    Capability.CONDITIONAL: (conditional, partial(without, "expect")),
}
"""For each capability, the check of a store that claims it, and of one that does not."""


def capability(capability: Capability, on: Subject) -> None:
    """Check a capability as the store claims it."""
    ask = partial(require, on.store, capability, field="strategy", value="any")
    is_claimed, (has, has_not) = capability in on.can, CAPABILITIES[capability]
    if is_claimed:
        ask()
        has(on)
    else:
        _refuses(ask, "asking for it", SpecError)
        has_not(on)


CLAUSES: dict[str, Callable[[Subject], None]] = {
    "An object of any size, of one buffer or many, is read as it was written.": whole,
    "Exactly the range that is asked for is read; past the end is an error.": ranges,
    "An unfinished object is invisible, and leaves nothing if it is aborted.": unfinished,
    "A guard that raises keeps an object from being visible, or removed.": guards,
    "Two attempts at one object do not disturb each other; the last one stays.": attempts,
    "Keys may have odd characters; those that leave the store are refused.": keys,
    "Exactly the visible objects are listed; a path gives a store below.": listing,
    "A removed object is gone, and no other; none is without a proof.": removal,
    "The version changes when an object is replaced by another of its size.": versions,
    "Threads can write different keys at once.": threads,
    "A store that keeps the state of runs lets one of several writers win.": state,
    **{
        f"{each.name}: a store {'can or cannot ' + each.cannot}.": partial(capability, each)
        for each in Capability
    },
}
"""What every store does, and the check of it."""


class BrokenContractError(AssertionError):
    """A store does not keep a clause of the contract.

    Attributes
    ----------
    clause : str
        The clause: one of `CLAUSES`.
    """

    def __init__(self, clause: str, reason: str) -> None:
        super().__init__(f"{clause} But: {reason}")
        self.clause = clause


def check_store(make: Callable[[], Store], *, run_path: Path | None = None) -> None:
    """Check that a store keeps the contract of all stores, and has the capabilities it claims.

    Parameters
    ----------
    make : callable
        Returns a new, empty store at each call.
    run_path : pathlib.Path, optional
        Directory that stands for that of a run. A store of files must be on the same file system.
        By default it is a temporary directory.

    Raises
    ------
    BrokenContractError
        If a clause does not hold. It says which, and why.

    Examples
    --------
    >>> from shardwrite.stores import MemoryStore
    >>> check_store(MemoryStore)
    """
    with tempfile.TemporaryDirectory() as directory:
        for clause, check in CLAUSES.items():
            try:
                check(Subject(make(), run_path or Path(directory)))
            except Exception as error:
                raise BrokenContractError(clause, f"{type(error).__name__}: {error}") from error
