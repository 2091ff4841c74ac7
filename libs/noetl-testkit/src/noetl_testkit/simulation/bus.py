"""The bus of the simulation: durable consumers whose messages are lost, doubled, late and out of order."""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache

from noetl_core.ports.bus import Delivery, Message

from noetl_testkit.memory.bus import matches
from noetl_testkit.simulation.faults import Faults, Kind
from noetl_testkit.simulation.loop import VirtualLoop
from noetl_testkit.simulation.network import NOBODY, Network

ACK_SECONDS = 8.0
"""After which a message that nobody has settled comes again."""

_matches = lru_cache(maxsize=4096)(matches)
Receive = Callable[[bytes], Awaitable[None]]


@dataclass(slots=True)
class _Queue:
    """What a durable consumer has yet to settle."""

    subjects: tuple[str, ...]
    due: dict[int, Message] = field(default_factory=dict)
    sent: dict[int, Message] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)
    kept: set[tuple[int, int]] = field(default_factory=set)
    """Deliveries, by number and attempt, that do not come again when their time is over for the first time."""
    news: asyncio.Event = field(default_factory=asyncio.Event)


class SimulatedBus:
    """Takes each message id once; every copy that it hands on has a number, and so a fate."""

    def __init__(self, network: Network, chance: random.Random, faults: Faults, trace: Callable[[str], None]) -> None:
        self.messages = 0
        self._loop: VirtualLoop = network.loop
        self._network = network
        self._chance = chance.random
        self._faults = faults
        self._trace = trace
        self._ids: set[str] = set()
        self._queues: dict[str, _Queue] = {}
        self._listeners: dict[str, tuple[contextvars.Context, Sequence[tuple[str, Receive]]]] = {}
        self._numbers = 0

    async def publish_batch(self, messages: Sequence[Message]) -> None:
        """Port `Publisher`."""
        await asyncio.sleep(self._chance() * 0.001)
        for message in messages:
            self.take(message)

    def take(self, message: Message) -> None:
        """One message, unless it was here before."""
        if message.message_id in self._ids:
            return
        self._ids.add(message.message_id)
        for name, queue in self._queues.items():
            if any(_matches(subject, message.subject) for subject in queue.subjects):
                self._hand_on(name, message)
        for context, wanted in self._listeners.values():
            for subject, receive in wanted:
                if _matches(subject, message.subject):
                    self.later(self._delay(), self._tell, context, receive, message.body)

    def _tell(self, context: contextvars.Context, receive: Receive, body: bytes) -> None:
        async def hear() -> None:
            await receive(body)

        self._loop.create_task(hear(), context=context.copy())

    def _hand_on(self, name: str, message: Message) -> None:
        number, self.messages = self.messages, self.messages + 1
        fault = self._faults.messages.get(number)
        if fault is None:
            self.later(self._delay(), self._arrive, name, message)
            return
        self._trace(f"{fault.kind.value}: {message.subject} for {name} (message {number})")
        if fault.kind is not Kind.MESSAGE_LOST:
            late = fault.seconds if fault.kind is Kind.MESSAGE_LATE else 0.0
            self.later(self._delay() + late, self._arrive, name, message)
        if fault.kind is Kind.MESSAGE_DOUBLED:
            self.later(self._delay() + fault.seconds, self._arrive, name, message)

    def _arrive(self, name: str, message: Message) -> None:
        queue = self._queues[name]
        self._numbers += 1
        queue.due[self._numbers] = message
        queue.news.set()

    def later(self, seconds: float, callback: Callable[..., None], *args: object) -> None:
        """What is on the bus does not die with whoever sent it."""
        self._loop.call_later(seconds, callback, *args, context=NOBODY)

    def _delay(self) -> float:
        drawn = self._chance()
        return 0.0005 + drawn * 0.004 if drawn < 0.95 else self._chance() * 0.5

    def consumer(self, durable: str, subjects: Sequence[str]) -> SimulatedConsumer:
        """A consumer in the place where its predecessor was; what that one had not settled comes again."""
        queue = self._queues.get(durable)
        if queue is None:
            queue = self._queues[durable] = _Queue(subjects=tuple(subjects))
        elif subjects:
            queue.subjects = tuple(subjects)
        return SimulatedConsumer(self, queue)

    def listen(self, listener: str, subjects: Sequence[tuple[str, Receive]]) -> None:
        """Hear what is published from now on; a process that starts again takes the place of the one before."""
        self._listeners[listener] = (contextvars.copy_context(), subjects)

    def deliver(self, queue: _Queue, batch: int) -> tuple[Delivery, ...]:
        """What is due; it comes again unless it is settled in time."""
        numbers = list(queue.due)[:batch]
        deliveries = []
        for number in numbers:
            message = queue.sent[number] = queue.due.pop(number)
            queue.attempts[number] = queue.attempts.get(number, 0) + 1
            deliveries.append(
                Delivery(
                    subject=message.subject,
                    body=message.body,
                    headers=message.headers,
                    receipt=str(number),
                    attempt=queue.attempts[number],
                )
            )
            self.later(ACK_SECONDS, self._give_back_in_time, queue, number, queue.attempts[number])
        return tuple(deliveries)

    def _give_back_in_time(self, queue: _Queue, number: int, attempt: int) -> None:
        if (number, attempt) in queue.kept:
            queue.kept.discard((number, attempt))
            self.later(ACK_SECONDS, self._give_back_in_time, queue, number, attempt)
        else:
            self.give_back(queue, number, attempt)

    def give_back(self, queue: _Queue, number: int, attempt: int) -> None:
        """Nobody has settled this delivery of it."""
        if number in queue.sent and queue.attempts[number] == attempt:
            queue.due[number] = queue.sent.pop(number)
            queue.news.set()


class SimulatedConsumer:
    """Port `PullConsumer`."""

    def __init__(self, bus: SimulatedBus, queue: _Queue) -> None:
        self._bus = bus
        self._queue = queue

    async def fetch(self, *, batch: int, wait_seconds: float) -> tuple[Delivery, ...]:
        """What is there, as soon as anything is."""
        queue = self._queue
        if not queue.due:
            queue.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await queue.news.wait()
        else:
            await asyncio.sleep(0.0003)
        return self._bus.deliver(queue, batch)

    async def ack(self, deliveries: Iterable[Delivery]) -> None:
        """They are dealt with."""
        for delivery in deliveries:
            self._queue.sent.pop(int(delivery.receipt), None)

    async def nak(self, deliveries: Iterable[Delivery], *, delay_seconds: float = 0.0) -> None:
        """They are to come again."""
        for delivery in deliveries:
            number = int(delivery.receipt)
            self._bus.later(delay_seconds, self._bus.give_back, self._queue, number, delivery.attempt)

    async def keep(self, deliveries: Iterable[Delivery]) -> None:
        """They are still to be dealt with."""
        self._queue.kept.update((int(delivery.receipt), delivery.attempt) for delivery in deliveries)

    async def term(self, deliveries: Iterable[Delivery]) -> None:
        """They are never to come again."""
        await self.ack(deliveries)

    async def set_subjects(self, subjects: Sequence[str]) -> None:
        """Listen to these from now on."""
        await asyncio.sleep(0.001)
        self._queue.subjects = tuple(subjects)

    async def close(self) -> None:
        """Nothing was fetched ahead."""
