"""Who gets a connection, when and in which order, whatever is cancelled or lost meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest
from noetl_adapters.postgres.connection_pool import IDLE_SECONDS, ConnectionPool


class Connection:
    """Stands for one of the driver's."""

    def __init__(self) -> None:
        self.closed = self.in_transaction = False
        self._top_xact: object | None = None
        self.ran: list[str] = []
        self.stuck: asyncio.Event | None = None

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self) -> None:
        self.closed = True

    async def execute(self, query: str) -> str:
        self.ran.append(query)
        if self.stuck is not None:
            await self.stuck.wait()
        self.in_transaction = False
        return ""


class Server:
    def __init__(self) -> None:
        self.connections: list[Connection] = []
        self.trouble: Exception | None = None
        self.now = 0.0

    async def connect(self) -> Connection:
        await asyncio.sleep(0)
        if self.trouble is not None:
            raise self.trouble
        self.connections.append(Connection())
        return self.connections[-1]

    def pool(self, **sizes: int) -> ConnectionPool:
        return ConnectionPool(self.connect, **sizes, clock=lambda: self.now)


class User:
    """Uses a connection until it is told to stop."""

    def __init__(self, pool: ConnectionPool, order: list[User] | None = None) -> None:
        self.connection: Any = None
        self._enough = asyncio.Event()
        self._order = order
        self.task = asyncio.create_task(self._use(pool))

    async def _use(self, pool: ConnectionPool) -> None:
        async with pool.acquire() as self.connection:
            if self._order is not None:
                self._order.append(self)
            await self._enough.wait()

    async def end(self) -> None:
        self._enough.set()
        await self.task

    def stop_soon(self) -> None:
        self._enough.set()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_connection_that_was_given_back_is_used_again_and_never_by_two() -> None:
    server = Server()
    pool = server.pool(max_size=2)
    first, second = User(pool), User(pool)
    await settled()

    assert first.connection is not second.connection
    await first.end()
    third = User(pool)
    await settled()

    assert third.connection is first.connection
    assert (pool.size, pool.idle_size) == (2, 0)
    for user in (second, third):
        await user.end()
    assert (pool.size, pool.idle_size) == (2, 2)


async def test_who_waits_is_served_in_turn() -> None:
    order: list[User] = []
    pool = Server().pool(max_size=1)
    users = [User(pool, order) for _ in range(5)]
    await settled()
    for user in users:
        await user.end()
        await settled()

    assert order == users
    assert pool.size == 1


async def test_who_gives_up_waiting_takes_no_connection_along() -> None:
    pool = Server().pool(max_size=1)
    first, second, third = (User(pool) for _ in range(3))
    await settled()
    second.task.cancel()
    await asyncio.gather(second.task, return_exceptions=True)
    await first.end()
    await settled()

    assert third.connection is first.connection
    await third.end()
    assert (pool.size, pool.idle_size) == (1, 1)


async def test_who_is_cancelled_when_its_turn_has_come_passes_the_connection_on() -> None:
    pool = Server().pool(max_size=1)
    first, second, third = (User(pool) for _ in range(3))
    await settled()
    first.stop_soon()
    while not first.task.done():  # second has been told, and has not run yet  # noqa: ASYNC110
        await asyncio.sleep(0)
    second.task.cancel()
    await settled()

    assert third.connection is first.connection
    await third.end()
    await pool.close()
    assert pool.size == 0


async def test_a_connection_that_was_lost_makes_room_for_whoever_waits() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    first, second = User(pool), User(pool)
    await settled()
    first.connection.closed = True
    await first.end()
    await settled()

    assert second.connection is server.connections[1]
    await second.end()
    assert (pool.size, pool.idle_size) == (1, 1)


async def test_idle_connections_that_were_lost_are_passed_over() -> None:
    server = Server()
    pool = server.pool(max_size=2, min_size=2)
    await pool.open()
    for connection in server.connections:
        connection.closed = True
    user = User(pool)
    await settled()

    assert user.connection is server.connections[2]
    assert pool.size == 1
    await user.end()


async def test_a_connection_that_was_idle_for_long_is_not_trusted() -> None:
    server = Server()
    pool = server.pool(max_size=2, min_size=2)
    await pool.open()
    server.now += IDLE_SECONDS + 1
    user = User(pool)
    await settled()

    assert user.connection is server.connections[2]
    assert [connection.closed for connection in server.connections] == [True, True, False]
    assert pool.size == 1
    await user.end()
    server.now += IDLE_SECONDS - 1
    again = User(pool)
    await settled()
    assert again.connection is server.connections[2]
    await again.end()


