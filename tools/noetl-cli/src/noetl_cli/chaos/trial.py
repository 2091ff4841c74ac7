"""One run of the playbook, in which processes are killed when the log has come to where they should be."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from noetl_core.envelope import StoredEvent
from noetl_core.errors import NoetlError, Unavailable

from noetl_cli.chaos.boundaries import Kill
from noetl_cli.chaos.effects import CountedEffects, Effects
from noetl_cli.chaos.family import Family, Seen
from noetl_cli.chaos.own_stack import OwnStack
from noetl_cli.connection import Server, connected

PATIENCE_SECONDS = 60.0
"""For how long api may be away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What a kill met, and how long it took to be over; seconds."""

    kill: Kill
    at_number: int
    """How many events the execution had when we saw it: the log does not wait for us."""
    back: float | None = None
    """From the kill until another process was ready."""
    resumed: float | None = None
    """From then until the next event; None if none was left to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of a run."""

    execution_id: int
    histories: Mapping[str, Sequence[StoredEvent]]
    has_ended: bool
    seconds: float
    landed: tuple[Landed, ...]
    effects: CountedEffects


@dataclass(slots=True, kw_only=True)
class _Watch:
    """Kills that are to come, and those that have come."""

    stack: OwnStack
    pending: list[Kill]
    landed: list[Landed] = field(default_factory=list)
    ready: list[float | None] = field(default_factory=list)
    strikes: list[asyncio.Task[None]] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)

    def told(self, seen: Sequence[Seen]) -> None:
        """The log has moved."""
        if not seen:
            return
        for number, (landed, ready_at) in enumerate(zip(self.landed, self.ready, strict=True)):
            if landed.resumed is None and ready_at is not None:
                self.landed[number] = replace(landed, resumed=max(seen[-1].at - ready_at, 0.0))
        reached = seen[-1]
        self.reached[reached.place] = reached.number
        for kill in [one for one in self.pending if _is_due(one, reached)]:
            self.pending.remove(kill)
            self.strikes.append(asyncio.create_task(self._strike(kill)))

    async def _strike(self, kill: Kill) -> None:
        """In a thread: a process that was killed before may still be on its way back, and the log goes on meanwhile."""
        killed = await asyncio.to_thread(self.stack.kill, kill.service)
        number = len(self.landed)
        self.landed.append(Landed(kill=kill, at_number=self.reached[kill.boundary.place]))
        self.ready.append(None)
        ready_at = await asyncio.to_thread(self.stack.wait_replaced, killed)
        self.ready[number] = ready_at
        self.landed[number] = replace(self.landed[number], back=ready_at - killed.at)


class Trials:
    """Runs one playbook as often as it is asked to."""

    def __init__(
        self,
        stack: OwnStack,
        server: Server,
        *,
        path: str,
        version: int,
        payload: Mapping[str, Any],
        effects: Effects,
        timeout_seconds: float,
    ) -> None:
        self._stack = stack
        self._server = server
        self._path = path
        self._version = version
        self._payload = dict(payload)
        self._effects = effects
        self._timeout_seconds = timeout_seconds

    async def run(self, kills: Sequence[Kill] = ()) -> Trial:
        """From the start to the end, or until it has taken too long; then it is cancelled."""
        await asyncio.to_thread(self._stack.wait_ready)
        self._effects.taken()
        watch = _Watch(stack=self._stack, pending=list(kills))
        async with connected(self._server) as clients:
            family = Family(clients.events, watch.told, patience_seconds=PATIENCE_SECONDS)
            begun = time.monotonic()
            started = await clients.executions.execute(
                None, path=self._path, version=self._version, payload=self._payload
            )
            has_ended = False
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_seconds):
                    await _watched(family, started.execution_id)
                    has_ended = True
            seconds = time.monotonic() - begun
            await asyncio.gather(*watch.strikes)
            if not has_ended:
                with suppress(NoetlError):  # it may have ended this moment
                    await clients.executions.cancel(None, started.execution_id, reason="took too long")
        return Trial(
            execution_id=started.execution_id,
            histories=family.histories,
            has_ended=has_ended,
            seconds=seconds,
            landed=tuple(watch.landed),
            effects=self._effects.taken(),
        )


async def _watched(family: Family, execution_id: int) -> None:
    try:
        await family.watch(execution_id)
    except ExceptionGroup as group:
        _, others = group.split(Unavailable)
        if others is not None:
            raise others from None
        raise TimeoutError from group  # api was away for longer than we are patient


def _is_due(kill: Kill, reached: Seen) -> bool:
    return kill.boundary.place == reached.place and reached.number >= kill.boundary.number
