"""Connections and pools that calls share: opened once per key, bounded in number, closed when nobody uses them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from noetl_core.errors import Overloaded, Unavailable
from noetl_core.ports.upkeep import Upkeep

K = TypeVar("K", bound=Hashable)
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingLimits:
    """How many are open at most, and for how long one stays open that nobody uses."""

    max_open: int = 32
    idle_seconds: float = 60.0
    close_seconds: float = 10.0


@dataclass(slots=True, kw_only=True, eq=False)
class Entry(Generic[R]):
    """What there is of one key."""

    opening: asyncio.Task[R]
    resource: R | None = None
    """Once it is open."""
    users: int = 0
    unused_since: float = 0.0


class Use(Generic[K, R]):
    """A resource while it is used. No generator, which would cost every row more than what it lends."""

    __slots__ = ("_entry", "_key", "_open_one", "_shared")

    def __init__(self, shared: SharedResources[K, R], key: K, open_one: Callable[[], Awaitable[R]]) -> None:
        self._shared = shared
        self._key = key
        self._open_one = open_one

    async def __aenter__(self) -> R:
        """Opened, if it is not yet."""
        self._entry = entry = self._shared.begin_use(self._key, self._open_one)
        try:
            return entry.resource if entry.resource is not None else await self._shared.opened(entry)
        except BaseException:
            self._shared.end_use(self._key, entry)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Others may use it, and somebody may close it."""
        self._shared.end_use(self._key, self._entry)


class SharedResources(Generic[K, R]):
    """Hands out one resource per key to any number of users at once."""

    def __init__(
        self,
        *,
        limits: SharingLimits,
        close: Callable[[R], Awaitable[None]],
        is_usable: Callable[[R], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = limits
        self._close = close
        self._is_usable = is_usable
        self._clock = clock
        self._entries: dict[K, Entry[R]] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Nothing is open yet; what stays unused is closed by `sweep`, which somebody does now and then (`upkeep`)."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything, also what is in use."""
        self._is_closed = True
        for key in tuple(self._entries):
            self._dismiss(key)
        await asyncio.gather(*self._farewells)

    @property
    def open_count(self) -> int:
        """How many there are at the moment."""
        return len(self._entries)

    def use(self, key: K, open_one: Callable[[], Awaitable[R]]) -> Use[K, R]:
        """The resource of a key, opened if need be; raises what opening raises, or `Overloaded`."""
        return Use(self, key, open_one)

    def begin_use(self, key: K, open_one: Callable[[], Awaitable[R]]) -> Entry[R]:
        """Of what has a user, nothing is closed; raises `Overloaded`."""
        entry = self._entry(key, open_one)
        entry.users += 1
        return entry

    def end_use(self, key: K, entry: Entry[R]) -> None:
        """One user less; what could not be opened is tried anew by the next one."""
        entry.users -= 1
        entry.unused_since = self._clock()
        if entry.resource is None and self._entries.get(key) is entry and _has_failed(entry.opening):
            del self._entries[key]

    async def opened(self, entry: Entry[R]) -> R:
        """The resource, as soon as it is open; raises what opening raises, or `Unavailable`."""
        try:
            # Shielded: others may wait for the same one, and it is good for later calls.
            return await asyncio.shield(entry.opening)
        except asyncio.CancelledError:
            if entry.opening.cancelled():
                raise Unavailable("the worker is stopping") from None
            raise

    def _entry(self, key: K, open_one: Callable[[], Awaitable[R]]) -> Entry[R]:
        if self._is_closed:
            raise Unavailable("the worker is stopping")
        known = self._entries.get(key)
        if known is not None:
            if known.resource is None:
                is_good = not known.opening.done()
            else:
                is_good = self._is_usable is None or self._is_usable(known.resource)
            if is_good:
                return known
            self._dismiss(key)
        if len(self._entries) >= self._limits.max_open:
            self._make_room()

        async def opening() -> R:
            entry.resource = resource = await open_one()
            return resource

        entry = Entry(opening=asyncio.create_task(opening()))
        self._entries[key] = entry
        return entry

    def _make_room(self) -> None:
        unused = [(entry.unused_since, key) for key, entry in self._entries.items() if not entry.users]
        if not unused:
            raise Overloaded(f"{len(self._entries)} connections are in use, which is the limit")
        self._dismiss(min(unused, key=lambda pair: pair[0])[1])

    def upkeep(self, name: str) -> Upkeep:
        """What has to be done while it is open."""
        return Upkeep(name=name, every_seconds=self._limits.idle_seconds / 4, once=self.sweep)

    async def sweep(self) -> None:
        """Close what nobody has used for long; that goes on behind this, and has a limit of its own."""
        limit = self._clock() - self._limits.idle_seconds
        for key, entry in tuple(self._entries.items()):
            if not entry.users and entry.unused_since <= limit:
                self._dismiss(key)

    def _dismiss(self, key: K) -> None:
        entry = self._entries.pop(key)
        farewell = asyncio.create_task(self._see_off(entry))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    async def _see_off(self, entry: Entry[R]) -> None:
        if not entry.opening.done():
            entry.opening.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            resource = await entry.opening
            async with asyncio.timeout(self._limits.close_seconds):
                await self._close(resource)


def _has_failed(opening: asyncio.Task[R]) -> bool:
    return opening.done() and (opening.cancelled() or opening.exception() is not None)
