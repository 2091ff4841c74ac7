"""Stored credentials: what people see of one, what a call gets, and how the encrypted data are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from noetl_core.canonical import JsonValue
from noetl_core.ports.event_log import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """A credential with its secrets, for the call that needs them and nobody else; `repr` does not show them."""

    name: str
    type: str
    description: str = ""
    tags: tuple[str, ...] = ()
    data: Mapping[str, JsonValue] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialInfo:
    """What everybody in an organization may know about a credential."""

    credential_id: str
    name: str
    type: str
    description: str
    tags: tuple[str, ...]
    key_id: str
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialPage:
    """Some credentials, and where to go on; an empty token means that there are no more."""

    credentials: tuple[CredentialInfo, ...]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCredential:
    """Outcome of storing one; `created` is false when another was replaced."""

    info: CredentialInfo
    created: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedData:
    """Data that only the holder of a key can open."""

    key_id: str
    ciphertext: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewCredential:
    """A credential that has been found valid, on its way into the store."""

    credential_id: int
    """Used if the name is new; a credential that is replaced keeps its id."""
    name: str
    type: str
    description: str
    tags: tuple[str, ...]
    sealed: SealedData
    stored_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedCredential:
    """A stored credential whose data have not been opened."""

    scope: Scope
    info: CredentialInfo
    sealed: SealedData


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableCredential:
    """A credential whose data no key of this installation opens."""

    tenant_id: str
    organization_id: str
    name: str
    key_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatedPage:
    """How a page of a rotation went, and where to go on; an empty token means that it is done."""

    key_id: str
    rotated: int
    unreadable: tuple[UnreadableCredential, ...] = ()
    next_page_token: str = ""


class CredentialSealer(Protocol):
    """Encrypts the data of credentials, each bound to its place: moved to another, they do not open."""

    async def current_key_id(self) -> str:
        """The key with which `seal` encrypts now."""
        ...

    async def seal(self, scope: Scope, name: str, data: bytes) -> SealedData:
        """Encrypt with the current key."""
        ...

    async def open(self, scope: Scope, name: str, sealed: SealedData) -> bytes:
        """Decrypt; raises `KeyMissing` if the key is not here, `CredentialUnreadable` if it does not fit."""
        ...


class CredentialStore(Protocol):
    """Keeps sealed credentials by name; what is in them is not its business."""

    async def put(self, scope: Scope, credential: NewCredential) -> StoredCredential:
        """Store under its name, in place of what was there."""
        ...

    async def get(self, scope: Scope, name: str) -> SealedCredential:
        """One credential; raises `NotFound` with code credential.not_found."""
        ...

    async def list(
        self, scope: Scope, *, type_name: str = "", contains: str = "", page_size: int = 100, page_token: str = ""
    ) -> CredentialPage:
        """Credentials by name: those of a type, those with a text in their name or description."""
        ...

    async def delete(self, scope: Scope, name: str) -> CredentialInfo:
        """Remove one; raises `NotFound` with code credential.not_found."""
        ...

    async def sealed_otherwise(
        self, scope: Scope | None, *, key_id: str, after_id: int, limit: int
    ) -> tuple[SealedCredential, ...]:
        """Credentials that another key protects, in the order of their ids; no scope means everybody's."""
        ...

    async def reseal(self, credential: SealedCredential, sealed: SealedData) -> bool:
        """Put data sealed anew in place of those that were read; false if somebody replaced or removed them."""
        ...
