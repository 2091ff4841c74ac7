"""noetl:// locators: one address, in one spelling, for everything that events and metrics point to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote

from noetl_core.errors import LocatorInvalid
from noetl_core.ids import ExecutionId

SCHEME: Final = "noetl://"

KINDS: Final = frozenset({"tenant", "execution", "dataset", "stream", "partition", "payload"})
"""What a locator may start with."""

_TWO_VALUES: Final = frozenset({"result", "payloads"})
"""Keys that are followed by two values: result/<step>/<id> and payloads/sha256/<digest>."""

_COARSE_TO_FINE: Final = ("tenant", "org", "region", "zone", "cluster", "node", "worker")
_KEY: Final = re.compile(r"[a-z][a-z0-9_]*")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/-]*")
"""Segments that percent-encoding leaves as they are, as nearly all are, and what stands between them."""
_UNSAFE_IN_SUBJECT: Final = re.compile(r"[^A-Za-z0-9_-]")


class Distance(StrEnum):
    """How far apart two places are; each member is farther than the one before."""

    NODE = "node"
    ZONE = "zone"
    REGION = "region"
    CLUSTER = "cluster"
    ANY = "any"

    def within(self, limit: Distance) -> bool:
        """Whether this is no farther than a limit."""
        order = list(Distance)
        return order.index(self) <= order.index(limit)


_WIDER: Final = {
    Distance.NODE: ("cluster", "zone", "region"),
    Distance.ZONE: ("region",),
    Distance.REGION: (),
    Distance.CLUSTER: (),
}
"""Places with the same name are one place only if these, where known, are equal too."""


@dataclass(frozen=True, slots=True)
class Locator:
    """Alternating keys and values, not percent-encoded; `str` gives the one spelling that `parse` accepts."""

    segments: tuple[str, ...]

    def __post_init__(self) -> None:
        for segment in self.segments:
            if segment in {"", ".", ".."}:
                raise LocatorInvalid(f"a locator segment may not be {segment!r}")
            if not segment.isascii():
                _refuse_surrogates(segment)
        keys = [key for key, _ in self.pairs()]
        if not keys or keys[0] not in KINDS:
            raise LocatorInvalid(f"a locator starts with one of {sorted(KINDS)}, not {keys[:1]}")
        if len(set(keys)) != len(keys):
            raise LocatorInvalid(f"a locator has each key once, not {keys}")
        places = [_COARSE_TO_FINE.index(key) for key in keys if key in _COARSE_TO_FINE]
        if places != sorted(places):
            raise LocatorInvalid(f"places go from coarse to fine, as in {'/'.join(_COARSE_TO_FINE)}, not {keys}")

    def __str__(self) -> str:
        joined = "/".join(self.segments)
        if _PLAIN.fullmatch(joined) and joined.count("/") == len(self.segments) - 1:
            return SCHEME + joined
        return SCHEME + "/".join(quote(segment, safe="") for segment in self.segments)

    def pairs(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Each key with its value, or its two values."""
        position = 0
        while position < len(self.segments):
            key = self.segments[position]
            if not _KEY.fullmatch(key):
                raise LocatorInvalid(f"{key!r} stands where a locator has a key")
            end = position + (3 if key in _TWO_VALUES else 2)
            if end > len(self.segments):
                raise LocatorInvalid(f"{key!r} lacks a value at the end of a locator")
            yield key, self.segments[position + 1 : end]
            position = end

    def values(self, key: str) -> tuple[str, ...]:
        """The one or two values of a key; none if the locator does not have it."""
        return next((values for found, values in self.pairs() if found == key), ())

    def value(self, key: str) -> str | None:
        """The value of a key that has one."""
        values = self.values(key)
        return values[0] if values else None

    @property
    def kind(self) -> str:
        """What is addressed: the last key."""
        *_, (key, _) = self.pairs()
        return "payload" if key == "payloads" else key


