"""The lease of a run in a bucket: an object that its holder replaces again and again.

A lease is created only if there is none, and replaced only if it is still the version that was read
or put before. So it has one holder at a time, and a process that has lost it finds that out with
its next request. No clocks of hosts are compared. A process that wants the lease waits until it has
not changed for as long as the lease says. It waits less if the service's own clock tells that the
lease is older. On the holder's own host, a process that is gone is known to be dead at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from shardwrite._dataclass import dataclass
from shardwrite.errors import JournalError, StoreError
from shardwrite.host.stopping import TAKEOVERS, tell
from shardwrite.journal.lease import is_this_process, lease_times, lives, this_process
from shardwrite.journal.process import Holder, Process, now
from shardwrite.place.base import STATE_PREFIX
from shardwrite.records import LaterFormatError, Record
from shardwrite.stores.base import Capability, require
from shardwrite.stores.looking import parse_json
from shardwrite.stores.whole import WholeStore

LEASE = f"{STATE_PREFIX}lease.json"
_CLOCK = f"{STATE_PREFIX}clock-"
_MAX_TRIES = 8
_MAX_NBYTES = 2**20
_RUN_DIR = 'give a directory that all processes of the run see, such as run_dir="/scratch/me/runs"'
_mine: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord(Record):
    """Content of a lease; no two renewals have the same one."""

    _format = 1

    holder: str  # unique name of the holder; empty if it was given back
    # Name of the holder whose log holds the state, if the holder has none yet; empty if there is no
    # state
    state: str
    beat: int  # number of times that the lease was renewed
    process: Process  # identity of the holder's process

    @classmethod
    def from_json(cls, data: bytes) -> LeaseRecord:
        """Read the content of the object."""
        try:
            return cls.from_dict(parse_json(data))
        except LaterFormatError as error:
            raise JournalError(
                f"{LEASE} was written by a later version of shardwrite. Nothing was changed. "
                "Install that version to go on",
                path=LEASE,
            ) from error
        except ValueError as error:
            raise JournalError(
                f"{LEASE} is no lease ({error}). Move it away after a look", path=LEASE
            ) from error


def read_lease(store: WholeStore) -> tuple[LeaseRecord, Any] | None:
    """Lease of an array, and the version of its object; None if there is none."""
    reader = store.open(LEASE)
    if reader is None:
        return None
    with reader:
        data = reader.read(0, min(reader.nbytes, _MAX_NBYTES))
        return LeaseRecord.from_json(data), reader.version


class StateLease:
    """Lease of this process on the runs of an array.

    - `deadline`: time until which no other process takes the lease, by the clock of `process.now`.
    """

    def __init__(self, store: WholeStore, label: str) -> None:
        self._store, self._label = store, label
        self.holder = uuid.uuid4().hex
        self._record = LeaseRecord(holder=self.holder, state="", beat=0, process=Process())
        self._is_released = False
        self._version: Any = None
        self.deadline = 0.0

    def take(self, state_after: Callable[[LeaseRecord | None], str]) -> str:
        """Take the lease, and return the name of the holder who has left a state, if any."""
        self._store.prepare()
        for capability in (Capability.EXCLUSIVE, Capability.CONDITIONAL):
            require(self._store, capability, field="run_dir", value=None, remedy=_RUN_DIR)
        for _ in range(_MAX_TRIES):
            found = read_lease(self._store)
            if found is not None:
                self._refuse_living(*found)
            state = state_after(None if found is None else found[0])
            self._record = LeaseRecord(
                holder=self.holder,
                state=state,
                beat=self._record.beat + 1,
                process=this_process(),
            )
            if self._put(None if found is None else found[1]):
                _mine.add(self.holder)
                if found is not None and found[0].holder:
                    told = f"the lease of a process that is gone is taken over: {self._label}"
                    tell(TAKEOVERS, logging.INFO, told, run=self._label)
                return state
        raise JournalError(f"the lease of {self._label} changes all the time", path=self._label)

    def renew(self, state: str, proof: str | None) -> bool:
        """Renew the lease, and return whether this process still holds it.

        An earlier holder that was frozen amid its end may remove the lease. It is made again if
        nobody else has taken it meanwhile.

        - `proof`: key of an object that stands as long as no other process has ended the run; None
          if there is none yet. A lease that is gone is then lost, because another process may have
          taken it, and ended its run.
        """
        if self._is_released:
            return False
        if self._replace(self.holder, state):
            return True
        if proof is None or read_lease(self._store) is not None:
            return False
        return self._store.version(proof) is not None and self._put(None)

    def is_as_put(self) -> bool:
        """Whether the lease is the version that this process has put, and not given back."""
        return not self._is_released and self._store.version(LEASE) == self._version

    def remove(self) -> None:
        """Remove the lease that this process has given back, unless another one has taken it."""
        found = read_lease(self._store)
        if found is not None and found[1] == self._version:
            self._store.remove_object(self._store.prefix + LEASE)

    def release(self, state: str) -> bool:
        """Give the lease back, and return whether this process held it until now."""
        _mine.discard(self.holder)
        if self._is_released:
            return False
        self._is_released = True
        return self._replace("", state)

    def _replace(self, holder: str, state: str) -> bool:
        """Replace the lease, if it is still that of this process."""
        for _ in range(2):
            beat = self._record.beat + 1
            self._record = replace(self._record, holder=holder, state=state, beat=beat)
            if self._put(self._version):
                return True
            # An answer may have been lost, so that the version is not the one that is known.
            found = read_lease(self._store)
            if found is None or found[0].holder != self.holder:
                return False
            self._version = found[1]
        return False

    def forget(self) -> None:
        """Note that this process holds the lease no longer."""
        _mine.discard(self.holder)

    def _put(self, version: Any) -> bool:
        """Put the record in the place of a version, or of nothing."""
        begun, data = now(), self._record.to_json()
        if version is None:
            if not self._store.create_new(LEASE, data):
                return False
        else:
            try:
                self._store.replace_object(self._store.prefix + LEASE, bytearray(data), version)
            except StoreError as error:
                if error.errno != errno.ESTALE:
                    raise
                return False
        found = read_lease(self._store)
        if found is None or found[0] != self._record:
            return False
        self._version = found[1]
        self.deadline = begun + lease_times()[1]
        return True

    def _refuse_living(self, found: LeaseRecord, version: Any) -> None:
        """Wait until a lease has run out, or refuse to go on if its holder lives."""
        if not found.holder:
            return
        process, me = found.process, this_process()
        if is_this_process(process):
            if found.holder in _mine:
                raise self._held(found, 0.0)
            return
        if not lives(process, me, 0.0):
            return
        age = self._age()
        ttl = process.ttl or lease_times()[1]
        left = ttl - max(0.0, age - 1)  # the service may round its times to seconds
        if bool(me.boot) and (process.boot, process.pids) == (me.boot, me.pids):
            if left > 0:
                raise self._held(found, age)
            return
        if left > 0:
            told = f"waiting for {left:.0f} s at most: {self._label} is held by {process.name}"
            tell(TAKEOVERS, logging.INFO, told, run=self._label)
        begun = time.monotonic()
        while (waited := time.monotonic() - begun) < left:
            time.sleep(min(left - waited, max(0.05, ttl / 60)))
            if self._store.version(LEASE) != version:
                again = read_lease(self._store)
                if again is None or not again[0].holder:
                    return
                raise self._held(again[0], 0.0)

    def _age(self) -> float:
        """Age of the lease in seconds, by the service's clock; 0 if it does not tell."""
        name = f"{_CLOCK}{uuid.uuid4().hex}"
        try:
            self._store.create_new(name, b"clock")
            times = self._store.changed_at(LEASE), self._store.changed_at(name)
        finally:
            with contextlib.suppress(StoreError):  # the first error is the one to report
                self._store.remove_object(self._store.prefix + name)
        return max(0.0, times[1] - times[0]) if times[0] and times[1] else 0.0

    def _held(self, found: LeaseRecord, age: float) -> JournalError:
        holder = Holder(found.process, found.holder, age)
        return holder.error(self._label, "another process", self._label)
