"""People who start executions, and some of whom change their minds; they repeat what was not answered."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from noetl_core.errors import AlreadyTerminal, NoetlError
from noetl_core.ports.steering import SteerAction

from noetl_testkit.simulation.nodes import SCOPE, Installation

PATIENCE_SECONDS = 0.5
LOOK_SECONDS = 2.0


class User:
    """One person, one execution; `mind` is empty, `cancel` or `pause`, and may say when: `cancel@1.5`."""

    def __init__(self, place: Installation, *, path: str, key: str, mind: str, chance: random.Random) -> None:
        self._place = place
        self._path = path
        self._key = key
        self._mind = mind
        self._chance = chance
        self.execution_id: int | None = None
        self.is_done = False

    async def live(self) -> None:
        """Start it; cancel it, or pause it and let it go on, at some moment."""
        await asyncio.sleep(self._chance.random() * 2)
        started = await self._insist(lambda: self._api().begin(self._path, self._key, {}))
        self.execution_id = started.execution_id
        mind, _, exactly = self._mind.partition("@")
        if mind:
            seconds = self._chance.random() * self._chance.choice((0.5, 2.0, 6.0))
            await asyncio.sleep(float(exactly) if exactly else seconds)
        if mind == "cancel":
            await self._insist(lambda: self._api().cancel(SCOPE, started.execution_id, reason="enough"))
        elif mind == "pause":
            await self._insist(lambda: self._api().steer(started.execution_id, SteerAction.PAUSE))
            await asyncio.sleep(self._chance.random() * 6)
            await self._insist(lambda: self._api().steer(started.execution_id, SteerAction.RESUME))
            await self._see_to_it(started.execution_id)
        self.is_done = True

    async def _see_to_it(self, execution_id: int) -> None:
        """A pause that was asked for twice, because nobody answered, may come after all: a person sees that."""
        stream = self._place.log.streams[execution_id]
        seen = 1
        while not stream.head.terminal:
            pauses = sum(event.envelope().event_type == "execution.paused" for event in stream.events)
            if pauses > seen:
                seen = pauses
                await self._insist(lambda: self._api().steer(execution_id, SteerAction.RESUME))
            await asyncio.sleep(LOOK_SECONDS)

    def _api(self) -> Any:
        return self._place.network.remote(self._chance.choice(self._place.apis), "api")

    async def _insist(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await ask()
            except AlreadyTerminal:
                return None
            except NoetlError as exc:
                if not exc.retryable:
                    raise
                await asyncio.sleep(PATIENCE_SECONDS)
