"""Have the storage transformer of zarr-python 2.17 ask `transformer_view` for all that it does.

zarr-python 2.17 cannot be imported beside the version that we use, so the view lives in another
process, `zarr_2022_server`. Values stay in the store of this process: while the view answers a
question, it asks for them in turn.
"""

from __future__ import annotations

import json
import os
import subprocess
from multiprocessing.connection import Connection
from socket import socketpair

from numcodecs.compat import ensure_bytes
from zarr._storage.v3_storage_transformers import ShardingStorageTransformer

_asked = {}


class Server:
    """The process of the view."""

    def __init__(self):
        ours, theirs = socketpair()
        command = json.loads(os.environ["SHARDWRITE_SERVER"])
        environ = {**os.environ, "PYTHONPATH": os.environ["SHARDWRITE_PATH"]}
        self.process = subprocess.Popen(
            [*command, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environ
        )
        theirs.close()
        self.connection = Connection(ours.detach())

    def ask(self, transformer, name, *arguments):
        """What a method of the view gives; its questions about the inner store are answered."""
        _asked[name] = _asked.get(name, 0) + 1
        place = (transformer.chunks_per_shard, transformer._data_key_prefix.rstrip("/"))
        self.connection.send((*place, name, arguments))
        while True:
            is_answer, found, *rest = self.connection.recv()
            if is_answer:
                if rest:
                    raise RuntimeError(rest[0])
                return found
            self.connection.send(of_inner(transformer.inner_store, found, *rest))


def of_inner(store, question, *arguments):
    """Answer a question of the view about the store below."""
    if question == "get":
        value = store.get(arguments[0])
        return None if value is None else bytes(value)
    if question == "set":
        store[arguments[0]] = arguments[1]
    elif question == "delete":
        if arguments[0] in store:
            del store[arguments[0]]
    elif question == "list":
        return [key for key in store if key.startswith(arguments[0])]
    return None


_servers = []


def server():
    """The process of the view, which is started once."""
    if not _servers:
        _servers.append(Server())
    return _servers[0]


def getitem(self, key):
    value = server().ask(self, "get", key)
    if value is None:
        raise KeyError(key)
    return value


def setitem(self, key, value):
    if isinstance(value, list):  # a test puts one into the store, which is no value
        self.inner_store[key] = value
        return
    server().ask(self, "set", key, ensure_bytes(value))


def delitem(self, key):
    if not server().ask(self, "exists", key):
        raise KeyError(key)
    server().ask(self, "delete", key)


def list_prefix(self, prefix):
    if prefix.startswith("/"):
        raise ValueError("their keys never begin so")
    return server().ask(self, "list", prefix)


METHODS = {
    "__getitem__": getitem,
    "__setitem__": setitem,
    "__delitem__": delitem,
    "__contains__": lambda self, key: server().ask(self, "exists", key),
    "__iter__": lambda self: iter(server().ask(self, "list", "")),
    "__len__": lambda self: len(server().ask(self, "list", "")),
    "list_prefix": list_prefix,
    "erase_prefix": lambda self, prefix: server().ask(self, "erase_prefix", prefix),
    "get_partial_values": lambda self, ranges: server().ask(self, "get_partial", list(ranges)),
    "set_partial_values": lambda self, parts: server().ask(
        self, "set_partial", [(key, start, bytes(value)) for key, start, value in parts]
    ),
}


def pytest_configure():
    for name, method in METHODS.items():
        setattr(ShardingStorageTransformer, name, method)


def pytest_unconfigure():
    """Say how often the view was asked, so that a test sees that it was."""
    for one in _servers:
        one.connection.close()
        one.process.wait(60)
    with open(os.environ["SHARDWRITE_TOLD"], "w") as file:
        json.dump(_asked, file)
