"""A toy store: objects in one SQLite database, which several processes can use."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
import uuid

from shardwrite import StoreError
from shardwrite.stores import Capability, WholeStore
from shardwrite.stores.whole import SnapshotReader

TABLE = "create table if not exists objects (name text primary key, data blob, version text)"


class DatabaseStore(WholeStore):
    """Objects in the rows of a table; a transaction of the database puts one of them."""

    capabilities = WholeStore.capabilities | {
        Capability.ATOMIC,
        Capability.DURABLE,
        Capability.SHARED,
        Capability.SNAPSHOT,
    }

    def __init__(self, path):
        self.path = str(path)

    @property
    def token(self):
        return f"{self.path}/{self.prefix}"

    def run(self, command, *values):
        opened = sqlite3.connect(self.path, timeout=60)
        with contextlib.closing(opened) as database, database:
            database.execute(TABLE)
            return database.execute(command, values).fetchall()

    def open_object(self, name):
        rows = self.run("select data, version from objects where name = ?", name)
        return SnapshotReader(name, *rows[0]) if rows else None

    def version_of_object(self, name):
        rows = self.run("select version from objects where name = ?", name)
        return rows[0][0] if rows else None

    def put_object(self, name, data):
        version = uuid.uuid4().hex
        self.run("insert or replace into objects values (?, ?, ?)", name, bytes(data), version)

    def remove_object(self, name):
        self.run("delete from objects where name = ?", name)

    def create_new(self, key, data):
        if Capability.EXCLUSIVE not in self.capabilities:
            return super().create_new(key, data)
        return self.created(self.prefix + key, data)

    def replace_object(self, name, data, version):
        if version is None:
            if not self.created(name, data):
                raise StoreError("another version stands there", key=name, errno=errno.ESTALE)
            return
        new = (
            "update objects set data = ?, version = ? where name = ? and version = ? returning name"
        )
        if not self.run(new, bytes(data), uuid.uuid4().hex, name, version):
            raise StoreError("another version stands there", key=name, errno=errno.ESTALE)

    def created(self, name, data):
        new = "insert into objects values (?, ?, ?) on conflict do nothing returning name"
        return bool(self.run(new, name, bytes(data), uuid.uuid4().hex))

    def list_names(self, prefix):
        return (name for (name,) in self.run("select name from objects") if name.startswith(prefix))


class StatefulStore(DatabaseStore):
    """The same, with what is needed to hold the state of runs, too."""

    capabilities = DatabaseStore.capabilities | {Capability.EXCLUSIVE, Capability.CONDITIONAL}
    keeps_state = True
