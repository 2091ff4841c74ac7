"""Pauses and resumes executions for people; the planner does it, because it knows what must be held back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from noetl_core.errors import AlreadyTerminal, InvalidInput, NotPaused, Unavailable
from noetl_core.ports.descendants import Descendants
from noetl_core.ports.event_log import EventLog, Scope
from noetl_core.ports.steering import SteerAction, Steered, Steering
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.cancel_execution import MAX_REASON_CHARACTERS
from noetl_api.application.scopes import visible_scope

logger = get_logger()

MAX_FAMILY: Final = 10_000
"""Executions below one that can be steered with it."""
_AT_ONCE: Final = 16


class SteerExecution:
    """Who may see an execution and write may steer it; others' executions do not exist."""

    def __init__(self, log: EventLog, descendants: Descendants, planner: Steering | None) -> None:
        self._log = log
        self._descendants = descendants
        self._planner = planner

    async def __call__(
        self,
        caller: Caller,
        scope: Scope | None,
        execution_id: int,
        action: SteerAction,
        *,
        reason: str = "",
        cascade: bool = False,
    ) -> Steered:
        """Do it; raises `AlreadyTerminal`, `NotPaused`, or `Unavailable` while nobody plans the execution.

        With `cascade` everything below it follows, from the top down. Whoever is interrupted repeats the request.
        """
        caller.require(Role.WRITER)
        check_reason(reason)
        await self._log.read(visible_scope(caller, scope), execution_id, limit=1)  # raises NotFound
        if self._planner is None:
            raise Unavailable("this api knows no planner (NOETL_PLANNER_ADDRESS), so that it can pause nothing")
        steered = await self._planner.steer(execution_id, action, by=caller.name, reason=reason)
        version = steered.stream_version
        logger.info("execution.steered", execution_id=str(execution_id), action=action.value, stream_version=version)
        if not cascade:
            return steered
        count = await self._cascade(self._planner, execution_id, action, by=caller.name, reason=reason)
        return replace(steered, descendants=count)

    async def _cascade(self, planner: Steering, execution_id: int, action: SteerAction, *, by: str, reason: str) -> int:
        """Until nobody new is below it: a call that was under way may have started a child meanwhile."""
        room = asyncio.Semaphore(_AT_ONCE)

        async def steer(one: int) -> bool:
            async with room:
                try:
                    await planner.steer(one, action, by=by, reason=reason)
                except (AlreadyTerminal, NotPaused):  # it has ended, or was not paused: nothing to do
                    return False
                return True

        done: dict[int, bool] = {}
        while True:
            below = await self._descendants.open_descendants(execution_id, limit=MAX_FAMILY + 1)
            if len(below) > MAX_FAMILY:
                raise InvalidInput(
                    f"execution {execution_id} has more than {MAX_FAMILY} executions below it that run: "
                    f"steer those of the next level with their own families"
                )
            fresh = [one for one in below if one not in done]
            if not fresh:
                return sum(done.values())
            done |= dict(zip(fresh, await asyncio.gather(*map(steer, fresh)), strict=True))


def check_reason(reason: str) -> None:
    """A reason is for people, and stands in an event."""
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidInput(f"a reason has at most {MAX_REASON_CHARACTERS} characters")
