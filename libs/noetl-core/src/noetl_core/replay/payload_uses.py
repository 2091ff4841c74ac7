"""Which payloads a history refers to, how often, and one digest for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from noetl_core.canonical import JsonObject, JsonValue, decode
from noetl_core.errors import InvalidInput
from noetl_core.locator import is_payload, parse

_MARK = b'"sha256":"'


class PayloadUse(NamedTuple):
    """A payload as the first reference to its address describes it, and the number of these references."""

    sha256: str
    uri: str
    media_type: str
    bytes: int
    uses: int


class PayloadUses:
    """References by address. Grows with the payloads of a history, and with nothing else of it.

    Not by digest: an event may name the same bytes as another tenant's, and these are not where one's own are.
    """

    def __init__(self, uses: Mapping[str, PayloadUse] | None = None) -> None:
        self._uses: dict[str, PayloadUse] = dict(uses or {})

    def __len__(self) -> int:
        return len({use.sha256 for use in self._uses.values()})

    @property
    def addresses(self) -> int:
        """How many there are; several may be of the same digest."""
        return len(self._uses)

    def __getitem__(self, uri: str) -> PayloadUse:
        return self._uses[uri]

    def by_address(self) -> dict[str, PayloadUse]:
        """All of them, in order; those of one organization are in the order of digests."""
        return dict(sorted(self._uses.items()))

    def by_digest(self) -> dict[str, PayloadUse]:
        """One for each digest, in order, with all references to it; the address is the first that was named."""
        merged: dict[str, PayloadUse] = {}
        for use in self._uses.values():
            known = merged.get(use.sha256)
            merged[use.sha256] = use if known is None else known._replace(uses=known.uses + use.uses)
        return dict(sorted(merged.items()))

    def copy(self) -> PayloadUses:
        """The same, to go on with."""
        return PayloadUses(self._uses)

    def add(self, body: bytes) -> None:
        """What an event refers to, wherever it stands in it."""
        if _MARK not in body:
            return
        for reference in _references(decode(body)):
            uri = str(reference["uri"])
            known = self._uses.get(uri)
            self._uses[uri] = (
                known._replace(uses=known.uses + 1)
                if known is not None
                else PayloadUse(
                    sha256=str(reference["sha256"]),
                    uri=uri,
                    media_type=str(reference.get("media_type") or ""),
                    bytes=_size(reference.get("bytes")),
                    uses=1,
                )
            )

    def root(self) -> str:
        """SHA-256 over all digests in order, each with a line feed: the same for the same set of payloads."""
        digest = hashlib.sha256()
        for sha256 in sorted({use.sha256 for use in self._uses.values()}):
            digest.update(f"{sha256}\n".encode())
        return digest.hexdigest()

    def to_json(self) -> JsonObject:
        """For snapshots."""
        return {uri: [use.sha256, use.media_type, use.bytes, use.uses] for uri, use in self._uses.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> PayloadUses:
        """The uses that were written."""
        return cls({uri: PayloadUse(sha256, uri, *fields) for uri, (sha256, *fields) in value.items()})


def _references(value: JsonValue) -> Iterator[JsonObject]:
    """Every object that names bytes by digest and by an address that fits it."""
    if isinstance(value, dict):
        if _is_reference(value):
            yield value
        for part in value.values():
            yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _is_reference(value: JsonObject) -> bool:
    uri, sha256 = value.get("uri"), value.get("sha256")
    if not isinstance(uri, str) or not isinstance(sha256, str):
        return False
    try:
        return is_payload(parse(uri), sha256=sha256)
    except InvalidInput:
        return False


def _size(value: object) -> int:
    """Anybody's events may refer to payloads, so what they say of a size may be anything; 0 if it is none."""
    return value if type(value) is int and value > 0 else 0
