"""The real backends as fixtures; a root conftest.py enables them with `pytest_plugins`."""

from collections.abc import Iterator

import pytest

from noetl_testkit import backends
from noetl_testkit.backends import NatsBackend, PostgresBackend


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
