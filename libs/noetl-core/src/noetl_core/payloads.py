"""References to immutable bytes: what an event holds instead of data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from noetl_core.canonical import JsonObject, sha256_hex
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.locator import is_payload, parse, payload_locator
from noetl_core.payload_hints import IpcHint, hint_in

PAYLOAD_STORE: Final = "payload_store"

UNKNOWN_MEDIA_TYPE: Final = "application/octet-stream"

_FIELDS: Final = frozenset({"uri", "sha256", "media_type", "kind", "bytes"})
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]+/[\w.+-]+(; ?[\w.+-]+=[\w.+-]+)*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRef:
    """Names the bytes by their digest, under one tenant and organization; never a cache or a path."""

    uri: str
    sha256: str
    media_type: str
    bytes: int
    kind: str = PAYLOAD_STORE
    hint: IpcHint | None = field(default=None, compare=False, repr=False)
    """Where a copy may be nearer: no part of what the reference says, and not in its JSON."""

    def __post_init__(self) -> None:
        if self.kind != PAYLOAD_STORE:
            raise InvalidInput(f"a payload reference is of kind {PAYLOAD_STORE!r}, not {self.kind!r}")
        if not _MEDIA_TYPE.fullmatch(self.media_type):
            raise InvalidInput(f"{self.media_type!r} is not a media type")
        if self.bytes < 0:
            raise InvalidInput(f"a payload cannot have {self.bytes} bytes")
        if not is_payload(parse(self.uri), sha256=self.sha256):
            raise InvalidInput(f"{self.uri!r} does not address the payload {self.sha256!r} of an organization")

    @property
    def tenant_id(self) -> str:
        """Whose payload it is."""
        return parse(self.uri).segments[1]

    @property
    def organization_id(self) -> str:
        """Whose payload it is, within the tenant."""
        return parse(self.uri).segments[3]

    def to_json(self) -> JsonObject:
        """The form that events carry."""
        return {
            "uri": self.uri,
            "sha256": self.sha256,
            "media_type": self.media_type,
            "kind": self.kind,
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, value: object) -> PayloadRef:
        """Read the form that events carry; a field too many is as wrong as one too few."""
        if not isinstance(value, Mapping) or value.keys() != _FIELDS:
            raise InvalidInput(f"a payload reference has exactly the fields {sorted(_FIELDS)}")
        size = value["bytes"]
        if type(size) is not int:
            raise InvalidInput("'bytes' of a payload reference is not an integer")
        return cls(
            uri=_text(value, "uri"),
            sha256=_text(value, "sha256"),
            media_type=_text(value, "media_type"),
            kind=_text(value, "kind"),
            bytes=size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPayload:
    """What a store knows of bytes that it keeps; what they are is said by references only."""

    sha256: str
    bytes: int
    stored_at: datetime | None = None
    """When they were stored last, as far as the store remembers; for keeping young ones from being swept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadPart:
    """Some bytes of a payload, with a digest of their own, so that they are proven without the others."""

    start: int
    bytes: int
    sha256: str

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.bytes


def refer_to(data: bytes, *, tenant_id: str, organization_id: str, media_type: str) -> PayloadRef:
    """The reference to bytes, whether or not they are stored yet: it depends on nothing else."""
    return refer_to_digest(
        sha256_hex(data),
        size=len(data),
        tenant_id=tenant_id,
        organization_id=organization_id,
        media_type=media_type,
    )


def refer_to_digest(
    sha256: str, *, size: int, tenant_id: str, organization_id: str, media_type: str = UNKNOWN_MEDIA_TYPE
) -> PayloadRef:
    """The reference to bytes of which only the digest and the size are at hand."""
    uri = payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256=sha256)
    return PayloadRef(uri=str(uri), sha256=sha256, media_type=media_type, bytes=size)


def payload_ref_of(reference: Mapping[str, Any]) -> PayloadRef:
    """What the reference of a result says about the payload; it has more to say about the result."""
    missing = {"uri", "sha256", "media_type", "bytes"} - reference.keys()
    if missing:
        raise InvalidInput(f"the reference of a result lacks {', '.join(sorted(missing))}")
    return PayloadRef(
        uri=reference["uri"],
        sha256=reference["sha256"],
        media_type=reference["media_type"],
        bytes=reference["bytes"],
        hint=hint_in(reference),
    )


def verify(ref: PayloadRef, data: bytes) -> bytes:
    """The same bytes, if they are the ones that the reference names."""
    actual = sha256_hex(data)
    if actual != ref.sha256:
        raise Corrupt(f"the bytes stored as {ref.uri} have the digest {actual}", uri=ref.uri, actual=actual)
    return data


def verify_part(ref: PayloadRef, part: PayloadPart, data: bytes) -> bytes:
    """The same bytes, if they are those of the part."""
    actual = sha256_hex(data)
    if actual != part.sha256:
        place = f"bytes {part.start} to {part.stop}"
        raise Corrupt(f"{place} of what is stored as {ref.uri} have the digest {actual}", uri=ref.uri, actual=actual)
    return data


def _text(value: Mapping[str, object], key: str) -> str:
    text = value[key]
    if not isinstance(text, str):
        raise InvalidInput(f"{key!r} of a payload reference is not text")
    return text
