"""Calls that take a session of Icechunk, and commit it once when everything is written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardwrite._version import __version__
from shardwrite.engines import active_engine
from shardwrite.errors import SpecError
from shardwrite.place.run_state import own_run_dir
from shardwrite.results import counted
from shardwrite.runs.result import WriteResult
from shardwrite.stores.looking import is_session

_MOST_NAMED = 8
_REFUSED = {
    "compute": (True, "the session is committed at the end of the call", "leave it out"),
    "return_stored": (
        False,
        "the session is committed at the end of the call",
        "leave it out, and read the snapshot",
    ),
    "keep_report": (
        False,
        "Icechunk takes no other objects than arrays and groups",
        "leave it out",
    ),
    "format": (None, "Icechunk takes only the keys of Zarr v3", "leave it out"),
}
"""Keywords that have only one value with a session: the value, why, and what to do."""


def write_and_commit(function: Callable[[Any], Any], given: Any, word: str) -> Any:
    """Write into sessions, and commit each of them, with the `message` of the arguments.

    If the function raises, the sessions are left as they were before.

    - `function`: returns a `WriteResult`, or a list of them: one for each store, or any number for
      a single one.
    - `given`: its arguments.
    - `word`: which of them has the store, or the stores.
    """
    found, message = getattr(given, word), given.message
    many = list(found) if isinstance(found, list | tuple) else [found]
    _check(given, message)
    with own_run_dir(given.run_dir) as run_dir, _written(many) as stores:
        into: Any = stores if isinstance(found, list | tuple) else stores[0]
        made: Any = function(replace(given, run_dir=run_dir, **{word: into}))
    each = made if isinstance(made, list) else [made]
    into = stores if isinstance(found, list | tuple) else stores * len(each)
    commits = _commit(stores, list(zip(each, into, strict=True)), message)
    results = [
        replace(result, snapshot=snapshot, message=text)
        for result, (snapshot, text) in zip(each, (commits[id(one)] for one in into), strict=True)
    ]
    return results if isinstance(made, list) else results[0]


def _check(given: object, message: Any) -> None:
    """Refuse what does not go with a session."""
    if message is not None and not (isinstance(message, str) and message.strip()):
        remedy = "give a text, or leave it out"
        raise SpecError("no message", field="message", value=message, remedy=remedy)
    for word, (only, why, remedy) in _REFUSED.items():
        value = getattr(given, word, only)
        if value != only:
            raise SpecError(
                f"does not go with a session: {why}", field=word, value=value, remedy=remedy
            )


@contextlib.contextmanager
def _written(many: Sequence[Any]) -> Iterator[list[Any]]:
    """Stores in place of sessions, which are left as they were if the block raises.

    Other things are what they were. A session that is given twice has one store.
    """
    from shardwrite.stores.session_store import SessionStore

    opened: dict[int, SessionStore] = {}
    try:
        for target in many:
            if is_session(target) and id(target) not in opened:
                for_processes = not active_engine().shares_memory
                opened[id(target)] = SessionStore.to_write(target, for_processes=for_processes)
        yield [opened.get(id(target), target) for target in many]
    except BaseException as error:
        for store in opened.values():
            store.discard()
        if opened:
            error.add_note("Nothing was committed, and the session is as it was before this call.")
        raise


def _commit(
    stores: Sequence[Any], results: Sequence[tuple[WriteResult, Any]], message: str | None
) -> Mapping[int, tuple[str | None, str | None]]:
    """Commit each session once.

    - `results`: each with the store that it is about.
    - Returns: snapshot and message by the identity of the store. They are None for stores that are
      no sessions, and for a session that nothing was written to.
    - Raises ConflictError if another writer has moved the branch.
    """
    from shardwrite.stores.session_store import SessionStore

    commits = dict[int, tuple[str | None, str | None]]()
    for store in stores:
        if id(store) in commits:
            continue
        commits[id(store)] = None, None
        if isinstance(store, SessionStore):
            own = [result for result, into in results if into is store]
            text = _message(store, own) if message is None else message
            if own or store.has_changes:
                commits[id(store)] = store.commit(text), text
            else:
                store.discard()
    return commits


def _message(store: Any, results: Sequence[WriteResult]) -> str:
    """Message of a commit, which names the arrays and counts the shards.

    Without any, it is one of groups and their attributes.
    """
    if not results:
        return f"attributes of groups, written by shardwrite {__version__}"
    names = [result.path.removesuffix(f" in {store!r}") for result in results[:_MOST_NAMED]]
    names += ["..."] if len(results) > _MOST_NAMED else []
    n_shards = sum(result.n_shards for result in results)
    return f"{', '.join(names)}: {counted(n_shards, 'shard')}, written by shardwrite {__version__}"
