"""A proxy before a server, which counts requests and breaks some of them."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import struct
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
FAILED = b"<Error><Code>InternalError</Code><Message>We encountered an error.</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
SLOW_SECONDS, STALL_SECONDS = 0.2, 4


@dataclass
class Faults:
    """What was asked for, and what is to be broken.

    `plan` is called with method, path and number of each request, and gives what happens to it:
    None, "500", "503", "later" (the same, and it asks for a pause of half a minute by
    `Retry-After`), "reset" (the connection is reset in the middle of the request), "before" (it ends
    before the server has seen the request), "lost" (after the server has done it), "cut" (in the
    middle of the answer), "slow" (its second half comes a fifth of a second late), or "stall" (it
    does not come within seconds).
    """

    plan: object = None
    seen: list = field(default_factory=list)
    broken: list = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, method, path):
        with self.lock:
            self.seen.append((method, path))
            fault = None if self.plan is None else self.plan(method, path, len(self.seen))
            if fault is not None:
                self.broken.append((fault, method, path))
            return fault


class Passing(BaseHTTPRequestHandler):
    """Passes each request on to `upstream`, unless `faults` breaks it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    upstream: str
    faults: Faults

    def log_message(self, *arguments):
        pass

    def serve(self):
        nbytes = int(self.headers.get("Content-Length") or 0)
        fault = self.faults.of(self.command, unquote(self.path))
        if fault == "reset":
            self.rfile.read(nbytes // 2)
            at_once = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
            self.connection.close()
            self.close_connection = True
            return
        body = self.rfile.read(nbytes)
        if fault == "500":
            given = {"Content-Length": str(len(FAILED))}
            self.answer(500, "Internal Server Error", given.items(), FAILED)
            return
        if fault in ("503", "later"):
            given = {"Content-Length": str(len(SLOW_DOWN))}
            given |= {"Retry-After": "30"} if fault == "later" else {}
            self.answer(503, "Slow Down", given.items(), SLOW_DOWN)
            return
        if fault == "before":
            self.close_connection = True
            return
        status, reason, headers, content = self.forwarded(body)
        if fault == "lost":
            self.close_connection = True
            return
        if fault == "stall":
            time.sleep(STALL_SECONDS)
            self.close_connection = True
            return
        if fault == "cut":
            self.close_connection = True
        self.answer(status, reason, headers, content, fault)

    def answer(self, status, reason, headers, content, fault=None):
        self.send_response_only(status, reason)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        is_head = self.command == "HEAD"
        self.send_header("Content-Length", length if is_head else str(len(content)))
        self.end_headers()
        if is_head:
            return
        half = len(content) // 2 if fault in ("cut", "slow") else len(content)
        self.wfile.write(content[:half])
        if fault == "slow":
            time.sleep(SLOW_SECONDS)
            self.wfile.write(content[half:])

    def forwarded(self, body):
        """The server's answer. It checks the signature, which covers the name of the host."""
        return self.asked(self.path, list(self.headers.items()), body)

    def asked(self, path, headers, body):
        return asked(self.upstream, self.command, path, headers, body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = serve  # noqa: N815


def asked(upstream, method, path, headers, body):
    """The answer of a server to a request."""
    connection = http.client.HTTPConnection(upstream, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.reason, answer.getheaders(), answer.read()
    finally:
        connection.close()


class Recording(Passing):
    """Keeps all requests that change something in `sent`; `repeat` sends them again."""

    sent: list

    def forwarded(self, body):
        if self.command not in ("GET", "HEAD"):
            self.sent.append((self.command, self.path, list(self.headers.items()), body))
        return super().forwarded(body)


def repeat(server, sent):
    """Send requests again, as a network does that has delayed copies of them."""
    for request in sent:
        asked(urlsplit(server.endpoint).netloc, *request)


class Ignoring(Passing):
    """Drops all conditions of requests, as a service does that accepts and ignores them."""

    def forwarded(self, body):
        conditions = ("if-match", "if-none-match")
        kept = [(k, v) for k, v in self.headers.items() if k.lower() not in conditions]
        return self.asked(self.path, kept, body)


class Denying(Passing):
    """Denies each key of `denied` the paths that contain its text, as a policy of a bucket does."""

    denied: dict

    def forwarded(self, body):
        signed, path = self.headers.get("Authorization") or "", f"{unquote(self.path)}/"
        if any(key in signed and part in path for key, part in self.denied.items()):
            return 403, "Forbidden", [("Content-Length", str(len(DENIED)))], DENIED
        return super().forwarded(body)


@contextmanager
def serving(kind, **attributes):
    """Address of a server in threads of this process, whose handler has these attributes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (kind,), attributes))
    server.daemon_threads = True
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def before(server, plan=None, kind=Passing, **attributes):
    """The server behind a proxy, and what the proxy sees and breaks."""
    faults, at = Faults(plan), urlsplit(server.endpoint)
    with serving(kind, upstream=at.netloc, faults=faults, **attributes) as netloc:
        yield replace(server, endpoint=at._replace(netloc=netloc).geturl()), faults


def killed(server, start, counts, number, fault):
    """Kill a program at a request, before or after the server has done it.

    `start` starts it before a proxy, and `counts` says whether a request counts. Returns whether
    there were so many, the program, and what it wrote.
    """
    seen, process = [], None

    def plan(method, path, _):
        if counts(method, path):
            seen.append(path)
            if len(seen) == number + 1:
                if fault == "before":
                    os.kill(process.pid, signal.SIGKILL)
                return fault
            if len(seen) > number + 1:
                return "before"
        return None

    def kill_late():
        while len(seen) <= number and process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.05)
        process.kill()

    with before(server, plan) as (between, _):
        process = start(between)
        waiting = threading.Thread(target=kill_late)
        waiting.start()
        out = process.communicate(timeout=200)
        waiting.join()
    return len(seen) > number, process, out
