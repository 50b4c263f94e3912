"""GCS as far as obstore uses it, in the form of a proxy before a server of S3.

Requests and answers of the XML interface are nearly those of S3. What differs is done here: the
token in place of a signature, names of metadata, the generation of each object, the condition on it, and the answer to
the removal of an object that is missing.
"""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote, unquote, urlsplit

import proxy

TOKEN = "ya29.cAnArYtOkEncAnArY"
CONDITION = "x-goog-if-generation-match"
_META = "x-goog-meta-"
SIGNED = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"


class Generations:
    """Generation of each object, and when it changed. While one request is made, no other is."""

    def __init__(self, pause):
        self.lock, self.pause = threading.Lock(), pause
        self.changed = {}
        self.n_refused = 0
        self.numbers = itertools.count(1_700_000_000_000_000)
        self.known = {}

    def is_too_soon(self, path):
        changed = self.changed.get(path)
        is_too_soon = changed is not None and time.monotonic() < changed + self.pause
        self.n_refused += is_too_soon
        return is_too_soon


class Translating(proxy.Passing):
    """Passes each request on as one of S3."""

    faults = proxy.Faults()
    generations: Generations

    def forwarded(self, body):
        at = urlsplit(self.path)
        path = unquote(at.path)
        headers = [
            (name, value)
            for name, value in self.headers.items()
            if not name.lower().startswith(("x-goog-", "authorization"))
        ]
        headers += [
            (f"x-amz-meta-{name.lower().removeprefix(_META)}", value)
            for name, value in self.headers.items()
            if name.lower().startswith(_META)
        ]
        headers.append(("Authorization", SIGNED))
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return refused(401, "AuthenticationRequired", "Authentication required.")
        with self.generations.lock:
            known = self.generations.known.get(path)
            wanted = self.headers.get(CONDITION)
            if self.command in ("PUT", "DELETE") and self.generations.is_too_soon(path):
                return refused(429, "SlowDown", "The object exceeded the rate limit.")
            if wanted is not None and int(wanted) != (known or 0):
                return refused(412, "PreconditionFailed", "A pre-condition did not hold.")
            if self.command == "DELETE" and known is None:
                return refused(404, "NoSuchKey", "The specified key does not exist.")
            target = at._replace(path=quote(path)).geturl()
            status, reason, answered, content = self.asked(target, headers, body)
            if status < 300 and self.command in ("PUT", "DELETE"):
                self.generations.changed[path] = time.monotonic()
            if status < 300 and self.command == "PUT":
                self.generations.known[path] = known = next(self.generations.numbers)
            if status < 300 and self.command == "DELETE":
                del self.generations.known[path]
        if known is not None:
            answered.append(("x-goog-generation", str(known)))
        answered = [(name.lower().replace("x-amz-meta-", _META), value) for name, value in answered]
        return status, reason, answered, content


def refused(status, code, message):
    content = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()
    return status, code, [("Content-Length", str(len(content)))], content


@contextmanager
def before(endpoint, pause):
    """Address of GCS before a server of S3, and the generations of its objects."""
    upstream, generations = urlsplit(endpoint).netloc, Generations(pause)
    with proxy.serving(Translating, upstream=upstream, generations=generations) as netloc:
        yield f"http://{netloc}", generations
