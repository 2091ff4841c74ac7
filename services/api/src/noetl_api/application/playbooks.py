"""The catalog as callers see it: register, find, list."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from noetl_core.canonical import sha256_hex
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.support import REGISTERED, release_with
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.catalog import CatalogPage, CatalogStore, NewVersion, PlaybookSource, Registered
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_servicekit.logging import get_logger

from noetl_api.application.page_sizes import page_size
from noetl_api.application.scopes import acting_scope, visible_scope

logger = get_logger()

DEFAULT_PAGE: Final = 100
MAX_PAGE: Final = 1000


class RegisterPlaybook:
    """Stores playbooks that can run, and no others."""

    def __init__(self, store: CatalogStore, *, next_id: Callable[[], int], plugin_kinds: Collection[str] = ()) -> None:
        self._store = store
        self._next_id = next_id
        self._supported = release_with(plugin_kinds)

    async def __call__(self, caller: Caller, scope: Scope | None, content: str) -> Registered:
        """The version of this content; raises `PlaybookInvalid` with every problem, and then stores nothing."""
        caller.require(Role.WRITER)
        owner = acting_scope(caller, scope)
        # On a thread: a megabyte of YAML takes seconds, which nobody else should wait for.
        playbook, warnings = await asyncio.to_thread(parse_playbook, content, supported=self._supported)
        version = NewVersion(
            catalog_id=str(self._next_id()),
            path=playbook.path,
            name=playbook.name,
            content=content,
            sha256=sha256_hex(content.encode()),
            created_by=caller.name,
        )
        registered = await self._store.add(owner, version)
        logger.info(
            "playbook.registered",
            path=registered.entry.path,
            version=registered.entry.version,
            created=registered.created,
            warnings=len(warnings),
        )
        return replace(registered, warnings=warnings)


class FindPlaybooks:
    """Finds what was registered; another tenant's playbooks do not exist."""

    def __init__(self, store: CatalogStore) -> None:
        self._store = store

    async def get(
        self, caller: Caller, scope: Scope | None, *, path: str = "", version: int = 0, catalog_id: str = ""
    ) -> PlaybookSource:
        """One version, the newest if none is named."""
        return await self._store.get(visible_scope(caller, scope), path=path, version=version, catalog_id=catalog_id)

    async def list(self, caller: Caller, scope: Scope | None, *, size: int = 0, token: str = "") -> CatalogPage:
        """Newest version of each playbook."""
        size = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        return await self._store.list(acting_scope(caller, scope), page_size=size, page_token=token)

    async def versions(
        self, caller: Caller, scope: Scope | None, path: str, *, size: int = 0, token: str = ""
    ) -> CatalogPage:
        """Versions of one playbook, newest first."""
        size = page_size(size, default=DEFAULT_PAGE, maximum=MAX_PAGE)
        return await self._store.versions(acting_scope(caller, scope), path, page_size=size, page_token=token)


class ParsedPlaybooks:
    """Versions never change, so reading one twice gives the same playbook: the last ones are kept."""

    def __init__(self, *, capacity: int = 256) -> None:
        self._capacity = capacity
        self._parsed: OrderedDict[str, Playbook] = OrderedDict()

    async def of(self, source: PlaybookSource) -> Playbook:
        """The playbook of a version."""
        catalog_id = source.entry.catalog_id
        if catalog_id in self._parsed:
            self._parsed.move_to_end(catalog_id)
            return self._parsed[catalog_id]
        playbook, _ = await asyncio.to_thread(parse_playbook, source.content, supported=REGISTERED)
        self._parsed[catalog_id] = playbook
        if len(self._parsed) > self._capacity:
            self._parsed.popitem(last=False)
        return playbook
