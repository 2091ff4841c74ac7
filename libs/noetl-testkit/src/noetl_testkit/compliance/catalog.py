"""What every catalog store must do; an adapter's tests subclass this and supply one."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

import pytest
from noetl_core.canonical import sha256_hex
from noetl_core.errors import InvalidInput, NotFound
from noetl_core.ids import Snowflake
from noetl_core.ports.catalog import CatalogEntry, CatalogStore, NewVersion, Registered
from noetl_core.ports.event_log import Scope

ACME = Scope(tenant_id="acme", organization_id="ops")
SALES = Scope(tenant_id="acme", organization_id="sales")
RIVAL = Scope(tenant_id="rival", organization_id="ops")

_ids = Snowflake(1022)


def version(content: str, *, path: str = "etl/orders") -> NewVersion:
    return NewVersion(
        catalog_id=str(_ids.next(int(time.time() * 1000))),
        path=path,
        name=path.rsplit("/", 1)[-1],
        content=content,
        sha256=sha256_hex(content.encode()),
        created_by="ada",
    )


async def add(store: CatalogStore, content: str, *, path: str = "etl/orders", scope: Scope = ACME) -> Registered:
    return await store.add(scope, version(content, path=path))


class CatalogStoreCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> CatalogStore:
        """An empty catalog."""

    async def test_the_first_content_is_version_one(self, store: CatalogStore) -> None:
        new = version("one")

        registered = await store.add(ACME, new)

        assert registered.created
        entry = registered.entry
        assert (entry.catalog_id, entry.path, entry.version) == (new.catalog_id, "etl/orders", 1)
        assert (entry.name, entry.sha256, entry.created_by) == ("orders", new.sha256, "ada")
        assert (await store.get(ACME, path="etl/orders")).content == "one"

    async def test_other_content_is_the_next_version(self, store: CatalogStore) -> None:
        versions = [(await add(store, content)).entry.version for content in ("one", "two", "three")]

        assert versions == [1, 2, 3]

    async def test_the_same_content_is_the_same_version(self, store: CatalogStore) -> None:
        first = await add(store, "one")

        again = await add(store, "one")

        assert not again.created
        assert again.entry == first.entry

    async def test_only_the_newest_version_counts_as_the_same(self, store: CatalogStore) -> None:
        for content in ("one", "two"):
            await add(store, content)

        back = await add(store, "one")

        assert back.created
        assert back.entry.version == 3

    async def test_concurrent_registrations_leave_no_gap(self, store: CatalogStore) -> None:
        outcomes = await asyncio.gather(*(add(store, f"content {n}") for n in range(20)))

        assert sorted(one.entry.version for one in outcomes) == list(range(1, 21))
        for one in outcomes:
            source = await store.get(ACME, path="etl/orders", version=one.entry.version)
            assert source.entry == one.entry

    async def test_concurrent_registrations_of_one_content_are_one_version(self, store: CatalogStore) -> None:
        outcomes = await asyncio.gather(*(add(store, "same") for _ in range(20)))

        assert sum(one.created for one in outcomes) == 1
        assert {one.entry.version for one in outcomes} == {1}

    async def test_a_version_is_found_by_number_and_by_id(self, store: CatalogStore) -> None:
        entries = [(await add(store, content)).entry for content in ("one", "two")]

        assert (await store.get(ACME, path="etl/orders", version=1)).content == "one"
        assert (await store.get(ACME, path="etl/orders")).content == "two"
        assert (await store.get(ACME, catalog_id=entries[0].catalog_id)).content == "one"
        assert (await store.get(None, catalog_id=entries[1].catalog_id)).content == "two"

    async def test_what_is_not_there_is_not_found(self, store: CatalogStore) -> None:
        await add(store, "one")

        for missing in ({"path": "etl/none"}, {"path": "etl/orders", "version": 2}, {"catalog_id": "12345"}):
            with pytest.raises(NotFound) as refusal:
                await store.get(ACME, **missing)
            assert refusal.value.code == "catalog.not_found"
        with pytest.raises(NotFound):
            await store.versions(ACME, "etl/none")

    async def test_tenants_and_organizations_have_catalogs_of_their_own(self, store: CatalogStore) -> None:
        mine = (await add(store, "mine")).entry

        theirs = await add(store, "theirs", scope=RIVAL)

        assert theirs.entry.version == 1
        for stranger in (RIVAL, SALES):
            with pytest.raises(NotFound):
                await store.get(stranger, catalog_id=mine.catalog_id)
        with pytest.raises(NotFound):
            await store.get(SALES, path="etl/orders")
        assert (await store.list(SALES)).entries == ()

    async def test_without_a_scope_only_an_id_finds_anything(self, store: CatalogStore) -> None:
        await add(store, "one")

        with pytest.raises(InvalidInput):
            await store.get(None, path="etl/orders")

    async def test_a_listing_shows_the_newest_versions_by_path(self, store: CatalogStore) -> None:
        for path in ("c", "a", "b/x"):
            for content in ("one", "two"):
                await add(store, f"{path} {content}", path=path)

        listed = (await store.list(ACME)).entries

        assert [(entry.path, entry.version) for entry in listed] == [("a", 2), ("b/x", 2), ("c", 2)]

    async def test_listings_can_be_continued(self, store: CatalogStore) -> None:
        for n in range(5):
            await add(store, "x", path=f"p{n}")
            await add(store, f"content {n}", path="many")

        paths: list[str] = []
        token = ""
        while True:
            page = await store.list(ACME, page_size=4, page_token=token)
            paths += [entry.path for entry in page.entries]
            token = page.next_page_token
            if not token:
                break
        numbers: list[CatalogEntry] = []
        while True:
            page = await store.versions(ACME, "many", page_size=2, page_token=token)
            numbers += page.entries
            token = page.next_page_token
            if not token:
                break

        assert paths == ["many", "p0", "p1", "p2", "p3", "p4"]
        assert [entry.version for entry in numbers] == [5, 4, 3, 2, 1]
