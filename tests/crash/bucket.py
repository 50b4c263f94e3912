"""A bucket of moto behind a network that strikes, in a process of its own.

It prints the addresses of the network and of the server. Then it reads calls of methods of
`Network`, a line of JSON each, and prints a line with the answer to each.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

sys.path.insert(0, str(Path(__file__).parents[1] / "buckets"))
import obstore
import proxy
import servers

PREFIX, IDS_PROBES = "tree", "ids/shardwrite-run/probes"
OWN = ("kill before", "kill after", "late")
NOTHING: dict[str, Any] = {"how": "", "of": "", "k": 0, "n": 0}


class Network:
    """What strikes requests.

    A fault names requests by a pattern (`of`), and strikes the `k`-th and those after it, `n` in
    all. How it strikes (`how`) is a fault of the proxy, or one of these: "kill before" and "kill
    after" kill all clients before or after the server has done the request. "late" has the server
    do it once more after some seconds.
    """

    def __init__(self, server: servers.Server) -> None:
        self.address, self.client = urlsplit(server.endpoint).netloc, server.client(PREFIX)
        self.lock, self.fault = threading.RLock(), NOTHING
        self.n_matching = self.n_struck = 0
        self.changes: Counter[str] = Counter()
        self.removals: Counter[str] = Counter()
        self.tags: dict[str, str] = {}
        self.late: list[tuple[float, Any, Any]] = []

    def begin(self, fault: dict[str, Any]) -> int:
        """Strike from now on."""
        self.fault, self.n_matching, self.n_struck = fault, 0, 0
        return 0

    def end(self) -> int:
        """Strike no more, and have all late requests arrive; how many were struck."""
        self.fault = NOTHING
        self.deliver(math.inf)
        return self.n_struck

    def copy(self, to: str, known: dict[str, str]) -> dict[str, str]:
        """Bring a directory that was copied before to what the bucket holds now."""
        there = {e["path"]: e["e_tag"] for part in obstore.list(self.client) for e in part}
        for key in known.keys() - there.keys():
            Path(to, key).unlink()
            with contextlib.suppress(OSError):  # one that still holds something
                os.removedirs(Path(to, key).parent)
        for key in (k for k, tag in there.items() if known.get(k) != tag):
            Path(to, key).parent.mkdir(parents=True, exist_ok=True)
            Path(to, key).write_bytes(bytes(obstore.get(self.client, key).bytes()))
        return there

    def restore(self, directory: str) -> int:
        """Have the bucket hold what a directory holds."""
        for part in obstore.list(self.client):
            obstore.delete(self.client, [entry["path"] for entry in part])
        for path in (p for p in Path(directory).rglob("*") if p.is_file()):
            obstore.put(self.client, str(path.relative_to(directory)), path.read_bytes())
        return 0

    def plan(self, method: str, path: str, _: int) -> str | None:
        """What the proxy breaks."""
        return self.fault["how"] if self.strikes(method, path, is_own=False) else None

    def strikes(self, method: str, path: str, *, is_own: bool) -> bool:
        """Whether the fault strikes a request."""
        with self.lock:
            is_ours = (self.fault["how"] in OWN) == is_own
            if not is_ours or not fnmatch(f"{method} {path}", self.fault["of"]):
                return False
            self.n_matching += 1
            strikes = 0 <= self.n_matching - self.fault["k"] < self.fault["n"]
            self.n_struck += strikes
            return strikes

    def forward(self, handler: proxy.Passing, body: bytes) -> Any:
        """The server's answer to a request, which is struck before or after that."""
        request = (handler.command, handler.path, list(handler.headers.items()), body)
        strikes = self.strikes(handler.command, unquote(handler.path), is_own=True)
        if strikes and self.fault["how"] == "kill before":
            self._kill()
            return 503, "Slow Down", [], b""
        if handler.command in ("GET", "HEAD"):
            answer = proxy.asked(self.address, *request)
        else:
            with self.lock:
                answer = proxy.asked(self.address, *request)
                keys = keys_of(handler.command, handler.path, body)
                self.changes.update(keys)
                self.removals.update(keys if handler.command != "PUT" else ())
                self.tags[keys[0]] = dict(answer[2]).get("ETag", "")
                if strikes and self.fault["how"] == "late":
                    due = time.monotonic() + self.fault["seconds"]
                    self.late.append((due, request, self._since(request)))
        if strikes and self.fault["how"] == "kill after":
            self._kill()
        return answer

    def deliver(self, until: float) -> None:
        """Have late requests arrive.

        Three do not, since the documentation says that they take effect: a removal, and the put of
        what was removed meanwhile, which have no condition that refuses them, and a put
        that finds the same contents again which it has replaced. Nor does the put of a probe for
        chunks by id, which only stays.
        """
        with self.lock:
            due = [late for late in self.late if late[0] <= until]
            self.late = [late for late in self.late if late[0] > until]
            for _, request, since in due:
                if self._since(request) == since and not self._is_excused(request):
                    proxy.asked(self.address, *request)

    def _since(self, request: Any) -> Any:
        """What must not change until a request arrives late."""
        method, path, headers, body = request
        keys = keys_of(method, path, body)
        if method != "PUT":
            return [self.changes[key] for key in keys]
        is_new = "if-none-match" in {name.lower() for name, _ in headers}
        return [self.removals[key] for key in keys if is_new and "/shardwrite-run/" not in key]

    def _is_excused(self, request: Any) -> bool:
        _, path, headers, _ = request
        if f"/{IDS_PROBES}/" in path:
            return True
        if path.endswith(".json"):
            return False  # no document has the bytes of an earlier one
        wanted = [value for name, value in headers if name.lower() == "if-match"]
        return wanted == [self.tags.get(unquote(path))]

    def _kill(self) -> None:
        for pid in self.fault["pids"]:
            stat = Path(f"/proc/{pid}/stat")
            if (
                stat.exists()
                and int(stat.read_text().rpartition(")")[2].split()[1]) == os.getppid()
            ):
                os.kill(pid, signal.SIGKILL)


def keys_of(method: str, path: str, body: bytes) -> list[str]:
    """The keys that a request changes."""
    at = urlsplit(path)
    if method != "POST" or at.query.partition("=")[0] != "delete":
        return [unquote(at.path)]
    keys = ET.fromstring(body).iterfind(".//{*}Key")
    return [f"{at.path.rstrip('/')}/{key.text}" for key in keys]


class Handler(proxy.Passing):
    network: Network

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # of a client that was killed
            super().handle()

    def forwarded(self, body: bytes) -> Any:
        return self.network.forward(self, body)


def main() -> None:
    with servers.moto() as server:
        network = Network(server)
        with proxy.before(server, network.plan, Handler, network=network) as (before, _):
            threading.Thread(target=deliver_late, args=[network], daemon=True).start()
            print(json.dumps([before.endpoint, server.endpoint]), flush=True)
            for line in sys.stdin:
                name, arguments = json.loads(line)
                print(json.dumps(getattr(network, name)(*arguments)), flush=True)


def deliver_late(network: Network) -> None:
    while True:
        time.sleep(0.05)
        network.deliver(time.monotonic())


if __name__ == "__main__":
    main()
