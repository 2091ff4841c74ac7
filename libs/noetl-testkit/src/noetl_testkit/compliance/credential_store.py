"""What every credential store must do; an adapter's tests subclass this and supply one."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod

import pytest
from noetl_core.errors import NotFound
from noetl_core.ids import Snowflake
from noetl_core.ports.credentials import CredentialInfo, CredentialStore, NewCredential, SealedData, StoredCredential
from noetl_core.ports.event_log import Scope

ACME = Scope(tenant_id="acme", organization_id="ops")
SALES = Scope(tenant_id="acme", organization_id="sales")
RIVAL = Scope(tenant_id="rival", organization_id="ops")

_ids = Snowflake(1021)


def new_credential(
    name: str,
    ciphertext: bytes = b"sealed",
    *,
    key_id: str = "k1",
    type_name: str = "postgres",
    description: str = "",
    stored_by: str = "ada",
) -> NewCredential:
    return NewCredential(
        credential_id=_ids.next(int(time.time() * 1000)),
        name=name,
        type=type_name,
        description=description,
        tags=("a", "b"),
        sealed=SealedData(key_id=key_id, ciphertext=ciphertext),
        stored_by=stored_by,
    )


async def put(
    store: CredentialStore, name: str, ciphertext: bytes = b"sealed", *, scope: Scope = ACME, key_id: str = "k1"
) -> StoredCredential:
    return await store.put(scope, new_credential(name, ciphertext, key_id=key_id))


class CredentialStoreCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> CredentialStore:
        """An empty store."""

    async def test_what_was_stored_is_there(self, store: CredentialStore) -> None:
        new = new_credential("pg", b"\x00\xff", description="for orders")

        stored = await store.put(ACME, new)

        assert stored.created
        found = await store.get(ACME, "pg")
        assert found.scope == ACME
        assert found.info == stored.info
        assert (found.sealed.key_id, found.sealed.ciphertext) == ("k1", b"\x00\xff")
        info = found.info
        assert (info.credential_id, info.name, info.type) == (str(new.credential_id), "pg", "postgres")
        assert (info.description, info.tags, info.key_id) == ("for orders", ("a", "b"), "k1")
        assert (info.created_by, info.updated_by) == ("ada", "ada")
        assert info.created_at == info.updated_at

    async def test_storing_again_replaces_all_but_the_identity(self, store: CredentialStore) -> None:
        first = (await put(store, "pg")).info
        other = new_credential("pg", b"other", key_id="k2", type_name="mysql", description="new", stored_by="bob")

        again = await store.put(ACME, other)

        assert not again.created
        found = await store.get(ACME, "pg")
        assert found.sealed == SealedData(key_id="k2", ciphertext=b"other")
        assert found.sealed.ciphertext == b"other"
        assert found.info == again.info
        info = found.info
        assert (info.credential_id, info.created_at, info.created_by) == (first.credential_id, first.created_at, "ada")
        assert (info.type, info.description, info.updated_by) == ("mysql", "new", "bob")
        assert info.updated_at >= first.updated_at

    async def test_of_many_who_store_at_once_one_creates_and_all_is_of_one(self, store: CredentialStore) -> None:
        news = [new_credential("pg", f"sealed {n}".encode(), stored_by=f"writer {n}") for n in range(20)]

        outcomes = await asyncio.gather(*(store.put(ACME, new) for new in news))

        assert sum(one.created for one in outcomes) == 1
        found = await store.get(ACME, "pg")
        last = next(new for new in news if new.sealed == found.sealed)
        assert found.info.updated_by == last.stored_by

    async def test_what_is_not_there_is_not_found(self, store: CredentialStore) -> None:
        await put(store, "pg")

        for attempt in (store.get(ACME, "none"), store.delete(ACME, "none"), store.get(ACME, "PG")):
            with pytest.raises(NotFound) as refusal:
                await attempt
            assert refusal.value.code == "credential.not_found"

    async def test_tenants_and_organizations_have_credentials_of_their_own(self, store: CredentialStore) -> None:
        await put(store, "pg", b"mine")
        await put(store, "pg", b"theirs", scope=RIVAL)

        assert (await store.get(ACME, "pg")).sealed.ciphertext == b"mine"
        with pytest.raises(NotFound):
            await store.get(SALES, "pg")
        with pytest.raises(NotFound):
            await store.delete(SALES, "pg")
        assert (await store.list(SALES)).credentials == ()
        await store.delete(RIVAL, "pg")
        assert (await store.get(ACME, "pg")).sealed.ciphertext == b"mine"

    async def test_what_was_removed_is_gone(self, store: CredentialStore) -> None:
        stored = await put(store, "pg")

        assert await store.delete(ACME, "pg") == stored.info

        with pytest.raises(NotFound):
            await store.get(ACME, "pg")
        with pytest.raises(NotFound):
            await store.delete(ACME, "pg")
        assert (await put(store, "pg")).info.credential_id != stored.info.credential_id

    async def test_a_listing_is_by_name_and_can_be_continued(self, store: CredentialStore) -> None:
        names = ["B", "a", "a.b", "a_b", "ä", "z"]
        for name in reversed(names):
            await put(store, name)

        listed: list[CredentialInfo] = []
        token = ""
        while True:
            page = await store.list(ACME, page_size=4, page_token=token)
            listed += page.credentials
            token = page.next_page_token
            if not token:
                break

        assert [info.name for info in listed] == ["B", "a", "a.b", "a_b", "z", "ä"]

    async def test_a_listing_can_be_narrowed(self, store: CredentialStore) -> None:
        await store.put(ACME, new_credential("orders_pg", type_name="postgres"))
        await store.put(ACME, new_credential("mail", type_name="basic", description="for ORDERS by 100%"))
        await store.put(ACME, new_credential("other", type_name="basic"))

        async def names(*, type_name: str = "", contains: str = "") -> list[str]:
            page = await store.list(ACME, type_name=type_name, contains=contains)
            return [info.name for info in page.credentials]

        assert await names(type_name="basic") == ["mail", "other"]
        assert await names(contains="Orders") == ["mail", "orders_pg"]
        assert await names(contains="0%") == ["mail"]
        assert await names(type_name="postgres", contains="%") == []

    async def test_those_under_other_keys_are_found_in_the_order_of_their_ids(self, store: CredentialStore) -> None:
        ids = [(await put(store, f"c{n}", key_id=f"k{n % 3}")).info.credential_id for n in range(6)]
        foreign = (await put(store, "x", scope=RIVAL, key_id="k0")).info.credential_id

        async def found(scope: Scope | None, *, after: str = "0", limit: int = 100) -> list[str]:
            rows = await store.sealed_otherwise(scope, key_id="k1", after_id=int(after), limit=limit)
            return [row.info.credential_id for row in rows]

        mine = [ids[0], ids[2], ids[3], ids[5]]
        assert await found(ACME) == mine
        assert await found(ACME, limit=2) == mine[:2]
        assert await found(ACME, after=mine[1]) == mine[2:]
        assert await found(None) == [*mine, foreign]

    async def test_sealing_anew_changes_only_key_and_data(self, store: CredentialStore) -> None:
        before = (await put(store, "pg", b"old")).info
        read = await store.get(ACME, "pg")

        assert await store.reseal(read, SealedData(key_id="k2", ciphertext=b"new"))

        after = await store.get(ACME, "pg")
        assert (after.sealed.key_id, after.sealed.ciphertext, after.info.key_id) == ("k2", b"new", "k2")
        assert (after.info.updated_at, after.info.updated_by) == (before.updated_at, before.updated_by)

    async def test_sealing_anew_yields_to_whoever_stored_or_removed_meanwhile(self, store: CredentialStore) -> None:
        sealed = SealedData(key_id="k2", ciphertext=b"stale")
        for name in ("replaced", "removed"):
            await put(store, name, b"old")
        replaced, removed = await store.get(ACME, "replaced"), await store.get(ACME, "removed")
        await put(store, "replaced", b"newer")
        await store.delete(ACME, "removed")
        await put(store, "removed", b"again")

        assert not await store.reseal(replaced, sealed)
        assert not await store.reseal(removed, sealed)

        assert (await store.get(ACME, "replaced")).sealed.ciphertext == b"newer"
        assert (await store.get(ACME, "removed")).sealed.ciphertext == b"again"