async def test_a_server_that_is_away_is_told_to_everybody_and_taken_up_when_it_is_back() -> None:
    server = Server()
    server.trouble = ConnectionRefusedError()
    pool = server.pool(max_size=1)
    users = [User(pool) for _ in range(3)]
    outcomes = await asyncio.gather(*(user.task for user in users), return_exceptions=True)

    assert [type(outcome) for outcome in outcomes] == [ConnectionRefusedError] * 3
    assert pool.size == 0
    server.trouble = None
    user = User(pool)
    await settled()
    assert user.connection is not None
    await user.end()


async def test_an_error_of_a_statement_leaves_nothing_to_wait_for() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    with pytest.raises(asyncpg.UniqueViolationError):
        async with pool.acquire():
            raise asyncpg.UniqueViolationError

    assert server.connections[0].ran == []
    assert pool.idle_size == 1


async def test_what_was_cancelled_is_waited_for_before_the_next_use_also_if_that_is_cancelled() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    first = User(pool)
    await settled()
    connection = server.connections[0]
    connection.stuck = asyncio.Event()
    first.task.cancel()
    await settled()
    first.task.cancel()
    await settled()
    second = User(pool)
    await settled()

    assert first.task.cancelled()
    assert connection.ran == ["SELECT"]
    assert not second.connection
    connection.stuck.set()
    await settled()
    assert second.connection is connection
    await second.end()


async def test_a_transaction_that_was_left_open_is_rolled_back() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    async with pool.acquire() as connection:
        connection.in_transaction = True

    assert server.connections[0].ran == ["ROLLBACK"]
    assert pool.idle_size == 1


async def test_closing_waits_for_who_uses_a_connection_and_sends_away_who_waits_for_one() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    first, second = User(pool), User(pool)
    await settled()
    closing = asyncio.create_task(pool.close())
    await settled()

    assert not closing.done()
    with pytest.raises(asyncpg.InterfaceError):
        await second.task
    await first.end()
    await closing
    assert [connection.closed for connection in server.connections] == [True]
    with pytest.raises(asyncpg.InterfaceError):
        await pool.fetch("SELECT 1")


async def test_a_connection_that_comes_about_while_the_pool_closes_is_not_left_open() -> None:
    server = Server()
    may_open = asyncio.Event()

    async def slow() -> Connection:
        await may_open.wait()
        return await server.connect()

    pool = ConnectionPool(slow, max_size=1)
    user = User(pool)
    await settled()
    await pool.close()
    may_open.set()
    user.stop_soon()

    with pytest.raises(asyncpg.InterfaceError):
        await user.task
    assert [connection.closed for connection in server.connections] == [True]
    assert (pool.size, pool.idle_size) == (0, 0)


async def test_a_close_that_fails_or_is_given_up_leaves_no_connection_open() -> None:
    server = Server()
    pool = server.pool(max_size=3)
    users = [User(pool) for _ in range(3)]
    await settled()
    await users[0].end()
    closing = asyncio.create_task(pool.close())
    await settled()
    closing.cancel()

    with pytest.raises(asyncio.CancelledError):
        await closing
    assert [connection.closed for connection in server.connections] == [True] * 3
    for user in users[1:]:
        await user.end()
    assert (pool.size, pool.idle_size) == (0, 0)


async def test_a_pool_that_is_ended_at_once_sends_away_everybody_who_waits() -> None:
    pool = Server().pool(max_size=1)
    first, *others = [User(pool) for _ in range(3)]
    await settled()
    pool.terminate()

    for other in others:
        with pytest.raises(asyncpg.InterfaceError):
            await asyncio.wait_for(other.task, 5)
    await first.end()


async def test_a_connection_whose_transaction_was_cancelled_before_it_began_is_not_used_again() -> None:
    server = Server()
    pool = server.pool(max_size=1)
    async with pool.acquire() as connection:
        connection._top_xact = object()

    assert server.connections[0].closed
    assert pool.size == 0


async def test_connections_that_nobody_needs_are_closed_but_for_those_that_are_always_there() -> None:
    server = Server()
    pool = server.pool(max_size=3, min_size=1)
    await pool.open()
    users = [User(pool) for _ in range(3)]
    await settled()
    for user in users:
        await user.end()
    for _ in range(5):
        server.now += IDLE_SECONDS + 1
        await User(pool).end()

    assert pool.size == 1
    assert sum(not connection.closed for connection in server.connections) == 1


async def test_a_pool_that_cannot_open_leaves_no_connection_behind() -> None:
    server = Server()
    pool = server.pool(max_size=2, min_size=2)

    async def second_fails() -> Connection:
        if server.connections:
            raise ConnectionRefusedError
        return await server.connect()

    pool = ConnectionPool(second_fails, max_size=2, min_size=2)
    with pytest.raises(ConnectionRefusedError):
        await pool.open()

    assert [connection.closed for connection in server.connections] == [True]
