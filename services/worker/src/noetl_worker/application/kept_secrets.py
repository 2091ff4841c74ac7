"""Secrets that last for a while are kept for that while, in memory, for those who may have them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from hashlib import sha256

from noetl_core.canonical import JsonObject, encode
from noetl_core.errors import InvalidInput, NoetlError

MAX_KEPT = 1000
RENEW_BEFORE_SECONDS = 60.0
"""An entry with `auto_renew` is fetched again this long before its end, or at half its life if that is shorter."""

_FAILURE_SECONDS = 5.0
"""A source that has just failed is left alone, however many calls want it."""


class Unresolved(InvalidInput):
    """An entry of the keychain cannot be opened; the message gives no secret away."""

    code = "KEYCHAIN_UNRESOLVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """The fields of an entry, and how long they are good; nothing that has no end is kept."""

    fields: JsonObject = field(repr=False)
    lives_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """Who shares a secret: the same entry, written in the same way, of the same organization."""

    tenant_id: str
    organization_id: str
    execution_id: int | None
    name: str
    digest: str

    @classmethod
    def of(
        cls,
        *,
        tenant_id: str,
        organization_id: str,
        execution_id: int | None,
        name: str,
        kind: str,
        config: JsonObject,
    ) -> SecretKey:
        """The configuration is known by its digest: it may have secrets in it."""
        return cls(
            tenant_id=tenant_id,
            organization_id=organization_id,
            execution_id=execution_id,
            name=name,
            digest=sha256(encode({"kind": kind, "config": config})).hexdigest(),
        )


@dataclass(slots=True)
class _Slot:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    secret: Secret | None = None
    fetched_at: float = 0.0
    failure: str = ""
    failed_at: float = 0.0


class KeptSecrets:
    """Fetches once for all who wait; those that were not asked for in a long time go first."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, max_kept: int = MAX_KEPT) -> None:
        self._clock = clock
        self._max_kept = max_kept
        self._slots: OrderedDict[SecretKey, _Slot] = OrderedDict()

    def __len__(self) -> int:
        return len(self._slots)

    async def get(self, key: SecretKey, fetch: Callable[[], Awaitable[Secret]], *, renews: bool) -> Secret:
        """What is kept, if it is still good; otherwise what is fetched. Raises what `fetch` raises."""
        slot = self._slots.setdefault(key, _Slot())
        self._slots.move_to_end(key)
        try:
            async with slot.lock:  # Those who come meanwhile find what the first one has fetched.
                return await self._fresh(slot, fetch, renews=renews)
        finally:
            if slot.secret is None and not slot.failure and not slot.lock.locked():
                self._slots.pop(key, None)
            self._make_room()

    def forget(self, *, tenant_id: str, organization_id: str, names: Collection[str]) -> None:
        """Keep these no longer."""
        for key in [*self._slots]:
            if key.name in names and (key.tenant_id, key.organization_id) == (tenant_id, organization_id):
                slot = self._slots[key]
                slot.secret = None

    async def _fresh(self, slot: _Slot, fetch: Callable[[], Awaitable[Secret]], *, renews: bool) -> Secret:
        now = self._clock()
        kept = slot.secret
        remaining = 0.0 if kept is None else slot.fetched_at + kept.lives_seconds - now
        if kept is not None and remaining > (_renewal_seconds(kept) if renews else 0.0):
            return kept
        try:
            if slot.failure and now - slot.failed_at < _FAILURE_SECONDS:
                raise Unresolved(slot.failure)
            slot.failure = ""
            secret = await fetch()
        except NoetlError as exc:
            if not slot.failure:
                slot.failure, slot.failed_at = exc.message, self._clock()
            if kept is not None and remaining > 0:
                return kept  # It could not be renewed, and is still good.
            slot.secret = None
            raise
        # Counted from before it was asked for: it is never used longer than its server meant.
        slot.secret, slot.fetched_at = (secret, now) if secret.lives_seconds > 0 else (None, now)
        return secret

    def _make_room(self) -> None:
        for key in [*self._slots][: max(0, len(self._slots) - self._max_kept)]:
            if not self._slots[key].lock.locked():
                del self._slots[key]


def _renewal_seconds(secret: Secret) -> float:
    return min(RENEW_BEFORE_SECONDS, secret.lives_seconds / 2)
