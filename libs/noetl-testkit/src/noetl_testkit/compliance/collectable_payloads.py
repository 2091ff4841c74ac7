"""What every payload store must do whose garbage can be collected."""

from abc import ABC, abstractmethod
from datetime import UTC, datetime, timedelta

import pytest
from noetl_core.canonical import sha256_hex
from noetl_core.errors import NotFound
from noetl_core.payloads import PayloadPart, PayloadRef
from noetl_core.ports.payloads import CollectablePayloads

from noetl_testkit.compliance.payload_store import HELLO, put, put_stream

LATER = datetime.now(UTC) + timedelta(days=1)
"""After everything that a test stores."""
EARLIER = datetime.now(UTC) - timedelta(days=1)


async def withdrawn(store: CollectablePayloads) -> PayloadRef:
    ref = await put(store)
    assert await store.withdraw(ref, stored_before=LATER)
    return ref


async def found(store: CollectablePayloads) -> list[str]:
    return [one.sha256 async for one in store.find(tenant_id="acme", organization_id="ops")]


async def found_aside(store: CollectablePayloads) -> list[str]:
    return [one.sha256 async for one in store.find_withdrawn(tenant_id="acme", organization_id="ops")]


class CollectablePayloadsCompliance(ABC):
    """One suite, run by every store and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> CollectablePayloads:
        """An empty store."""

    async def test_what_is_put_aside_is_read_as_if_it_were_not(self, store: CollectablePayloads) -> None:
        ref = await withdrawn(store)

        assert await store.get(ref) == HELLO
        assert b"".join([chunk async for chunk in store.stream(ref)]) == HELLO
        assert await store.get_part(ref, PayloadPart(start=2, bytes=5, sha256=sha256_hex(HELLO[2:7]))) == HELLO[2:7]
        assert bytes(await store.attach(ref)) == HELLO
        assert await store.exists(ref)
        stat = await store.stat(ref)
        assert stat is not None
        assert stat.bytes == len(HELLO)
        assert await found(store) == []
        assert await found_aside(store) == [ref.sha256]

    async def test_what_is_put_aside_is_put_back(self, store: CollectablePayloads) -> None:
        ref = await withdrawn(store)

        assert await store.restore(ref)

        assert await store.get(ref) == HELLO
        assert await found(store) == [ref.sha256]
        assert await found_aside(store) == []

    async def test_what_was_put_aside_long_enough_is_deleted(self, store: CollectablePayloads) -> None:
        ref = await withdrawn(store)

        assert not await store.purge(ref, withdrawn_before=EARLIER)
        assert await store.get(ref) == HELLO
        assert await store.purge(ref, withdrawn_before=LATER)

        assert not await store.exists(ref)
        with pytest.raises(NotFound):
            await store.get(ref)
        assert not await store.purge(ref, withdrawn_before=LATER)

    async def test_what_was_stored_too_late_is_not_put_aside(self, store: CollectablePayloads) -> None:
        ref = await put(store)

        assert not await store.withdraw(ref, stored_before=EARLIER)

        assert await found(store) == [ref.sha256]
        assert await found_aside(store) == []

    async def test_steps_done_twice_are_done_once(self, store: CollectablePayloads) -> None:
        ref = await withdrawn(store)

        assert await store.withdraw(ref, stored_before=LATER)
        assert await store.restore(ref)
        assert await store.restore(ref)
        assert await store.get(ref) == HELLO

    async def test_what_is_nowhere_is_neither_put_aside_nor_back(self, store: CollectablePayloads) -> None:
        ref = await put(store)
        await store.delete(ref)

        assert not await store.withdraw(ref, stored_before=LATER)
        assert not await store.restore(ref)

    async def test_what_is_put_again_stands_in_its_place_whatever_becomes_of_what_was_put_aside(
        self, store: CollectablePayloads
    ) -> None:
        ref = await withdrawn(store)

        await put(store)
        await put_stream(store, [HELLO])
        assert await found(store) == [ref.sha256]
        assert await store.purge(ref, withdrawn_before=LATER)

        assert await store.get(ref) == HELLO

    async def test_deleting_a_payload_deletes_what_is_put_aside_too(self, store: CollectablePayloads) -> None:
        ref = await withdrawn(store)

        await store.delete(ref)

        assert not await store.exists(ref)
        assert await found_aside(store) == []

    async def test_others_have_what_is_theirs(self, store: CollectablePayloads) -> None:
        theirs = await put(store, tenant="other")
        ref = await withdrawn(store)

        assert await store.purge(ref, withdrawn_before=LATER)

        assert await store.get(theirs) == HELLO

    async def test_a_store_knows_who_has_ever_used_it(self, store: CollectablePayloads) -> None:
        assert await store.claim("one") == {"one"}
        assert await store.claim("one") == {"one"}
        assert await store.claim("an/other") == {"one", "an/other"}
        assert await found(store) == []
