"""Processes that call each other: calls take time, get lost, come late or twice, and die with whom they reach."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from noetl_core.errors import NoetlError, Unavailable

from noetl_testkit.simulation.faults import Fault, Faults, Kind
from noetl_testkit.simulation.loop import CURRENT, Process, VirtualLoop

CALL_SECONDS = 5.0
"""How long a caller waits."""
NOBODY = contextvars.Context()
"""What is on its way belongs to no process."""

Trace = Callable[[str], None]


class Node:
    """A place where a process runs: it is killed and started again, each time from nothing."""

    def __init__(self, name: str, start: Callable[[Node], Awaitable[None]]) -> None:
        self.name = name
        self.start = start
        self.process: Process | None = None
        self.ports: dict[str, Any] = {}
        self.incarnations = 0
        self.wipe: Callable[[], None] | None = None
        self.waiting: dict[asyncio.Future[Any], None] = {}
        """Callers whose calls are here."""

    @property
    def is_up(self) -> bool:
        """Whether anybody would answer."""
        return self.process is not None and not self.process.is_dead


class _Call(NamedTuple):
    """On its way."""

    node: Node
    port: str
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    answer: asyncio.Future[Any]
    fault: Fault | None


class Network:
    """Everything that passes between processes, numbered; what is odd about the nth call is known beforehand."""

    def __init__(self, loop: VirtualLoop, chance: random.Random, faults: Faults, trace: Trace) -> None:
        self.loop = loop
        self.nodes: dict[str, Node] = {}
        self.calls = 0
        self._chance = chance.random
        self._faults = faults
        self._trace = trace

    def add(self, name: str, start: Callable[[Node], Awaitable[None]]) -> Node:
        """A new place, with its process."""
        node = self.nodes[name] = Node(name, start)
        self.boot(node)
        return node

    def boot(self, node: Node) -> None:
        """Start its process; what it offers is there when it says so."""
        if node.is_up:
            return
        node.incarnations += 1
        node.ports, node.wipe = {}, None
        node.process = self.loop.process(node.name)
        begun = self.loop.create_task(_begun(node), name=node.name, context=node.process.context.copy())
        begun.add_done_callback(self._note_defect, context=NOBODY)

    def _note_defect(self, begun: asyncio.Task[None]) -> None:
        if not begun.cancelled() and (error := begun.exception()) is not None:
            self.loop.unhandled.append(f"{begun.get_name()} ended with {error!r}")

    def kill(self, node: Node, *, down_seconds: float) -> None:
        """At once and without a word; it comes back after a while."""
        if node.process is None or node.process.is_dead:
            return
        self._trace(f"kill {node.name}")
        node.process.is_dead, node.process.runs = True, False
        node.ports = {}
        for answer in node.waiting:
            self._later(0.001, _fail, answer, f"{node.name} died")
        node.waiting = {}
        self._later(down_seconds, self.boot, node)

    def stop(self, node: Node, *, seconds: float) -> None:
        """It stands still, and does not know it."""
        process = node.process
        if process is None or not process.runs:
            return
        self._trace(f"stop {node.name} for {seconds:.2f} s")
        process.runs = False
        for answer in node.waiting:
            self._later(CALL_SECONDS, _fail, answer, f"{node.name} does not answer")
        self._later(seconds, self.loop.thaw, process)

    def remote(self, node: str, port: str) -> Any:
        """A port of another process."""
        return Remote(self, lambda: node, port)

    async def call(self, to: str, port: str, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a port; whatever becomes of the call, the caller hears something in the end."""
        number, self.calls = self.calls, self.calls + 1
        fault = self._faults.calls.get(number)
        call = _Call(self.nodes[to], port, method, args, kwargs, self.loop.create_future(), fault)
        delay = self._delay()
        if fault is not None:
            self._trace(f"{fault.kind.value}: {_caller()} -> {to} {port}.{method} (call {number})")
            delay = self._disturb(fault, call, delay)
        if fault is None or fault.kind is not Kind.CALL_LOST:
            self._later(delay, self._arrive, call)
        return await call.answer

    def _disturb(self, fault: Fault, call: _Call, delay: float) -> float:
        if fault.kind in (Kind.CALL_LOST, Kind.CALL_LATE):
            self._later(min(CALL_SECONDS, fault.seconds + 0.05), _fail, call.answer, "no answer in time")
        if fault.kind is Kind.CALL_DOUBLED:
            self._later(delay + fault.seconds, self._arrive, call)
        if fault.kind is Kind.CALL_SLOW:
            return delay + fault.seconds / 3
        return delay + fault.seconds + 0.1 if fault.kind is Kind.CALL_LATE else delay

    def _arrive(self, call: _Call) -> None:
        node = call.node
        process = node.process
        if process is None or process.is_dead or call.port not in node.ports:
            self._later(0.0005, _fail, call.answer, f"{node.name} is not there")
            return
        if not process.runs:
            self._later(CALL_SECONDS, _fail, call.answer, f"{node.name} does not answer")
        node.waiting[call.answer] = None
        self.loop.create_task(self._serve(call, node.ports[call.port]), context=process.context.copy())

    async def _serve(self, call: _Call, port: Any) -> None:
        result, error = None, None
        try:
            result = await getattr(port, call.method)(*call.args, **call.kwargs)
        except NoetlError as exc:
            error = exc
        call.node.waiting.pop(call.answer, None)
        if call.fault is not None and call.fault.kind is Kind.ANSWER_LOST:
            self._later(0.5, _fail, call.answer, "no answer in time")
        else:
            self._later(self._delay(), _answer, call.answer, result, error)

    def _delay(self) -> float:
        """A millisecond or so; one in fifty takes a lot longer."""
        drawn = self._chance()
        return 0.0003 + drawn * 0.002 if drawn < 0.98 else self._chance() * 0.3

    def _later(self, seconds: float, callback: Callable[..., None], *args: Any) -> None:
        self.loop.call_later(seconds, callback, *args, context=NOBODY)


class Remote:
    """Looks like the port that it leads to."""

    def __init__(self, network: Network, where: Callable[[], str], port: str) -> None:
        self._network = network
        self._where = where
        self._port = port

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any, **kwargs: Any) -> Awaitable[Any]:
            return self._network.call(self._where(), self._port, method, args, kwargs)

        self.__dict__[method] = call
        return call


async def _begun(node: Node) -> None:
    await node.start(node)


def _caller() -> str:
    process = CURRENT.get()
    return process.name if process is not None else "nobody"


def _fail(answer: asyncio.Future[Any], reason: str) -> None:
    if not answer.done():
        answer.set_exception(Unavailable(reason))
        answer.exception()  # whoever asked may be gone


def _answer(answer: asyncio.Future[Any], result: Any, error: NoetlError | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
        answer.exception()
