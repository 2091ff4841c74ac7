"""An installed database for every test that wants one, copied from a template that is made once."""

from collections.abc import Iterator

import pytest
from noetl_adapters.postgres.migrate import migrate
from noetl_adapters.postgres.partitions import PostgresPartitions
from noetl_adapters.postgres.pool import open_pool
from noetl_testkit.backends import PostgresBackend, TemplateDatabase, fresh_database, template_database


@pytest.fixture(scope="session")
def installed_template(postgres_server: PostgresBackend) -> Iterator[TemplateDatabase]:
    """The schema with 64 shards, and the partitions of these weeks."""

    async def prepare(dsn: str) -> None:
        await migrate(dsn, shard_count=64)
        pool = await open_pool(dsn, min_size=1, max_size=1, application_name="test")
        await PostgresPartitions(pool).ensure()
        await pool.close()

    with template_database(postgres_server, prepare) as template:
        yield template


@pytest.fixture
def installed_dsn(postgres_server: PostgresBackend, installed_template: TemplateDatabase) -> Iterator[str]:
    """The administrator's address of a freshly installed database."""
    with fresh_database(postgres_server, installed_template) as dsn:
        yield dsn


@pytest.fixture
def api_dsn(installed_dsn: str) -> str:
    """The same database with the grants that api has."""
    return f"{installed_dsn}?role=noetl_api"
