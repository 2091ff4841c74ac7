"""The payload store as Spark's Python processes use it: without an event loop of their own, opened once a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from noetl_core.errors import InvalidInput
from noetl_core.payloads import PayloadRef

from noetl_adapters.payload.open_store import open_payload_store

T = TypeVar("T")

URL_VARIABLE: Final = "NOETL_PAYLOAD_URL"
STORE_VARIABLES: Final = (
    URL_VARIABLE,
    "NOETL_PAYLOAD_ENDPOINT",
    "NOETL_PAYLOAD_SPOOL_DIR",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "AZURE_STORAGE_CONNECTION_STRING",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ACCOUNT_KEY",
)
"""Where the store is and how it is reached: all that a process needs to read and write payloads."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Travels to executors inside of what is pickled for them, and never in the configuration of Spark."""

    url: str
    variables: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> StoreAccess:
        """What the variables of a process say; raises `InvalidInput` when they name no store."""
        url = environment.get(URL_VARIABLE)
        if not url:
            raise InvalidInput(f"{URL_VARIABLE} is not set, so that nobody knows where payloads are")
        known = ((name, environment[name]) for name in STORE_VARIABLES if name in environment)
        return cls(url=url, variables=tuple(known))

    def open(self) -> BlockingPayloads:
        """The store, the same for all tasks of this process."""
        key = (os.getpid(), self)
        with _OPENING:
            if key not in _OPENED:
                _OPENED[key] = BlockingPayloads(self)
            return _OPENED[key]


class BlockingPayloads:
    """Calls of a payload store that wait for their end; the store lives on a loop in a thread."""

    def __init__(self, access: StoreAccess) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="noetl-payloads", daemon=True).start()
        self._stack = contextlib.AsyncExitStack()
        opening = open_payload_store(access.url, dict(access.variables))
        self._store = self._wait(self._stack.enter_async_context(opening))

    def get(self, ref: PayloadRef) -> bytes:
        """The bytes of a payload, verified."""
        return self._wait(self._store.get(ref))

    def head(self, ref: PayloadRef) -> bytes:
        """The first piece of a payload, not verified: enough for a schema."""
        return self._wait(self._head(ref))

    def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        """Keep bytes durably."""
        return self._wait(
            self._store.put(tenant_id=tenant_id, organization_id=organization_id, data=data, media_type=media_type)
        )

    def close(self) -> None:
        """For tests; in a task the store lives as long as its process."""
        self._wait(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _head(self, ref: PayloadRef) -> bytes:
        pieces = self._store.stream(ref)
        try:
            async for piece in pieces:
                return piece
            return b""
        finally:
            closing = getattr(pieces, "aclose", None)
            if closing is not None:
                await closing()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


_OPENING = threading.Lock()
_OPENED: dict[tuple[int, StoreAccess], BlockingPayloads] = {}
"""By process: a child that was forked from one with an open store opens its own."""