def parse(text: str) -> Locator:
    """Read a locator; only its one spelling is accepted, because locators are compared and joined as text."""
    return _remembered(text) if len(text) <= _REMEMBERED_CHARACTERS else _parsed(text)


def _parsed(text: str) -> Locator:
    if not text.startswith(SCHEME):
        raise LocatorInvalid(f"a locator starts with {SCHEME}, not {text[: len(SCHEME)]!r}")
    if "?" in text or "#" in text:
        raise LocatorInvalid("a locator has no query and no fragment")
    if _PLAIN.fullmatch(text, len(SCHEME)):
        return Locator(tuple(text[len(SCHEME) :].split("/")))
    try:
        segments = tuple(unquote(part, errors="strict") for part in text[len(SCHEME) :].split("/"))
    except UnicodeDecodeError as exc:
        raise LocatorInvalid("a locator's percent-encoding is not UTF-8") from exc
    locator = Locator(segments)
    if str(locator) != text:
        raise LocatorInvalid(f"the locator is spelled {str(locator)!r}, not {text!r}")
    return locator


_REMEMBERED_CHARACTERS: Final = 512
_remembered = lru_cache(maxsize=1024)(_parsed)
"""A reference is read by everybody through whose hands it goes; a long text would be kept for nobody."""


def worker_locator(
    *,
    tenant: str,
    org: str,
    worker: str,
    region: str | None = None,
    zone: str | None = None,
    cluster: str | None = None,
    node: str | None = None,
) -> Locator:
    """Where a worker is; places that nobody knows are left out."""
    places = (tenant, org, region, zone, cluster, node, worker)
    known = ((key, value) for key, value in zip(_COARSE_TO_FINE, places, strict=True) if value is not None)
    return Locator(tuple(segment for pair in known for segment in pair))


def result_locator(*, execution_id: ExecutionId, step: str, result_id: str) -> Locator:
    """The result of a step of an execution."""
    return Locator(("execution", str(execution_id), "result", step, result_id))


def loop_locator(*, execution_id: ExecutionId, loop_id: str) -> Locator:
    """What the items of a loop gave, put together from their events."""
    return Locator(("execution", str(execution_id), "loop", loop_id))


def payload_locator(*, tenant_id: str, organization_id: str, sha256: str) -> Locator:
    """The payload with this digest in an organization's part of the payload store."""
    if not _SHA256.fullmatch(sha256):
        raise LocatorInvalid(f"{sha256!r} is not 64 lowercase hex digits")
    return Locator(("tenant", tenant_id, "org", organization_id, "payloads", "sha256", sha256))


def is_payload(locator: Locator, *, sha256: str) -> bool:
    """Whether a locator is what `payload_locator` gives for this digest and some organization."""
    match locator.segments:
        case ("tenant", _, "org", _, "payloads", "sha256", digest):
            return digest == sha256 and _SHA256.fullmatch(digest) is not None
        case _:
            return False


def to_nats_subject(locator: Locator) -> str:
    """A subject to watch or publish under; lossy, since what a token cannot carry becomes `_`."""
    return ".".join(("noetl", *(_UNSAFE_IN_SUBJECT.sub("_", segment) for segment in locator.segments)))


def distance(a: Locator, b: Locator) -> Distance:
    """How far apart two locators' places are; a place that either does not name is nowhere near."""
    places_a, places_b = ({key: values[0] for key, values in locator.pairs()} for locator in (a, b))
    for level, wider in _WIDER.items():
        here, there = places_a.get(level), places_b.get(level)
        apart = any(places_a.get(key, value) != value for key, value in places_b.items() if key in wider)
        if here is not None and here == there and not apart:
            return level
    return Distance.ANY


def _refuse_surrogates(segment: str) -> None:
    try:
        segment.encode()
    except UnicodeEncodeError as exc:
        raise LocatorInvalid("a locator segment has a lone surrogate") from exc
