"""What every payload store must do; an adapter's tests subclass this and supply a store and a way to damage it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest
from noetl_core.canonical import sha256_hex
from noetl_core.errors import Corrupt, LocatorInvalid, NotFound
from noetl_core.payloads import PayloadPart, PayloadRef, refer_to
from noetl_core.ports.payloads import REFERENCE_NOT_AVAILABLE, PayloadStore

HELLO = b'{"hello":"world"}'
JSON = "application/json"

AWKWARD_NAMES = ("a/b", "a%2Fb", "../up", ".tmp", "...", "a b", "ä", "\0", "~", "A" * 80, "con\n")
"""Tenants may be called anything; none may reach another's payloads by its name."""


async def put(store: PayloadStore, data: bytes = HELLO, *, tenant: str = "acme", org: str = "ops") -> PayloadRef:
    return await store.put(tenant_id=tenant, organization_id=org, data=data, media_type=JSON)


async def put_stream(store: PayloadStore, chunks: Iterable[bytes], *, tenant: str = "acme") -> PayloadRef:
    return await store.put_stream(tenant_id=tenant, organization_id="ops", chunks=_stream_of(chunks), media_type=JSON)


async def _stream_of(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def _chunks_that_break_off() -> Iterable[bytes]:
    yield b"a" * 100_000
    raise ConnectionResetError("the producer is gone")


class PayloadStoreCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> PayloadStore:
        """An empty store."""

    @abstractmethod
    def damage(self, store: PayloadStore, ref: PayloadRef) -> None:
        """Put other bytes in the place of a stored payload."""

    @abstractmethod
    def object_count(self, store: PayloadStore) -> int:
        """How many objects there are, whoever's they are."""

    async def test_what_was_put_can_be_got(self, store: PayloadStore) -> None:
        assert await store.get(await put(store)) == HELLO

    async def test_a_reference_says_what_and_whose_the_bytes_are(self, store: PayloadStore) -> None:
        ref = await put(store, tenant="acme", org="ops")

        assert ref == refer_to(HELLO, tenant_id="acme", organization_id="ops", media_type=JSON)
        assert ref.sha256 == sha256_hex(HELLO)
        assert ref.bytes == len(HELLO)
        assert ref.uri == f"noetl://tenant/acme/org/ops/payloads/sha256/{ref.sha256}"

    async def test_equal_bytes_are_one_object(self, store: PayloadStore) -> None:
        first = await put(store)

        assert await put(store) == first
        assert self.object_count(store) == 1

    async def test_equal_bytes_put_at_once_are_one_object(self, store: PayloadStore) -> None:
        refs = await asyncio.gather(*(put(store) for _ in range(20)))

        assert len(set(refs)) == 1
        assert await store.get(refs[0]) == HELLO
        assert self.object_count(store) == 1

    async def test_tenants_and_organizations_share_no_objects(self, store: PayloadStore) -> None:
        refs = {await put(store, tenant=tenant, org=org) for tenant in "ab" for org in "xy"}

        assert len(refs) == 4
        assert self.object_count(store) == 4

    async def test_another_tenants_reference_to_known_bytes_finds_nothing(self, store: PayloadStore) -> None:
        await put(store, tenant="a")

        with pytest.raises(NotFound):
            await store.get(refer_to(HELLO, tenant_id="b", organization_id="ops", media_type=JSON))

    async def test_no_name_reaches_another_tenants_payloads(self, store: PayloadStore) -> None:
        for name in AWKWARD_NAMES:
            ref = await put(store, name.encode(), tenant=name, org=name)
            assert await store.get(ref) == name.encode()

        assert self.object_count(store) == len(AWKWARD_NAMES)

    @pytest.mark.parametrize("name", ["", ".", ".."])
    async def test_a_name_that_no_locator_can_have_is_refused(self, store: PayloadStore, name: str) -> None:
        with pytest.raises(LocatorInvalid):
            await put(store, tenant=name)

    @pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_000])
    async def test_payloads_of_every_size_come_back_whole(self, store: PayloadStore, size: int) -> None:
        data = bytes(range(256)) * (size // 256) + bytes(size % 256)

        ref = await put(store, data)

        assert ref.bytes == size
        assert await store.get(ref) == data

    async def test_a_payload_that_is_not_there_is_not_found(self, store: PayloadStore) -> None:
        missing = refer_to(b"never stored", tenant_id="acme", organization_id="ops", media_type=JSON)

        with pytest.raises(NotFound) as refusal:
            await store.get(missing)

        assert refusal.value.code == REFERENCE_NOT_AVAILABLE

    async def test_bytes_can_be_read_where_they_are_and_nobody_can_write_to_them(self, store: PayloadStore) -> None:
        ref = await put(store)
        view = await store.attach(ref)
        await store.delete(ref)

        assert (bytes(view), view.readonly) == (HELLO, True)
        with pytest.raises(NotFound):
            await store.attach(ref)

    async def test_damaged_bytes_are_never_returned(self, store: PayloadStore) -> None:
        ref = await put(store)
        self.damage(store, ref)

        with pytest.raises(Corrupt):
            await store.get(ref)
        with pytest.raises(Corrupt):
            await store.attach(ref)

    async def test_putting_a_damaged_payload_again_heals_it(self, store: PayloadStore) -> None:
        ref = await put(store)
        self.damage(store, ref)

        await put(store)

        assert await store.get(ref) == HELLO

    async def test_the_media_type_is_part_of_the_reference_and_not_of_the_object(self, store: PayloadStore) -> None:
        as_json = await put(store)
        as_text = await store.put(tenant_id="acme", organization_id="ops", data=HELLO, media_type="text/plain")

        assert as_text == replace(as_json, media_type="text/plain")
        assert self.object_count(store) == 1

    @pytest.mark.parametrize("sizes", [[], [0, 0], [1], [7, 0, 70_000], [9_000_001, 3]])
    async def test_a_stream_is_the_same_payload_as_its_bytes(self, store: PayloadStore, sizes: list[int]) -> None:
        chunks = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
        whole = b"".join(chunks)

        ref = await put_stream(store, chunks)

        assert ref == refer_to(whole, tenant_id="acme", organization_id="ops", media_type=JSON)
        assert await store.get(ref) == whole
        assert b"".join([chunk async for chunk in store.stream(ref)]) == whole
        assert await put(store, whole) == ref
        assert self.object_count(store) == 1

    async def test_the_same_stream_twice_is_one_object(self, store: PayloadStore) -> None:
        refs = await asyncio.gather(*(put_stream(store, [HELLO, HELLO]) for _ in range(5)))

        assert len(set(refs)) == 1
        assert self.object_count(store) == 1
        assert await store.get(refs[0]) == HELLO * 2

    async def test_a_stream_that_breaks_off_leaves_nothing(self, store: PayloadStore) -> None:
        with pytest.raises(ConnectionResetError):
            await put_stream(store, _chunks_that_break_off())

        assert self.object_count(store) == 0

    async def test_a_large_payload_comes_in_pieces(self, store: PayloadStore) -> None:
        ref = await put(store, bytes(9_000_000))

        sizes = [len(chunk) async for chunk in store.stream(ref)]

        assert sum(sizes) == 9_000_000
        assert max(sizes) <= 4 * 1024 * 1024

    async def test_a_stream_of_damaged_bytes_has_no_end(self, store: PayloadStore) -> None:
        ref = await put(store, bytes(9_000_000))
        self.damage(store, ref)

        with pytest.raises(Corrupt):
            [chunk async for chunk in store.stream(ref)]

    async def test_a_part_is_read_and_proven_without_the_rest(self, store: PayloadStore) -> None:
        data = bytes(range(256)) * 40_000
        ref = await put(store, data)
        parts = [(0, 10), (5_000_000, 3_000_000), (len(data) - 1, 1)]

        for start, size in parts:
            wanted = data[start : start + size]
            part = PayloadPart(start=start, bytes=size, sha256=sha256_hex(wanted))
            assert await store.get_part(ref, part) == wanted

    async def test_a_part_with_other_bytes_or_beyond_the_end_is_corrupt(self, store: PayloadStore) -> None:
        ref = await put(store)

        for start, size in ((1, len(HELLO) - 1), (2, len(HELLO))):
            with pytest.raises(Corrupt):
                await store.get_part(ref, PayloadPart(start=start, bytes=size, sha256=sha256_hex(HELLO)))

    async def test_a_part_of_what_is_not_there_is_not_found(self, store: PayloadStore) -> None:
        missing = refer_to(b"never stored", tenant_id="acme", organization_id="ops", media_type=JSON)

        with pytest.raises(NotFound) as refusal:
            await store.get_part(missing, PayloadPart(start=0, bytes=1, sha256=sha256_hex(b"n")))

        assert refusal.value.code == REFERENCE_NOT_AVAILABLE

    async def test_a_stream_of_what_is_not_there_is_not_found(self, store: PayloadStore) -> None:
        missing = refer_to(b"never stored", tenant_id="acme", organization_id="ops", media_type=JSON)

        with pytest.raises(NotFound) as refusal:
            [chunk async for chunk in store.stream(missing)]

        assert refusal.value.code == REFERENCE_NOT_AVAILABLE

    async def test_a_stream_that_is_put_again_heals_a_damaged_payload(self, store: PayloadStore) -> None:
        ref = await put(store)
        self.damage(store, ref)

        await put_stream(store, [HELLO])

        assert await store.get(ref) == HELLO

    async def test_what_is_stored_can_be_told_without_reading_it(self, store: PayloadStore) -> None:
        ref = await put(store)
        foreign = refer_to(HELLO, tenant_id="b", organization_id="ops", media_type=JSON)

        stored = await store.stat(ref)

        assert stored is not None
        assert (stored.sha256, stored.bytes) == (ref.sha256, len(HELLO))
        assert await store.exists(ref)
        assert await store.stat(foreign) is None
        assert not await store.exists(foreign)

    async def test_what_was_deleted_is_gone_and_can_be_put_again(self, store: PayloadStore) -> None:
        ref = await put(store)

        await store.delete(ref)
        await store.delete(ref)

        assert not await store.exists(ref)
        with pytest.raises(NotFound):
            await store.get(ref)
        await put(store)
        assert await store.get(ref) == HELLO

    async def test_deleting_spares_the_same_bytes_of_others(self, store: PayloadStore) -> None:
        mine, theirs = await put(store, tenant="a"), await put(store, tenant="b")

        await store.delete(mine)

        assert await store.get(theirs) == HELLO

    async def test_all_payloads_of_an_organization_are_found_and_no_others(self, store: PayloadStore) -> None:
        names = ["a", "a b", "a%20b", "ab"]
        for name in names:
            await put(store, name.encode(), tenant=name)
            await put(store, b"common", tenant=name)
        await put(store, b"other organization", tenant="a", org="oops")

        for name in names:
            found = [one async for one in store.find(tenant_id=name, organization_id="ops")]
            expected = {sha256_hex(name.encode()): len(name.encode()), sha256_hex(b"common"): 6}
            assert {one.sha256: one.bytes for one in found} == expected
            assert len(found) == 2

    async def test_an_organization_without_payloads_has_none(self, store: PayloadStore) -> None:
        assert [one async for one in store.find(tenant_id="nobody", organization_id="ops")] == []
