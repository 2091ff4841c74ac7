"""The two processes of a projector: who waits for a row is told of it, and nobody is woken while nobody waits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from noetl_projector.application.version_signals import VersionSignals
from noetl_projector.entrypoints.query_link import HeardState, Link, ToldRows
from noetl_testkit.until import until

FAR_TOO_LONG = 600.0


class Pair:
    """Both ends, each with what it does with what it hears."""

    def __init__(self, writer: Link, answerer: Link) -> None:
        self.told = ToldRows()
        self.told.attach(writer)
        self.signals = VersionSignals()
        self.signals.ask = lambda wanted: self._ask(answerer, wanted)
        self.heard = HeardState(self.signals.announce, self.signals.announce_all)
        self.to_answerer: list[Mapping[str, Any]] = []
        self.to_writer: list[Mapping[str, Any]] = []
        self.deaf = asyncio.Event()
        self.deaf.set()
        self._writer, self._answerer = writer, answerer

    def _ask(self, answerer: Link, wanted: bool) -> None:
        answerer.send({"waits": wanted})

    async def answer(self) -> None:
        async for message in self._answerer.messages():
            self.to_answerer.append(message)
            self.heard.hear(message)

    async def write(self) -> None:
        async for message in self._writer.messages():
            await self.deaf.wait()
            self.to_writer.append(message)
            self.told.heed(message)

    async def wait_for(self, execution_id: int) -> None:
        with self.signals.listen(execution_id) as moved:
            await moved.wait(timeout_seconds=FAR_TOO_LONG)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    links = await Link.over(ours), await Link.over(theirs)
    pair = Pair(*links)
    tasks = [asyncio.create_task(pair.answer()), asyncio.create_task(pair.write())]
    yield pair
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    for link in links:
        link.close()


async def test_nothing_is_said_of_rows_while_nobody_waits(pair: Pair) -> None:
    pair.told.announce(1)
    with pair.signals.listen(1):
        pair.told.announce(1)  # who only looks at a row does not wait
    pair.told.state(owned=[3], quarantined=[])

    await until(lambda: pair.heard.owns(3))

    assert [list(message) for message in pair.to_answerer] == [["owned", "quarantined"]]


async def test_who_waits_is_woken_by_what_is_written_afterwards(pair: Pair) -> None:
    first = asyncio.create_task(pair.wait_for(1))
    await until(lambda: {"look": True} in pair.to_answerer)
    await asyncio.wait_for(first, 60)  # to look once more
    second = asyncio.create_task(pair.wait_for(1))
    await asyncio.sleep(0)

    pair.told.announce(2)
    pair.told.announce(1)

    await asyncio.wait_for(second, 60)
    assert pair.to_writer == [{"waits": True}]
    assert pair.to_answerer == [{"look": True}, {"written": ["2", "1"]}]


async def test_what_is_written_before_the_writer_hears_of_the_wait_is_found_by_looking_again(pair: Pair) -> None:
    pair.deaf.clear()
    waiting = asyncio.create_task(pair.wait_for(1))
    await asyncio.sleep(0)
    pair.told.announce(1)  # which says nothing: the writer does not know yet
    pair.deaf.set()

    await asyncio.wait_for(waiting, 60)

    assert pair.to_answerer == [{"look": True}]


async def test_the_writer_is_silent_again_when_nobody_has_waited_for_a_while(pair: Pair) -> None:
    waiting = asyncio.create_task(pair.wait_for(1))
    await asyncio.wait_for(waiting, 60)
    holding = asyncio.create_task(pair.wait_for(2))
    await asyncio.sleep(0)
    pair.signals.rest()  # somebody waits still
    pair.told.announce(2)
    await asyncio.wait_for(holding, 60)
    pair.signals.rest()
    pair.signals.rest()
    await until(lambda: pair.to_writer == [{"waits": True}, {"waits": False}])
    said = len(pair.to_answerer)

    pair.told.announce(1)
    pair.told.state(owned=[3], quarantined=[])
    await until(lambda: pair.heard.owns(3))

    assert len(pair.to_answerer) == said + 1
    again = asyncio.create_task(pair.wait_for(1))
    await asyncio.wait_for(again, 60)


async def test_another_answering_process_is_told_nothing_until_it_asks(pair: Pair) -> None:
    await asyncio.wait_for(pair.wait_for(1), 60)
    pair.told.attach(pair._writer)

    pair.told.announce(1)
    pair.told.state(owned=[3], quarantined=[])
    await until(lambda: pair.heard.owns(3))

    assert [message for message in pair.to_answerer if "written" in message] == []
