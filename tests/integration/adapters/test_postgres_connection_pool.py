"""Connections of a real server, lent and given back: after errors and cancellation, and when the server ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import ConnectionPool
from noetl_adapters.postgres.pool import open_pool, translated
from noetl_core.errors import Unavailable
from noetl_testkit.until import until


@pytest.fixture
async def pool(api_dsn: str) -> AsyncIterator[ConnectionPool]:
    pool = await open_pool(api_dsn, min_size=1, max_size=1, application_name="test")
    yield pool
    await pool.close()


async def backend(pool: ConnectionPool) -> int:
    pid: int = await pool.fetchval("SELECT pg_backend_pid()")
    return pid


async def test_a_query_that_is_cancelled_ends_on_the_server_before_its_connection_is_used_again(
    pool: ConnectionPool, installed_dsn: str
) -> None:
    pid = await backend(pool)
    asleep = asyncio.create_task(pool.execute("SELECT pg_sleep(4)"))
    watcher = await asyncpg.connect(installed_dsn)
    try:
        await until(lambda: watcher.fetchval("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1", pid))
    finally:
        await watcher.close()
    asleep.cancel()
    begun = asyncio.get_running_loop().time()

    assert await backend(pool) == pid
    assert asyncio.get_running_loop().time() - begun < 3
    with pytest.raises(asyncio.CancelledError):
        await asleep


async def test_a_statement_that_fails_and_a_transaction_that_is_left_open_cost_no_connection(
    pool: ConnectionPool,
) -> None:
    pid = await backend(pool)
    with pytest.raises(asyncpg.DivisionByZeroError):
        await pool.fetchval("SELECT 1/0")
    async with pool.acquire() as connection:
        await connection.execute("BEGIN")
        await connection.execute("CREATE TEMP TABLE left_open (n int)")

    assert await backend(pool) == pid
    assert await pool.fetchval("SELECT to_regclass('left_open')") is None


async def test_a_transaction_that_is_cancelled_while_it_begins_spoils_none_that_follow(pool: ConnectionPool) -> None:
    begun = asyncio.Event()

    async def begin() -> None:
        async with pool.acquire() as connection:
            begun.set()
            async with connection.transaction():
                pass

    await backend(pool)
    beginning = asyncio.create_task(begin())
    await begun.wait()
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning

    for _ in range(2):
        async with pool.acquire() as connection, connection.transaction():
            assert connection.is_in_transaction()


async def test_a_transaction_that_began_although_it_was_cancelled_is_nobody_elses(pool: ConnectionPool) -> None:
    async def begin() -> None:
        async with pool.acquire() as connection:
            await connection.execute("BEGIN")

    await backend(pool)
    for _ in range(50):  # the server has begun it before it hears of the end, every other time
        beginning = asyncio.create_task(begin())
        await asyncio.sleep(0)
        beginning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await beginning

        async with pool.acquire() as connection:
            assert not connection.is_in_transaction()


async def test_a_connection_that_the_server_has_ended_is_replaced(pool: ConnectionPool, installed_dsn: str) -> None:
    pid = await backend(pool)
    owner = await asyncpg.connect(installed_dsn)
    try:
        await owner.execute("SELECT pg_terminate_backend($1)", pid)
    finally:
        await owner.close()

    async def is_another() -> bool:
        try:
            async with translated():
                return await backend(pool) != pid
        except Unavailable:  # the driver has several ways to say it
            return False

    await until(is_another)
    assert pool.size == 1


async def test_a_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await open_pool("postgresql://nobody@127.0.0.1:1/none", min_size=1, max_size=1, application_name="test")


async def test_a_server_whose_log_goes_on_otherwise_than_was_told_is_not_used_until_it_was(
    installed_dsn: str,
) -> None:
    owner = await asyncpg.connect(installed_dsn)
    told = ""
    pool = await open_pool(
        f"{installed_dsn}?role=noetl_projector",
        min_size=1,
        max_size=2,
        application_name="told",
        log_branch=lambda: told,
    )
    try:
        assert await pool.fetchval("SELECT 1") == 1, "nothing was told yet, so nothing is known either"
        told = before = await owner.fetchval("SELECT noetl.log_branch()")
        await owner.execute("UPDATE noetl.installation SET restores = restores + 1")
        await owner.fetch("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'told'")

        async def use() -> bool:
            async with translated():
                return bool(await pool.fetchval("SELECT 1"))

        for _ in range(3):  # the first may find that its connection is gone
            with pytest.raises(Unavailable):
                await use()
        told = await owner.fetchval("SELECT noetl.log_branch()")
        assert told != before
        assert await use()
    finally:
        await pool.close()
        await owner.close()


async def test_a_connection_that_is_made_while_the_log_is_told_to_go_on_otherwise_is_not_used(
    installed_dsn: str,
) -> None:
    owner = await asyncpg.connect(installed_dsn)
    try:
        now = await owner.fetchval("SELECT noetl.log_branch()")
    finally:
        await owner.close()
    told = iter(["before", now])  # whoever asked for it knows of events that may be lost
    with pytest.raises(Unavailable):
        await open_pool(
            f"{installed_dsn}?role=noetl_projector",
            min_size=1,
            max_size=1,
            application_name="test",
            log_branch=lambda: next(told),
        )
