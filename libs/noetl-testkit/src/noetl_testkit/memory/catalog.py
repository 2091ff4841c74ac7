"""The in-memory twin of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import count

from noetl_core.canonical import sha256_hex
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.ids import parse_id
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.catalog import CatalogEntry, CatalogPage, NewVersion, PlaybookSource, Registered
from noetl_core.ports.event_log import Scope

_FIRST_ID = 7_000_000_000_000_000_001


class InMemoryCatalog:
    """Port `CatalogStore`, and `Catalog` too: what it registers it checks first."""

    def __init__(self, *, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._versions: dict[tuple[Scope, str], list[PlaybookSource]] = {}
        self._clock = clock
        self._ids = count(_FIRST_ID)

    async def register(self, scope: Scope, content: str) -> Registered:
        """Validate and store."""
        playbook, warnings = parse_playbook(content)
        version = NewVersion(
            catalog_id=str(next(self._ids)),
            path=playbook.path,
            name=playbook.name,
            content=content,
            sha256=sha256_hex(content.encode()),
            created_by="test",
        )
        outcome = await self.add(scope, version)
        return Registered(entry=outcome.entry, created=outcome.created, warnings=warnings)

    async def add(self, scope: Scope, version: NewVersion) -> Registered:
        """The next version of its path, unless the newest one has this content."""
        versions = self._versions.setdefault((scope, version.path), [])
        if versions and versions[-1].entry.sha256 == version.sha256:
            return Registered(entry=versions[-1].entry, created=False)
        entry = CatalogEntry(
            catalog_id=version.catalog_id,
            path=version.path,
            version=len(versions) + 1,
            name=version.name,
            sha256=version.sha256,
            created_at=self._clock(),
            created_by=version.created_by,
        )
        versions.append(PlaybookSource(entry=entry, content=version.content))
        return Registered(entry=entry, created=True)

    async def get(
        self, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version, the newest if none is named."""
        if catalog_id:
            parse_id(catalog_id, what="catalog_id")
            found = [
                source
                for (owner, _), sources in self._versions.items()
                for source in sources
                if source.entry.catalog_id == catalog_id and scope in (None, owner)
            ]
        elif scope is None:
            raise InvalidInput("without a scope a playbook is asked for by its catalog_id")
        else:
            found = [s for s in self._versions.get((scope, path), []) if version in (0, s.entry.version)]
        if not found:
            raise NotFound("playbook", catalog_id or path, code="catalog.not_found")
        return found[-1]

    async def list(self, scope: Scope, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Newest version of each playbook, by path."""
        newest = {path: sources[-1].entry for (owner, path), sources in self._versions.items() if owner == scope}
        entries = [newest[path] for path in sorted(newest) if path > page_token]
        return _page(entries, page_size, lambda entry: entry.path)

    async def versions(self, scope: Scope, path: str, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Versions of one playbook, newest first."""
        sources = self._versions.get((scope, path), [])
        if not sources:
            raise NotFound("playbook", path, code="catalog.not_found")
        below = parse_id(page_token, what="page_token") if page_token else len(sources) + 1
        entries = [source.entry for source in reversed(sources) if source.entry.version < below]
        return _page(entries, page_size, lambda entry: str(entry.version))


def _page(entries: Sequence[CatalogEntry], page_size: int, token: Callable[[CatalogEntry], str]) -> CatalogPage:
    shown = entries[:page_size]
    more = len(entries) > page_size
    return CatalogPage(entries=tuple(shown), next_page_token=token(shown[-1]) if more else "")
