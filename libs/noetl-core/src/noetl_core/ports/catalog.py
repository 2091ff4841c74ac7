"""Playbooks by path and version, as their users see them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from noetl_core.errors import Problem
from noetl_core.ports.event_log import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """One version of a playbook; it never changes."""

    catalog_id: str
    path: str
    version: int
    name: str
    sha256: str
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookSource:
    """A version with the document as it was registered."""

    entry: CatalogEntry
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """Outcome of a registration; `created` is false when this content was the newest version already."""

    entry: CatalogEntry
    created: bool
    warnings: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPage:
    """Some entries, and where to go on; an empty token means that there are no more."""

    entries: tuple[CatalogEntry, ...]
    next_page_token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewVersion:
    """A playbook that has been found valid, on its way into the catalog."""

    catalog_id: str
    path: str
    name: str
    content: str
    sha256: str
    created_by: str


class CatalogStore(Protocol):
    """Keeps versions of playbooks; whether they are valid is not its business."""

    async def add(self, scope: Scope, version: NewVersion) -> Registered:
        """Store as the next version of its path, unless the newest one has this content."""
        ...

    async def get(
        self, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version, the newest if none is named; only an id can be asked for without a scope.

        Raises `NotFound` with code catalog.not_found.
        """
        ...

    async def list(self, scope: Scope, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Newest version of each playbook, by path."""
        ...

    async def versions(self, scope: Scope, path: str, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Versions of one playbook, newest first; `NotFound` if it has none."""
        ...


class Catalog(Protocol):
    """Registers playbooks and finds them."""

    async def register(self, scope: Scope, content: str) -> Registered:
        """Validate and store; raises `PlaybookInvalid` with every problem."""
        ...

    async def get(
        self, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version, the newest if none is named; raises `NotFound` with code catalog.not_found."""
        ...

    async def list(self, scope: Scope, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Newest version of each playbook, by path."""
        ...

    async def versions(self, scope: Scope, path: str, *, page_size: int = 100, page_token: str = "") -> CatalogPage:
        """Versions of one playbook, newest first."""
        ...
