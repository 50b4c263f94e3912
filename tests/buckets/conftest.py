"""Servers that the tests of this folder share. Few processes run them; see `tests/conftest.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import dask
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import servers


@pytest.fixture(scope="session")
def moto_server():
    with servers.moto() as server:
        yield server


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory):
    with servers.seaweed(tmp_path_factory.mktemp("seaweed")) as server:
        yield server


@pytest.fixture(scope="session")
def azurite_server():
    with servers.azurite() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(moto_server):
    with servers.gcs_before(moto_server) as server:
        yield server


@pytest.fixture
def environment(monkeypatch):
    """Function that has this process, and dask's workers, reach a server, as a user does it."""
    told = "distributed.nanny.environ"
    with dask.config.set({told: {**dask.config.get(told, {})}}):

        def reach(server):
            for name, value in server.environment.items():
                monkeypatch.setenv(name, value)
            dask.config.get(told).update(server.environment)
            return server

        yield reach


@pytest.fixture
def moto(moto_server, environment):
    return environment(moto_server)


@pytest.fixture
def seaweed(seaweed_server, environment):
    return environment(seaweed_server)


@pytest.fixture
def service(request, environment):
    """The server whose name is the parameter; see `servers.on`."""
    return environment(request.getfixturevalue(f"{request.param}_server"))


@pytest.fixture
def url(request):
    """A new place in the bucket, which the name of the test tells from all others."""
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    is_any = "service" in request.fixturenames
    scheme = request.getfixturevalue("service").scheme if is_any else "s3"
    return f"{scheme}://{servers.BUCKET}/{name}/x.zarr"
