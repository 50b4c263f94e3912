"""`transformer_view` for `zarr_2022_plugin`, which asks it through the socket given as argument."""

from __future__ import annotations

import asyncio
import sys
from multiprocessing.connection import Connection

from zarr.abc.store import OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.buffer.cpu import Buffer

from shardwrite import transformer_view


class Below(Store):
    """The store of the process that asks."""

    def __init__(self, connection):
        super().__init__(read_only=False)
        self._connection = connection

    def ask(self, *question):
        self._connection.send((False, *question))
        return self._connection.recv()

    def __eq__(self, other):
        return self is other

    supports_writes = supports_deletes = supports_listing = True
    supports_partial_writes = False

    async def get(self, key, prototype, byte_range=None):
        value = self.ask("get", key)
        if value is None:
            return None
        if isinstance(byte_range, RangeByteRequest):
            value = value[byte_range.start : byte_range.end]
        elif isinstance(byte_range, OffsetByteRequest):
            value = value[byte_range.offset :]
        elif isinstance(byte_range, SuffixByteRequest):
            value = value[max(0, len(value) - byte_range.suffix) :]
        return prototype.buffer.from_bytes(value)

    async def get_partial_values(self, prototype, key_ranges):
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key):
        return self.ask("get", key) is not None

    async def set(self, key, value):
        self.ask("set", key, value.to_bytes())

    async def delete(self, key):
        self.ask("delete", key)

    async def list(self):
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix):
        for key in self.ask("list", prefix):
            yield key

    async def list_dir(self, prefix):
        directory = f"{prefix.rstrip('/')}/" if prefix else ""
        keys = self.ask("list", directory)
        for name in dict.fromkeys(key.removeprefix(directory).split("/")[0] for key in keys):
            yield name


def request(start, nbytes):
    """A range as zarr-python 2 gives it: a first byte, which may count from the end, and a size."""
    if start < 0:
        return SuffixByteRequest(-start)
    return OffsetByteRequest(start) if nbytes is None else RangeByteRequest(start, start + nbytes)


async def answer(view, name, arguments):
    prototype = default_buffer_prototype()
    if name == "get":
        value = await view.get(arguments[0], prototype)
        return None if value is None else value.to_bytes()
    if name == "get_partial":
        ranges = arguments[0]
        asked = [(key, request(*wanted)) for key, wanted in ranges]
        values = await view.get_partial_values(prototype, asked)
        return [
            None if value is None else value.to_bytes()[slice(nbytes)]
            for value, (_, (_, nbytes)) in zip(values, ranges, strict=True)
        ]
    if name == "set":
        return await view.set(arguments[0], Buffer.from_bytes(arguments[1]))
    if name == "list":
        return [key async for key in view.list_prefix(arguments[0])]
    method = {"set_partial": "set_partial_values"}.get(name, name)
    return await getattr(view, method)(*arguments)


def main():
    connection = Connection(int(sys.argv[1]))
    below = Below(connection)
    with asyncio.Runner() as runner:
        while True:
            try:
                counts, path, name, arguments = connection.recv()
            except EOFError:
                return
            try:
                view = transformer_view(below, counts, path=path)
                connection.send((True, runner.run(answer(view, name, arguments))))
            except Exception as error:  # told to the process that asked
                connection.send((True, None, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    main()
