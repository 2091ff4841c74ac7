"""The in-memory twin of the credential store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from noetl_core.credentials import credential_not_found
from noetl_core.ports.credentials import (
    CredentialInfo,
    CredentialPage,
    NewCredential,
    SealedCredential,
    SealedData,
    StoredCredential,
)
from noetl_core.ports.event_log import Scope


class InMemoryCredentialStore:
    """Port `CredentialStore`."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._credentials: dict[tuple[Scope, str], SealedCredential] = {}
        self._clock = clock

    async def put(self, scope: Scope, credential: NewCredential) -> StoredCredential:
        """Store under its name, in place of what was there."""
        known = self._credentials.get((scope, credential.name))
        now = self._clock()
        info = CredentialInfo(
            credential_id=known.info.credential_id if known else str(credential.credential_id),
            name=credential.name,
            type=credential.type,
            description=credential.description,
            tags=credential.tags,
            key_id=credential.sealed.key_id,
            created_at=known.info.created_at if known else now,
            created_by=known.info.created_by if known else credential.stored_by,
            updated_at=now,
            updated_by=credential.stored_by,
        )
        self._credentials[scope, credential.name] = SealedCredential(scope=scope, info=info, sealed=credential.sealed)
        return StoredCredential(info=info, created=known is None)

    async def get(self, scope: Scope, name: str) -> SealedCredential:
        """One credential."""
        found = self._credentials.get((scope, name))
        if found is None:
            raise credential_not_found(name)
        return found

    async def list(
        self, scope: Scope, *, type_name: str = "", contains: str = "", page_size: int = 100, page_token: str = ""
    ) -> CredentialPage:
        """Credentials by name; the token is the last name of the page before."""
        found = [
            stored.info
            for (owner, name), stored in sorted(self._credentials.items(), key=lambda item: item[0][1])
            if owner == scope and name > page_token and _matches(stored.info, type_name=type_name, contains=contains)
        ]
        shown = found[:page_size]
        more = len(found) > page_size
        return CredentialPage(credentials=tuple(shown), next_page_token=shown[-1].name if more else "")

    async def delete(self, scope: Scope, name: str) -> CredentialInfo:
        """Remove one."""
        found = self._credentials.pop((scope, name), None)
        if found is None:
            raise credential_not_found(name)
        return found.info

    async def sealed_otherwise(
        self, scope: Scope | None, *, key_id: str, after_id: int, limit: int
    ) -> tuple[SealedCredential, ...]:
        """Credentials that another key protects."""
        found = [
            stored
            for stored in self._credentials.values()
            if scope in (None, stored.scope)
            and stored.sealed.key_id != key_id
            and int(stored.info.credential_id) > after_id
        ]
        return tuple(sorted(found, key=lambda stored: int(stored.info.credential_id))[:limit])

    async def reseal(self, credential: SealedCredential, sealed: SealedData) -> bool:
        """Put data sealed anew in place of those that were read, unless they are gone."""
        place = (credential.scope, credential.info.name)
        known = self._credentials.get(place)
        if known is None or known.sealed.ciphertext != credential.sealed.ciphertext:
            return False
        info = replace(known.info, key_id=sealed.key_id)
        self._credentials[place] = replace(known, info=info, sealed=sealed)
        return True


def _matches(info: CredentialInfo, *, type_name: str, contains: str) -> bool:
    text = contains.lower()
    return type_name in ("", info.type) and (text in info.name.lower() or text in info.description.lower())
