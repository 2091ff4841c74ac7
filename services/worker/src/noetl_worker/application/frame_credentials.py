"""Credentials that the calls of one frame share: fetched once, whatever the number of rows, and gone with the frame."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

from noetl_core.ids import ExecutionId
from noetl_core.ports.credentials import Credential

from noetl_worker.application.credential_source import Credentials

T = TypeVar("T")

KEPT_SECONDS: Final = 60.0
"""In a frame that lasts longer they are fetched anew: they may have been replaced or taken away."""
MOST_MADE: Final = 128
"""Rows may each describe a credential in another way; nothing of that is kept then for long."""


@dataclass(slots=True)
class _Kept:
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: dict[tuple[str, str, str], tuple[float, Credential]] = field(default_factory=dict, repr=False)
    made: dict[tuple[int, str], tuple[Credential, object]] = field(default_factory=dict, repr=False)
    """By the identity of a credential, which is kept beside, so that no other one can have it."""
    named: dict[tuple[str, str, str, str], tuple[float, object]] = field(default_factory=dict, repr=False)
    """By whose and which credential, and what: until when it is good, and what was made of it."""
    clock: Callable[[], float] = time.monotonic

    def has(self, credential: Credential) -> bool:
        """Whether later rows get this very one: it was fetched for the frame, or made of one that was."""
        found = (one for _, one in self.found.values())
        made = (one for _, one in self.made.values())
        return any(one is credential for one in (*found, *made))

    def forget(self) -> None:
        """Whoever asks again, fetches anew."""
        self.found.clear()
        self.forget_made()

    def forget_made(self) -> None:
        """Whatever is wanted of a credential is made anew."""
        self.made.clear()
        self.named.clear()


_of_frame: ContextVar[_Kept | None] = ContextVar("credentials of a frame", default=None)


@contextmanager
def credentials_of_frame() -> Iterator[None]:
    """Whatever is called in here, by this task or by those that it starts, shares what it fetches."""
    kept = _Kept()
    token = _of_frame.set(kept)
    try:
        yield
    finally:
        _of_frame.reset(token)
        kept.forget()  # timers and tasks that were begun in here have it as well, some for long


def forget_credentials() -> None:
    """A server has refused one: the next call of the frame fetches it anew."""
    kept = _of_frame.get()
    if kept is not None:
        kept.forget()


def made_of(credential: Credential, what: str, make: Callable[[Credential], T]) -> T:
    """What is made of a credential, once for all rows of a frame: connection parameters, spellings of its secrets.

    Of a credential that only one row has, nothing is kept.
    """
    kept = _of_frame.get()
    if kept is None:
        return make(credential)
    known = kept.made.get((id(credential), what))
    if known is not None:
        return cast(T, known[1])
    made = make(credential)
    if kept.has(credential):
        if len(kept.made) >= MOST_MADE:
            kept.made.clear()
        kept.made[id(credential), what] = credential, made
    return made


def kept_for_name(tenant_id: str, organization_id: str, name: str, what: str) -> object | None:
    """What an earlier row has left here, while this one would be given the same credential under that name."""
    kept = _of_frame.get()
    known = None if kept is None else kept.named.get((tenant_id, organization_id, name, what))
    return None if kept is None or known is None or kept.clock() > known[0] else known[1]


def keep_for_name(tenant_id: str, organization_id: str, name: str, what: str, made: object) -> None:
    """For later rows, for as long as the credential of that name is not fetched anew; outside of frames not at all."""
    kept = _of_frame.get()
    found = None if kept is None else kept.found.get((tenant_id, organization_id, name))
    if kept is not None and found is not None:
        if len(kept.named) >= MOST_MADE:
            kept.named.clear()
        kept.named[tenant_id, organization_id, name, what] = found[0] + KEPT_SECONDS, made


class FetchedOncePerFrame:
    """Credentials from somewhere else; outside of frames nothing is kept."""

    def __init__(self, credentials: Credentials, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock

    async def get(
        self, *, tenant_id: str, organization_id: str, name: str, execution_id: ExecutionId | None = None
    ) -> Credential:
        """As the first call of the frame got it; that it could not be had is not remembered."""

        kept, key = _of_frame.get(), (tenant_id, organization_id, name)
        if kept is not None:
            since, known = kept.found.get(key, (0.0, None))
            if known is not None and self._clock() - since <= KEPT_SECONDS:
                return known

        async def fetch() -> Credential:
            return await self._credentials.get(
                tenant_id=tenant_id, organization_id=organization_id, name=name, execution_id=execution_id
            )

        if kept is None:
            return await fetch()
        async with kept.fetching:
            since, known = kept.found.get(key, (0.0, None))
            if known is None or self._clock() - since > KEPT_SECONDS:
                since, known = self._clock(), await fetch()
                kept.found[key] = since, known
                kept.clock = self._clock
                kept.forget_made()
            return known
