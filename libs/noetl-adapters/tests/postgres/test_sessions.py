"""Connections that are lent, lost, waited for and given back."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest
from noetl_adapters.postgres.sessions import PostgresSessions


class Connection:
    def __init__(self) -> None:
        self.closed = False
        self.answer: list[tuple[int]] | Exception = [(7,)]
        self.hangs = False
        self.in_transaction = False

    async def fetch(self, statement: str, *arguments: object) -> list[tuple[int]]:
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def is_closed(self) -> bool:
        return self.closed

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def terminate(self) -> None:
        self.closed = True

    async def close(self, *, timeout: float) -> None:
        self.closed = True


class World:
    def __init__(self, *, max_size: int = 1) -> None:
        self.made: list[Connection] = []
        self.away = False
        self.sessions = PostgresSessions(self.connect, max_size=max_size)

    async def connect(self) -> Connection:
        await asyncio.sleep(0)
        if self.away:
            raise OSError("away")
        self.made.append(Connection())
        return self.made[-1]


async def test_a_connection_is_made_when_it_is_needed_and_kept() -> None:
    world = World(max_size=3)

    assert [await world.sessions.fetchval("SELECT 7") for _ in range(3)] == [7, 7, 7]

    assert len(world.made) == 1


async def test_no_more_are_made_than_there_may_be_and_who_waits_gets_them_in_turn() -> None:
    world = World(max_size=2)
    first, second = await world.sessions.take(), await world.sessions.take()
    waiting = [asyncio.create_task(world.sessions.take()) for _ in range(2)]
    await asyncio.sleep(0)

    world.sessions.give_back(second)
    late = asyncio.create_task(world.sessions.take())
    assert await waiting[0] is second
    world.sessions.give_back(first)
    assert await waiting[1] is first
    assert not late.done()
    world.sessions.give_back(second)

    assert await late is second
    assert len(world.made) == 2


async def test_who_is_cancelled_while_waiting_takes_nothing_along() -> None:
    world = World()
    connection = await world.sessions.take()
    waiting = asyncio.create_task(world.sessions.take())
    granted = asyncio.create_task(world.sessions.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    world.sessions.give_back(connection)
    granted.cancel()  # in the moment in which it was to have it
    await asyncio.wait((waiting, granted))

    assert await asyncio.wait_for(world.sessions.take(), 30) is connection


@pytest.mark.parametrize("error", [asyncpg.UniqueViolationError("taken"), asyncpg.QueryCanceledError("too long")])
async def test_an_error_that_the_server_answered_with_costs_no_connection(error: Exception) -> None:
    world = World()
    await world.sessions.execute("SELECT 7")
    world.made[0].answer = error

    with pytest.raises(type(error)):
        await world.sessions.fetch("SELECT 7")
    world.made[0].answer = [(7,)]
    await world.sessions.fetch("SELECT 7")

    assert len(world.made) == 1


@pytest.mark.parametrize("error", [TimeoutError(), OSError("gone"), asyncpg.InterfaceError("busy")])
async def test_a_statement_that_did_not_end_costs_its_connection(error: Exception) -> None:
    world = World()
    await world.sessions.execute("SELECT 7")
    world.made[0].answer = error

    with pytest.raises(type(error)):
        await world.sessions.fetch("SELECT 7")
    await world.sessions.fetch("SELECT 7")

    assert [one.closed for one in world.made] == [True, False]


async def test_a_statement_that_is_cancelled_costs_its_connection_and_whoever_waits_gets_another() -> None:
    world = World()
    await world.sessions.execute("SELECT 7")
    world.made[0].hangs = True
    hanging = asyncio.create_task(world.sessions.fetch("SELECT 7"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(world.sessions.fetchval("SELECT 7"))
    await asyncio.sleep(0)

    hanging.cancel()

    assert await asyncio.wait_for(waiting, 30) == 7
    assert [one.closed for one in world.made] == [True, False]


async def test_connections_that_the_server_closed_are_not_given_to_anybody() -> None:
    world = World()
    await world.sessions.execute("SELECT 7")
    world.made[0].closed = True

    assert await world.sessions.fetchval("SELECT 7") == 7
    assert len(world.made) == 2


async def test_a_transaction_that_was_left_open_ends_with_its_connection() -> None:
    world = World()
    async with world.sessions.acquire() as connection:
        connection.in_transaction = True

    assert world.made[0].closed


async def test_a_server_that_is_away_holds_no_places() -> None:
    world = World()
    world.away = True
    asking = [asyncio.create_task(world.sessions.fetch("SELECT 7")) for _ in range(3)]
    await asyncio.wait(asking)
    assert [type(one.exception()) for one in asking] == [OSError] * 3
    world.away = False

    assert await world.sessions.fetchval("SELECT 7") == 7


async def test_who_waits_when_all_is_closed_is_told_and_what_is_in_use_goes_when_it_is_given_back() -> None:
    world = World()
    connection = await world.sessions.take()
    waiting = asyncio.create_task(world.sessions.take())
    await asyncio.sleep(0)

    await world.sessions.close()

    with pytest.raises(asyncpg.InterfaceError):
        await waiting
    with pytest.raises(asyncpg.InterfaceError):
        await world.sessions.take()
    world.sessions.give_back(connection)
    assert connection.closed
