"""Warm child processes for user Python: quick to take, never shared between tenants, always killable."""

import asyncio
import itertools
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from noetl_core.canonical import JsonValue
from noetl_core.errors import Overloaded, Unavailable
from noetl_core.playbook.plain import plain

from noetl_worker.tools.python_call import Answered, CallEnd
from noetl_worker.tools.python_process import ProcessLimits, PythonProcess
from noetl_worker.tools.python_protocol import Request

PASSED_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
"""All that user code sees of the worker's environment, which holds tokens and addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How many children there are, and when one has served long enough."""

    size: int = 4
    """Calls at once; a further call waits."""
    spares: int = 1
    """Warm children beyond these that have not seen any user's code yet."""
    max_waiting: int = 1000
    max_calls_per_child: int = 500
    max_rss_bytes: int = 512 * 1024 * 1024
    process: ProcessLimits = field(default_factory=ProcessLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose code a child has run: it will never run anybody else's."""

    tenant_id: str
    organization_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonCode:
    """A program with the values it is given."""

    source: str
    inputs: Mapping[str, JsonValue] = field(default_factory=dict)
    context: Mapping[str, object] = field(default_factory=dict)
    """Template names: data, or views of data."""
    libs: Mapping[str, JsonValue] = field(default_factory=dict)


class PythonPool:
    """At most `size` children run or keep themselves for their owner, and `spares` more wait unassigned."""

    def __init__(self, *, limits: PoolLimits, environment: Mapping[str, str]) -> None:
        self._limits = limits
        self._environment = {name: environment[name] for name in PASSED_VARIABLES if name in environment}
        self._free_slots = asyncio.Semaphore(limits.size)
        self._waiting = 0
        self._running = 0
        self._idle: list[tuple[Owner, PythonProcess]] = []
        self._spares: deque[asyncio.Task[PythonProcess]] = deque()
        self._alive: set[PythonProcess] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self._request_ids = itertools.count(1)
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Start the spares and wait until they are warm."""
        self._order_spares()
        await asyncio.gather(*self._spares)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill every child, also those with a call, and wait until all are gone."""
        self._is_closed = True
        for starting in self._spares:
            starting.cancel()
        await asyncio.gather(*self._spares, return_exceptions=True)
        for child in tuple(self._alive):
            self._dismiss(child)
        await asyncio.gather(*self._farewells)

    @property
    def waiting_calls(self) -> int:
        """Calls for which no slot is free."""
        return self._waiting

    async def run(self, *, owner: Owner, code: PythonCode, timeout_seconds: float | None) -> CallEnd:
        """One call, in a child that has only ever worked for this owner; its time counts from there on."""
        if self._is_closed:
            raise Unavailable("the pool of Python children is closed")
        if self._waiting >= self._limits.max_waiting:
            raise Overloaded(f"{self._waiting} calls wait for a Python child already")
        request_id = next(self._request_ids)
        message = self._message(request_id, code)
        self._waiting += 1
        try:
            await self._free_slots.acquire()
        finally:
            self._waiting -= 1
        self._running += 1
        try:
            child = await self._child_for(owner)
            end: CallEnd | None = None
            try:
                end = await child.call(message, request_id=request_id, timeout_seconds=timeout_seconds)
                return end
            finally:  # also when cancelled: then there is no end, and the child goes
                if self._may_serve_again(child, end):
                    self._idle.append((owner, child))
                else:
                    self._dismiss(child)
        finally:
            self._running -= 1
            self._free_slots.release()

    def _message(self, request_id: int, code: PythonCode) -> bytes:
        request = Request(
            id=request_id,
            source=code.source,
            inputs=dict(code.inputs),
            context=dict(code.context),
            libs=dict(code.libs),
            max_result_bytes=self._limits.process.max_result_bytes,
        )
        return json.dumps(request, default=plain).encode()

    def _may_serve_again(self, child: PythonProcess, end: CallEnd | None) -> bool:
        return (
            isinstance(end, Answered)
            and end.answer.retire is None
            and end.answer.rss_bytes <= self._limits.max_rss_bytes
            and child.calls < self._limits.max_calls_per_child
            and child.is_alive
            and not self._is_closed
        )

    async def _child_for(self, owner: Owner) -> PythonProcess:
        for index in reversed(range(len(self._idle))):
            idle_owner, child = self._idle[index]
            if idle_owner == owner:
                del self._idle[index]
                if child.is_alive:
                    return child
        while self._idle and len(self._idle) + self._running > self._limits.size:
            self._dismiss(self._idle.pop(0)[1])  # the one that has been without work for longest
        return await self._take_spare()

    async def _take_spare(self) -> PythonProcess:
        """A warm child, or the next that becomes so; each one taken is replaced behind the scenes."""
        while self._spares:
            starting = self._spares.popleft()
            try:
                # Shielded: if this call is cancelled, the child is still a good spare.
                child = await asyncio.shield(starting)
            except asyncio.CancelledError:
                if starting.cancelled():
                    raise Unavailable("the pool of Python children is closed") from None
                self._spares.appendleft(starting)
                raise
            except Unavailable:
                continue  # it failed some time ago; what matters is whether one can be started now
            if child.is_alive:
                self._order_spares()
                return child
        child = await self._start_child()
        self._order_spares()
        return child

    def _order_spares(self) -> None:
        while len(self._spares) < self._limits.spares and not self._is_closed:
            self._spares.append(asyncio.create_task(self._start_child()))

    async def _start_child(self) -> PythonProcess:
        child = await PythonProcess.start(environment=self._environment, limits=self._limits.process)
        self._alive.add(child)
        if self._is_closed:
            self._dismiss(child)
            raise Unavailable("the pool of Python children is closed")
        return child

    def _dismiss(self, child: PythonProcess) -> None:
        child.kill()
        farewell = asyncio.create_task(self._see_off(child))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    async def _see_off(self, child: PythonProcess) -> None:
        await child.wait_exited()
        self._alive.discard(child)
