"""A page that shows how a run goes, served to browsers on this machine."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from shardwrite.cli.terminal import echo
from shardwrite.errors import ShardwriteError, SpecError
from shardwrite.reporting.page import html
from shardwrite.reporting.report import RunReport

_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_REQUEST_SECONDS = 10  # for which a silent client may keep a thread


@dataclass(slots=True)
class Watch:
    """The page of a run. The run is looked at when the page is asked for, but not too often."""

    look: Callable[[], RunReport]  # makes the report
    report: RunReport  # the last report
    # Least time between two looks, in seconds. It limits the load on the file system, however many
    # browsers ask.
    every: float
    _looked: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self) -> str:
        """HTML of the page as the run is now. An error is shown as a note."""
        with self._lock:
            note = ""
            is_due = time.monotonic() - self._looked >= self.every
            if is_due and (self.report.state != "finished" or self.report.told_by == "journal"):
                try:
                    self.report = _after(self.report, self.look())
                except (ShardwriteError, OSError) as error:
                    note = f"The run could not be looked at: {error}"
                self._looked = time.monotonic()
            shown = self.report
        if note:
            shown = replace(shown, notes=(*shown.notes, note))
        return html(shown, reload_seconds=max(1, round(self.every)))


def _after(before: RunReport, now: RunReport) -> RunReport:
    """The report to show next.

    The journals are gone when a run has ended. Without a report in the array, the timeline that was
    shown last is kept.
    """
    if now.told_by != "receipt" or now.run != before.run or before.told_by == "receipt":
        return now
    return replace(
        before,
        state="finished",
        told_by="receipt",
        n_done=now.n_done,
        n_empty=now.n_empty,
        done_nbytes=now.done_nbytes,
        stored_nbytes=now.stored_nbytes,
        n_interrupted=0,
        notes=(*before.notes, "The run has ended. The pictures show it shortly before its end."),
    )


class _Handler(BaseHTTPRequestHandler):
    """Answers a GET of one secret path with the page, and anything else with an error."""

    server_version = "shardwrite"
    sys_version = ""
    timeout = _REQUEST_SECONDS

    def __init__(self, watch: Watch, path: str, *args: object) -> None:
        self._watch, self._secret = watch, path
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send the page."""
        if not secrets.compare_digest(self.path.encode(), self._secret.encode()):
            self.send_error(HTTPStatus.NOT_FOUND, "Not found", "The address is on the terminal.")
            return
        data = self._watch.page().encode()
        self.send_response(HTTPStatus.OK)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing for a request."""


def server_of(watch: Watch, port: int) -> tuple[ThreadingHTTPServer, str]:
    """Make the server of a page, and its address. It answers on the loopback interface only.

    Other users of a login node can reach the loopback interface, too. So the address has a part
    that nobody can guess.

    - `port`: the port; 0 for a free one.
    """
    path = f"/{secrets.token_urlsafe(16)}/"
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, watch, path))
    except OSError as error:
        raise SpecError(
            f"cannot be used ({error.strerror})",
            field="live",
            value=port,
            remedy="give another port, or 0 for a free one",
        ) from None
    server.daemon_threads = True
    return server, f"http://localhost:{server.server_address[1]}{path}"


def serve(look: Callable[[], RunReport], first: RunReport, port: int, every: float) -> None:
    """Serve the page of a run until the user presses Ctrl-C.

    - `port`: the port; 0 for a free one.
    - `every`: time between two looks at the run, in seconds.
    """
    server, address = server_of(Watch(look, first, every), port)
    number = server.server_address[1]
    echo(f"{address}\nFrom another machine: ssh -L {number}:localhost:{number} THIS-MACHINE")
    echo("Ctrl-C ends this page. The run is not affected.")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("")
