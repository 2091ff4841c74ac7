"""The database goes away and comes back under a running api."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from noetl_adapters.postgres.migrate import migrate
from noetl_cli.dev.postgres import EmbeddedPostgres
from noetl_core.errors import Unavailable
from noetl_testkit.backends import embedded_postgres
from noetl_testkit.compliance.event_log import chain_holds, history, note, request, start
from noetl_testkit.until import until


@pytest.fixture
def own_postgres() -> Iterator[EmbeddedPostgres]:
    with embedded_postgres() as server:
        yield server


@pytest.fixture
async def api_dsn(own_postgres: EmbeddedPostgres) -> str:
    """In place of the shared server, which nobody may stop."""
    await migrate(own_postgres.dsn(), shard_count=64)
    return f"{own_postgres.dsn()}?role=noetl_api"


async def test_callers_are_told_and_everything_goes_on_afterwards(api: Any, own_postgres: EmbeddedPostgres) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)
    watching = log.watch(None, execution_id, timeout=120)
    await anext(watching)

    await asyncio.to_thread(own_postgres.kill)
    outcomes = await asyncio.gather(
        *(log.append(request(execution_id, note(f"lost{n}"))) for n in range(10)), return_exceptions=True
    )
    await asyncio.to_thread(own_postgres.start)

    async def appends_again() -> bool:
        try:
            await log.append(request(execution_id, note("back")))
        except Unavailable:
            return False
        return True

    await until(appends_again, seconds=60)
    events = await history(log, execution_id)
    assert all(isinstance(outcome, Unavailable) for outcome in outcomes)
    assert [event.envelope().idempotency_key for event in events] == ["start", "back"]
    assert chain_holds(events)


async def test_followers_are_woken_again_after_the_connection_was_lost(
    api: Any, own_postgres: EmbeddedPostgres
) -> None:
    log = (await api.as_("service")).events
    execution_id = await start(log)

    await asyncio.to_thread(own_postgres.restart)

    followed: list[Any] = []

    async def follows() -> bool:
        watching = log.watch(None, execution_id, timeout=60)
        try:
            await anext(watching)
        except Unavailable:
            return False
        followed.append(watching)
        return True

    await until(follows, seconds=60)
    (watching,) = followed
    await until(lambda: api.group.health.report().ready, seconds=60)
    await log.append(request(execution_id, note("a")))
    async with asyncio.timeout(30):
        batch = await anext(watching)
    assert [event.stream_version for event in batch.events] == [2]
    await watching.aclose()
