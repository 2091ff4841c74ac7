from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import asyncpg
import pytest
from noetl_adapters.postgres.commit_listener import EVERYTHING, PostgresCommitListener, moved_streams
from noetl_core.errors import Unavailable


class Heard:
    """What a listener was told, in order."""

    def __init__(self) -> None:
        self.notices: asyncio.Queue[str] = asyncio.Queue()

    async def next(self) -> str:
        async with asyncio.timeout(60):
            return await self.notices.get()


@pytest.fixture
async def admin(installed_dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(installed_dsn)
    yield connection
    await connection.close()


def listener(dsn: str, heard: Heard) -> PostgresCommitListener:
    return PostgresCommitListener(dsn, application_name="test-listener", hear=heard.notices.put_nowait)


async def test_notices_of_commits_are_heard_as_they_were_sent(api_dsn: str, admin: asyncpg.Connection) -> None:
    heard = Heard()
    listening = asyncio.create_task(listener(api_dsn, heard).run(lambda: None))

    assert await heard.next() == EVERYTHING
    await admin.execute("SELECT pg_notify('noetl_commit', '3:77:5 4:78:6')")
    assert await heard.next() == "3:77:5 4:78:6"

    listening.cancel()
    with suppress(asyncio.CancelledError):
        await listening


async def test_a_lost_connection_ends_as_unavailable_and_it_and_the_next_one_say_that_anything_may_have_moved(
    api_dsn: str, admin: asyncpg.Connection
) -> None:
    heard = Heard()
    one = listener(api_dsn, heard)
    first = asyncio.create_task(one.run(lambda: None))
    assert await heard.next() == EVERYTHING

    await admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'test-listener'"
    )
    with pytest.raises(Unavailable):
        await first
    assert await heard.next() == EVERYTHING
    again = asyncio.create_task(one.run(lambda: None))

    assert await heard.next() == EVERYTHING
    again.cancel()
    with suppress(asyncio.CancelledError):
        await again


def test_a_notice_names_executions_and_versions() -> None:
    assert moved_streams("3:77:5 4:78:6") == [(77, 5), (78, 6)]
    assert moved_streams(EVERYTHING) is None
