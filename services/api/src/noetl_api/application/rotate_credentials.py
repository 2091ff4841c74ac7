"""Moves credentials from other keys to the current one, so that an old key can be thrown away."""

from __future__ import annotations

from typing import Final

from noetl_core.credentials import CredentialUnreadable, KeyMissing
from noetl_core.ids import parse_id
from noetl_core.ports.credentials import (
    CredentialSealer,
    CredentialStore,
    RotatedPage,
    SealedCredential,
    UnreadableCredential,
)
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.credentials import configured
from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import visible_scope
from noetl_api.telemetry import CredentialMetrics

logger = get_logger()

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000


class RotateCredentials:
    """A page at a time; it may be interrupted, repeated and done twice at once.

    At every moment each credential is under one key or the other, and one that somebody stores or removes meanwhile
    stays as they wanted it.
    """

    def __init__(self, store: CredentialStore, sealer: CredentialSealer | None, *, metrics: CredentialMetrics) -> None:
        self._store = store
        self._sealer = sealer
        self._metrics = metrics

    async def __call__(self, caller: Caller, scope: Scope | None, *, size: int = 0, token: str = "") -> RotatedPage:
        """The caller's credentials; a service that names no scope does everybody's."""
        caller.require(Role.ADMIN)
        sealer = configured(self._sealer)
        size = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        after_id = parse_id(token, what="page_token") if token else 0
        key_id = await sealer.current_key_id()
        found = await self._store.sealed_otherwise(
            visible_scope(caller, scope), key_id=key_id, after_id=after_id, limit=size
        )
        rotated, unreadable = 0, list[UnreadableCredential]()
        for stored in found:
            try:
                rotated += await self._rotate(sealer, stored)
            except (KeyMissing, CredentialUnreadable) as exc:
                unreadable.append(_left_alone(stored, exc.code))
        self._metrics.rotated.inc(rotated)
        logger.info("credential.rotated", count=rotated, unreadable=len(unreadable), key_id=key_id, caller=caller.name)
        return RotatedPage(
            key_id=key_id,
            rotated=rotated,
            unreadable=tuple(unreadable),
            next_page_token=found[-1].info.credential_id if len(found) == size else "",
        )

    async def _rotate(self, sealer: CredentialSealer, stored: SealedCredential) -> bool:
        name = stored.info.name
        data = await sealer.open(stored.scope, name, stored.sealed)
        return await self._store.reseal(stored, await sealer.seal(stored.scope, name, data))


def _left_alone(stored: SealedCredential, code: str) -> UnreadableCredential:
    unreadable = UnreadableCredential(
        tenant_id=stored.scope.tenant_id,
        organization_id=stored.scope.organization_id,
        name=stored.info.name,
        key_id=stored.sealed.key_id,
    )
    logger.warning(
        "credential.unreadable",
        name=unreadable.name,
        key_id=unreadable.key_id,
        code=code,
        tenant_id=unreadable.tenant_id,
        organization_id=unreadable.organization_id,
    )
    return unreadable
