"""The state of an execution at a point of its history, page by page; every page names the same point."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from noetl_core.canonical import decode, encode, sha256_hex
from noetl_core.errors import InvalidInput, NoetlError
from noetl_core.ports.event_log import Scope
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import FORMAT, Surface
from noetl_servicekit.callers import Caller

from noetl_api.application.page_sizes import page_size
from noetl_api.application.replay_histories import KnownReplay, ReplayHistories
from noetl_api.application.replay_points import ReplayPoints
from noetl_api.application.resolve_payloads import ResolvedPayload, ResolvePayloads
from noetl_api.application.scopes import visible_scope

DEFAULT_PAGE: Final = 200
MAX_PAGE: Final = 1000
MAX_PAGE_BYTES: Final = 2 * 1024 * 1024
MAX_PAGE_PAYLOADS: Final = 50
EVERYTHING: Final = "all"
NOTHING: Final = "none"
_PAYLOADS: Final = "payloads"
_DIGEST_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayQuery:
    """Which state is wanted, and how much of it at once."""

    execution_id: int
    point: Point = field(default_factory=Point)
    projection: str = EVERYTHING
    resolve_payloads: bool = False
    from_start: bool = False
    page_size: int = 0
    page_token: str = ""

    def sections(self) -> list[str]:
        """What pages go through, in order."""
        wanted = self.projection or EVERYTHING
        if wanted not in (EVERYTHING, NOTHING, *Surface):
            names = ", ".join((EVERYTHING, NOTHING, *Surface))
            raise InvalidInput(f"a projection is one of {names}, not {wanted!r}")
        surfaces = [str(one) for one in Surface if wanted in (EVERYTHING, one)]
        return [*surfaces, _PAYLOADS] if self.resolve_payloads else surfaces


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a page ended, in which state and of which query."""

    version: int
    section: str
    key: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRow:
    """A row as canonical JSON."""

    surface: Surface
    key: str
    row: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPage:
    """Some rows of a state; what is said of the whole of it is the same on every page."""

    known: KnownReplay
    head_version: int
    format: int = FORMAT
    rows: Sequence[ReplayedRow] = ()
    payloads: Sequence[ResolvedPayload] = ()
    next_page_token: str = ""


class ReplayState:
    """Folds the log; asks no projection for anything."""

    def __init__(self, *, points: ReplayPoints, histories: ReplayHistories, resolve: ResolvePayloads) -> None:
        self._points = points
        self._histories = histories
        self._resolve = resolve

    async def __call__(self, caller: Caller, scope: Scope | None, query: ReplayQuery) -> ReplayPage:
        """One page; what belongs to others does not exist."""
        visible = visible_scope(caller, scope)
        size = page_size(query.page_size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        sections = query.sections()
        place = _read_token(query.page_token, sections)
        version, head = await self._points.version(visible, query.execution_id, _point(query, place))
        if place is not None and place.version != version:
            raise _not_of_this_query()
        known = await self._histories(
            visible, query.execution_id, version, from_start=query.from_start, look_again=not query.page_token
        )
        digest = _digest(query.execution_id, sections, known)
        if place is not None and place.digest != digest:
            raise _not_of_this_query()
        rows, payloads, following = await self._page(known, sections, place, size)
        token = _token(version, *following, digest) if following is not None else ""
        return ReplayPage(known=known, head_version=head, rows=rows, payloads=payloads, next_page_token=token)

    async def _page(
        self, known: KnownReplay, sections: Sequence[str], place: _Place | None, size: int
    ) -> tuple[list[ReplayedRow], list[ResolvedPayload], tuple[str, str] | None]:
        rows: list[ReplayedRow] = []
        payloads: list[ResolvedPayload] = []
        last: tuple[str, str] | None = None
        held = 0
        for section, key in _from(known, sections, place):
            full = len(rows) + len(payloads) >= size or held >= MAX_PAGE_BYTES or len(payloads) >= MAX_PAGE_PAYLOADS
            if full and last is not None:
                return rows, payloads, last
            if section == _PAYLOADS:
                execution = known.replayed.state.execution
                owner = Scope(tenant_id=execution.tenant_id, organization_id=execution.organization_id)
                payloads.append(await self._resolve(owner, known.replayed.payloads[key]))
            else:
                row = encode(dict(known.replayed.rows[Surface(section)][key]))
                rows.append(ReplayedRow(surface=Surface(section), key=key, row=row))
                held += len(row)
            last = (section, key)
        return rows, payloads, None


def _from(known: KnownReplay, sections: Sequence[str], place: _Place | None) -> Iterator[tuple[str, str]]:
    """Sections and keys behind a place; keys are in the order of their bytes."""
    start = sections.index(place.section) if place is not None else 0
    for section in sections[start:]:
        keys = known.addresses if section == _PAYLOADS else known.order[Surface(section)]
        first = 0
        if place is not None and section == place.section:
            first = bisect_right(keys, place.key.encode(), key=str.encode)
        for index in range(first, len(keys)):
            yield section, keys[index]


def _point(query: ReplayQuery, place: _Place | None) -> Point:
    """That of the token, unless a page names one that stays; at the head, or a time to come, there is more by now."""
    if place is None or query.point.event_id or query.point.stream_version:
        return query.point
    return Point(stream_version=place.version)


def _digest(execution_id: int, sections: Sequence[str], known: KnownReplay) -> str:
    """Of what all pages have in common; the last event's checksum seals also what no row shows."""
    told = encode([str(execution_id), [*sections], known.checksum, known.replayed.checksum])
    return sha256_hex(told)[:_DIGEST_CHARACTERS]


def _token(version: int, section: str, key: str, digest: str) -> str:
    return base64.urlsafe_b64encode(encode([version, section, key, digest])).decode().rstrip("=")


def _read_token(token: str, sections: Sequence[str]) -> _Place | None:
    if not token:
        return None
    try:
        value = decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    except (binascii.Error, ValueError, NoetlError) as exc:
        raise InvalidInput("this is not a page token") from exc
    match value:
        case [int() as version, str() as section, str() as key, str() as digest] if version > 0 and section in sections:
            return _Place(version=version, section=section, key=key, digest=digest)
        case _:
            raise _not_of_this_query()


def _not_of_this_query() -> InvalidInput:
    return InvalidInput("this is not a page token of this query, or its history is another by now: ask anew")
