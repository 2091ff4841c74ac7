"""The real backends as fixtures; a root conftest.py enables them with `pytest_plugins`."""

from collections.abc import Iterator

import pytest

from noetl_testkit import backends, object_stores
from noetl_testkit.backends import NatsBackend, PostgresBackend
from noetl_testkit.object_stores import ObjectServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresBackend]:
    """A PostgreSQL server shared by the whole run; take a `fresh_database` of it for each test."""
    with backends.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsBackend]:
    """A NATS server with JetStream shared by the whole run."""
    with backends.nats_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[ObjectServer]:
    """An S3 server shared by the whole run; take a `new_bucket` of it."""
    with object_stores.s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server() -> Iterator[ObjectServer]:
    """A GCS server shared by the whole run; take a `new_bucket` of it."""
    with object_stores.gcs_server() as server:
        yield server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[ObjectServer]:
    """A blob server of Azure shared by the whole run; take a `new_bucket` of it."""
    with object_stores.azure_server() as server:
        yield server
