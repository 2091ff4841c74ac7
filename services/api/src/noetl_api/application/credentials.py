"""Stored credentials as callers see them: who may store, look and use, and what is noted about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from noetl_core.credentials import CredentialsNotConfigured, decode_data, encode_data
from noetl_core.errors import NotPermitted
from noetl_core.ports.credentials import (
    Credential,
    CredentialInfo,
    CredentialPage,
    CredentialSealer,
    CredentialStore,
    NewCredential,
    StoredCredential,
)
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import acting_scope
from noetl_api.telemetry import CredentialMetrics

logger = get_logger()

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000


class Credentials:
    """Data are encrypted before they are stored, and leave only through `reveal` and `resolve`, which are noted."""

    def __init__(
        self,
        store: CredentialStore,
        sealer: CredentialSealer | None,
        *,
        next_id: Callable[[], int],
        metrics: CredentialMetrics,
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._next_id = next_id
        self._metrics = metrics

    async def put(self, caller: Caller, scope: Scope | None, credential: Credential) -> StoredCredential:
        """Store under its name, in place of what was there."""
        caller.require(Role.WRITER)
        sealer, owner = configured(self._sealer), acting_scope(caller, scope)
        new = NewCredential(
            credential_id=self._next_id(),
            name=credential.name,
            type=credential.type,
            description=credential.description,
            tags=credential.tags,
            sealed=await sealer.seal(owner, credential.name, encode_data(credential)),
            stored_by=caller.name,
        )
        stored = await self._store.put(owner, new)
        logger.info("credential.stored", name=new.name, type=new.type, created=stored.created, **_audit(caller, owner))
        return stored

    async def get(self, caller: Caller, scope: Scope | None, name: str) -> CredentialInfo:
        """What everybody in the organization may know about one."""
        configured(self._sealer)
        return (await self._store.get(acting_scope(caller, scope), name)).info

    async def list(
        self,
        caller: Caller,
        scope: Scope | None,
        *,
        type_name: str = "",
        contains: str = "",
        size: int = 0,
        token: str = "",
    ) -> CredentialPage:
        """Credentials by name, never with data."""
        configured(self._sealer)
        size = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        owner = acting_scope(caller, scope)
        return await self._store.list(owner, type_name=type_name, contains=contains, page_size=size, page_token=token)

    async def delete(self, caller: Caller, scope: Scope | None, name: str) -> CredentialInfo:
        """Remove one."""
        caller.require(Role.WRITER)
        configured(self._sealer)
        owner = acting_scope(caller, scope)
        deleted = await self._store.delete(owner, name)
        logger.info("credential.deleted", name=name, **_audit(caller, owner))
        return deleted

    async def reveal(self, caller: Caller, scope: Scope | None, name: str) -> tuple[CredentialInfo, Credential]:
        """One with its data, to an admin."""
        owner = acting_scope(caller, scope)
        try:
            caller.require(Role.ADMIN)
        except NotPermitted:
            logger.warning("credential.reveal_refused", name=name, **_audit(caller, owner))
            raise
        opened = await self._open(owner, name)
        # Before the answer: what was seen must not go unnoted because the process died in between.
        logger.info("credential.revealed", name=name, **_audit(caller, owner))
        self._metrics.opened.labels("reveal").inc()
        return opened

    async def resolve(
        self, caller: Caller, scope: Scope | None, name: str, *, execution_id: str = ""
    ) -> tuple[CredentialInfo, Credential]:
        """One with its data, to a service, for one call of a tool."""
        caller.require(Role.SERVICE)
        owner = acting_scope(caller, scope)
        opened = await self._open(owner, name)
        logger.info("credential.resolved", name=name, execution_id=execution_id or None, **_audit(caller, owner))
        self._metrics.opened.labels("resolve").inc()
        return opened

    async def _open(self, owner: Scope, name: str) -> tuple[CredentialInfo, Credential]:
        sealer = configured(self._sealer)
        stored = await self._store.get(owner, name)
        info = stored.info
        data = decode_data(await sealer.open(owner, name, stored.sealed))
        return info, Credential(name=info.name, type=info.type, description=info.description, tags=info.tags, data=data)


def configured(sealer: CredentialSealer | None) -> CredentialSealer:
    """The sealer of an installation that has keys; every use of credentials begins with asking for it."""
    if sealer is None:
        raise CredentialsNotConfigured
    return sealer


def _audit(caller: Caller, owner: Scope) -> dict[str, str]:
    """Who, and whose: over HTTP nothing else says so."""
    return {"caller": caller.name, "tenant_id": owner.tenant_id, "organization_id": owner.organization_id}
