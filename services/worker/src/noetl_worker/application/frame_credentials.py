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

from noetl_worker.application.credentials import Credential, Credentials

T = TypeVar("T")

KEPT_SECONDS: Final = 60.0
"""In a frame that lasts longer they are fetched anew: they may have been replaced or taken away."""


@dataclass(slots=True)
class _Kept:
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    found: dict[tuple[str, str, str], tuple[float, Credential]] = field(default_factory=dict, repr=False)
    made: dict[tuple[int, str], tuple[Credential, object]] = field(default_factory=dict, repr=False)
    """By the identity of a credential, which is kept beside, so that no other one can have it."""


_of_frame: ContextVar[_Kept | None] = ContextVar("credentials of a frame", default=None)


@contextmanager
def credentials_of_frame() -> Iterator[None]:
    """Whatever is called in here, by this task or by those that it starts, shares what it fetches."""
    token = _of_frame.set(_Kept())
    try:
        yield
    finally:
        _of_frame.reset(token)


def forget_credentials() -> None:
    """A server has refused one: the next call of the frame fetches it anew."""
    kept = _of_frame.get()
    if kept is not None:
        kept.found.clear()
        kept.made.clear()


def made_of(credential: Credential, what: str, make: Callable[[Credential], T]) -> T:
    """What is made of a credential, once for all rows of a frame: connection parameters, spellings of its secrets."""
    kept = _of_frame.get()
    if kept is None:
        return make(credential)
    known = kept.made.get((id(credential), what))
    if known is None:
        known = kept.made[id(credential), what] = credential, make(credential)
    return cast(T, known[1])


class FetchedOncePerFrame:
    """Credentials from somewhere else; outside of frames nothing is kept."""

    def __init__(self, credentials: Credentials, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._credentials = credentials
        self._clock = clock

    async def get(
        self, *, tenant_id: str, organization_id: str, name: str, execution_id: ExecutionId | None = None
    ) -> Credential:
        """As the first call of the frame got it; that it could not be had is not remembered."""

        async def fetch() -> Credential:
            return await self._credentials.get(
                tenant_id=tenant_id, organization_id=organization_id, name=name, execution_id=execution_id
            )

        kept, key = _of_frame.get(), (tenant_id, organization_id, name)
        if kept is None:
            return await fetch()
        async with kept.fetching:
            since, known = kept.found.get(key, (0.0, None))
            if known is None or self._clock() - since > KEPT_SECONDS:
                since, known = self._clock(), await fetch()
                kept.found[key] = since, known
                kept.made.clear()
            return known
