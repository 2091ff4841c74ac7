"""Shared memory: taken only if everything fits, bounded for all processes together, and never in the way."""

from __future__ import annotations

import errno
import os
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from noetl_adapters.payload import shm_account
from noetl_adapters.payload.shm_directory import NewSegment
from noetl_adapters.payload.shm_segment import DATA_OFFSET, Machine
from noetl_adapters.payload.tiers import Miss, TieredPayloadStore
from noetl_core.canonical import sha256_hex
from noetl_core.payloads import PayloadPart
from noetl_core.ports.tables import MEDIA_TYPE
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.shared_memory import GRACE_SECONDS, LEASE_SECONDS, Node, bytes_in, reference, table

TABLE = table(1)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_what_one_process_has_produced_another_reads_where_it_is(node: Node) -> None:
    producer, consumer = node.process(), node.process()
    ref = await producer.produce(TABLE)

    found = await consumer.tier.load(ref)

    assert isinstance(found, memoryview)
    assert found.readonly
    assert found == TABLE
    assert pa.py_buffer(found).address % 64 == 0  # so that Arrow uses it as it is
    assert pa.ipc.open_stream(pa.py_buffer(found)).read_all().num_rows == 1


async def test_a_segment_begins_with_the_header_that_other_runtimes_know(node: Node) -> None:
    await node.process().produce(TABLE)
    (segment,) = node.segments()

    assert struct.unpack("<8sIQ", segment.read_bytes()[:20]) == (b"NOETLIPC", 1, len(TABLE))
    assert segment.stat().st_mode & 0o777 == 0o400


async def test_the_producer_can_say_where_it_is(node: Node) -> None:
    ref = await node.process().produce(TABLE)
    (segment,) = node.segments()

    assert ref.hint is not None
    assert (ref.hint.node_id, ref.hint.shm_name) == ("node-1", f"{node.path.name}/{segment.name}")
    assert ref == reference(TABLE)
    assert "hint" not in ref.to_json()


async def test_the_same_table_twice_is_one_segment(node: Node) -> None:
    first, second = node.process(), node.process()
    refs = [await first.produce(TABLE), await second.produce(TABLE), await first.pass_on(TABLE)]

    assert len(set(refs)) == len(node.segments()) == 1
    assert refs[1].hint is not None


async def test_tenants_share_no_segments(node: Node) -> None:
    process = node.process()
    await process.produce(TABLE)

    assert await process.tier.load(reference(TABLE, tenant="other")) is Miss.ABSENT


@pytest.mark.parametrize("data", [b"x" * 20_000, table(1, size=100)])
async def test_what_is_no_table_or_very_small_is_left_to_other_tiers(node: Node, data: bytes) -> None:
    process = node.process()
    ref = replace(await process.produce(data), media_type="application/json")

    assert ref.hint is None
    assert node.segments() == []
    assert await process.tier.load(ref) is None


async def test_attached_bytes_stay_readable_when_their_segment_is_removed(node: Node) -> None:
    producer, consumer = node.process(), node.process()
    ref = await producer.produce(TABLE)
    attached = await consumer.tier.load(ref)
    await producer.tier.forget(ref)
    await producer.tier.close()
    await consumer.tier.close()

    assert node.segments() == []
    assert isinstance(attached, memoryview)
    assert attached == TABLE


class TestLeases:
    async def test_what_is_leased_is_never_pushed_out(self, tmp_path: Path) -> None:
        node = Node(tmp_path, budget_bytes=5 * (len(TABLE) + DATA_OFFSET))
        process = node.process()
        tables = [table(seed) for seed in range(1, 7)]
        refs = [await process.produce(data) for data in tables]

        assert [ref.hint is not None for ref in refs] == [True] * 5 + [False]
        assert process.reports.refusals == {"full": 1}
        assert process.reports.size <= node.budget_bytes
        assert [await bytes_in(process.tier, data) for data in tables] == [*tables[:5], Miss.ABSENT]

    async def test_after_its_lease_it_gives_way_the_longest_unused_first(self, tmp_path: Path) -> None:
        node = Node(tmp_path, budget_bytes=4 * (len(TABLE) + DATA_OFFSET))
        process = node.process()
        old = [table(seed) for seed in range(1, 5)]
        for data in old:
            await process.produce(data)
            node.pass_seconds(1)
        node.pass_seconds(LEASE_SECONDS)
        assert await bytes_in(process.tier, old[0]) == old[0]
        node.pass_seconds(1)

        await process.produce(table(5))

        assert len(node.segments()) == 4
        assert await bytes_in(process.tier, old[0]) == old[0]
        assert await bytes_in(process.tier, old[1]) is Miss.ABSENT

    async def test_nothing_is_pushed_out_for_what_does_not_fit_anyway(self, tmp_path: Path) -> None:
        small, large = table(1, size=17_000), [table(seed, size=40_000) for seed in range(2, 7)]
        node = Node(tmp_path, budget_bytes=4 * (len(large[0]) + DATA_OFFSET) + len(small) + DATA_OFFSET)
        process = node.process()
        read = await process.pass_on(small)

        assert [(await process.produce(data)).hint is not None for data in large] == [True] * 4 + [False]
        assert isinstance(await process.tier.load(read), memoryview)

    async def test_a_hint_whose_time_is_over_is_a_miss_and_counted_whatever_became_of_the_copy(
        self, node: Node
    ) -> None:
        producer, reader = node.process(), node.process()
        ref = await producer.produce(TABLE)
        node.pass_seconds(LEASE_SECONDS + GRACE_SECONDS - 1)
        assert isinstance(await reader.tier.load(ref), memoryview)  # which begins its grace period anew
        node.pass_seconds(1)

        assert await reader.tier.load(ref) is Miss.STALE
        assert await reader.tier.load_part(ref, PayloadPart(start=0, bytes=8, sha256="")) is Miss.STALE
        assert await bytes_in(reader.tier, TABLE) == TABLE  # the copy itself is as good as before

        store = InMemoryPayloadStore()
        await store.put(tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE)
        tiered = TieredPayloadStore(store, [reader.tier], reader.reports)
        assert bytes(await tiered.get(ref)) == TABLE
        assert reader.reports.reads["stale"] == 1

    async def test_its_time_is_its_lease_and_a_grace_period(self, node: Node) -> None:
        process = node.process()
        await process.produce(TABLE)
        node.pass_seconds(LEASE_SECONDS + GRACE_SECONDS - 1)
        assert await bytes_in(process.tier, TABLE) == TABLE  # which gives it another one
        node.pass_seconds(GRACE_SECONDS - 1)
        assert await bytes_in(process.tier, TABLE) == TABLE
        node.pass_seconds(GRACE_SECONDS)

        assert await bytes_in(process.tier, TABLE) is Miss.STALE
        assert node.segments() == []

    async def test_a_sweep_removes_what_has_had_its_time(self, node: Node) -> None:
        process = node.process()
        await process.pass_on(TABLE)
        await process.produce(table(2))
        node.pass_seconds(GRACE_SECONDS)
        await process.tier.sweep()

        assert len(node.segments()) == 1
        assert await bytes_in(process.tier, table(2)) == table(2)

    async def test_no_date_makes_a_lease_longer(self, node: Node) -> None:
        process = node.process()
        await process.produce(TABLE)
        (segment,) = node.segments()
        os.utime(segment)  # somebody touched it: a date of today is no time of the monotonic clock

        assert await bytes_in(process.tier, TABLE) is Miss.STALE


class TestRoom:
    async def test_one_payload_gets_a_quarter_of_the_budget(self, tmp_path: Path) -> None:
        node = Node(tmp_path, budget_bytes=3 * len(TABLE))
        process = node.process()
        await process.produce(TABLE)

        assert node.segments() == []
        assert process.reports.refusals == {"too_large": 1}

    async def test_the_last_memory_of_the_machine_is_not_taken(self, node: Node) -> None:
        node.room_bytes = len(TABLE)
        process = node.process()
        await process.produce(TABLE)

        assert node.segments() == []
        assert process.reports.refusals == {"no_room": 1}

    async def test_the_number_of_segments_is_bounded(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shm_account, "MAX_SEGMENTS", 2)
        process = node.process()
        for seed in range(1, 4):
            await process.pass_on(table(seed))
            node.pass_seconds(1)

        assert len(node.segments()) == 2
        assert await bytes_in(process.tier, table(1)) is Miss.ABSENT

    async def test_full_memory_costs_nothing_but_the_copy_and_is_told_once(
        self, node: Node, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        process = node.process()
        refs = [await process.produce(TABLE), await process.produce(table(2))]

        assert [ref.hint for ref in refs] == [None, None]
        assert node.segments() == []
        assert process.reports.refusals == {"failed": 2}
        assert node.warnings == ["No space left on device"]

    async def test_who_holds_the_lock_for_long_holds_up_nobody(self, node: Node) -> None:
        process, other = node.process(), node.process()
        with other.directory.alone():
            ref = await process.produce(TABLE)

        assert ref.hint is None
        assert process.reports.refusals == {"busy": 1}

    async def test_what_somebody_writes_counts_from_the_beginning(self, tmp_path: Path) -> None:
        size = len(TABLE) + DATA_OFFSET
        node = Node(tmp_path, budget_bytes=4 * size)
        process, other = node.process(), node.process()
        with other.directory.alone():
            writing = NewSegment(other.directory, 4 * size)
        assert (await process.produce(TABLE)).hint is None
        writing.discard()

        assert (await process.produce(TABLE)).hint is not None


def change(node: Node, *, at: int) -> None:
    """One byte of the only segment, as no process of ours could do it."""
    (segment,) = node.segments()
    segment.chmod(0o600)
    status = segment.stat()
    with segment.open("r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ 0x99]))
    os.utime(segment, ns=(status.st_mtime_ns, status.st_mtime_ns))


class TestFlaws:
    """Whatever is not right is a miss with a name, and goes away."""

    async def damaged(self, node: Node, *, at: int) -> Miss | bytes | None:
        await node.process().produce(TABLE)
        change(node, at=at)
        return await bytes_in(node.process().tier, TABLE)

    @pytest.mark.parametrize("at", [0, 8, 12, 20, 52, 84, 116, 148, 156, 160])
    async def test_a_header_that_was_changed_is_corrupt(self, node: Node, at: int) -> None:
        assert await self.damaged(node, at=at) is Miss.CORRUPT
        assert node.segments() == []

    @pytest.mark.parametrize("at", [DATA_OFFSET, DATA_OFFSET + len(TABLE) // 2, DATA_OFFSET + len(TABLE) - 1])
    async def test_bytes_that_were_changed_are_corrupt(self, node: Node, at: int) -> None:
        assert await self.damaged(node, at=at) is Miss.CORRUPT
        assert node.segments() == []

    @pytest.mark.parametrize("length", [0, 19, DATA_OFFSET, DATA_OFFSET + len(TABLE) - 1, DATA_OFFSET + len(TABLE) + 1])
    async def test_a_file_of_another_length_is_truncated(self, node: Node, length: int) -> None:
        process = node.process()
        await process.produce(TABLE)
        (segment,) = node.segments()
        segment.chmod(0o600)
        os.truncate(segment, length)
        os.utime(segment, ns=(node.now_ns, node.now_ns))

        assert await bytes_in(process.tier, TABLE) is Miss.TRUNCATED
        assert node.segments() == []

    async def test_the_bytes_of_another_payload_are_corrupt(self, node: Node) -> None:
        process = node.process()
        await process.produce(TABLE)
        (segment,) = node.segments()
        await process.produce(table(2))
        other = next(path for path in node.segments() if path != segment)
        other.rename(segment)

        assert await bytes_in(process.tier, TABLE) is Miss.CORRUPT

    async def test_that_of_another_node_is_foreign_and_stays(self, node: Node) -> None:
        await node.process(Machine(node_id="node-2", boot_id="boot-1")).produce(TABLE)
        process = node.process()
        await process.tier.sweep(thoroughly=True)

        assert await bytes_in(process.tier, TABLE) is Miss.FOREIGN
        assert len(node.segments()) == 1

    async def test_that_of_an_earlier_life_of_the_machine_is_stale(self, node: Node) -> None:
        await node.process(Machine(node_id="node-1", boot_id="boot-0")).produce(TABLE)

        assert await bytes_in(node.process().tier, TABLE) is Miss.STALE
        assert node.segments() == []

    async def test_a_start_sweeps_what_cannot_be_read(self, node: Node) -> None:
        await node.process(Machine(node_id="node-1", boot_id="boot-0")).produce(TABLE)
        process = node.process()
        await process.produce(table(2))
        await process.tier.sweep(thoroughly=True)

        assert len(node.segments()) == 1
        assert await bytes_in(process.tier, table(2)) == table(2)

    async def test_a_symbolic_link_is_not_followed(self, node: Node, tmp_path: Path) -> None:
        process = node.process()
        await process.produce(TABLE)
        (segment,) = node.segments()
        elsewhere = tmp_path / "elsewhere"
        segment.rename(elsewhere)
        segment.symlink_to(elsewhere)

        assert await bytes_in(process.tier, TABLE) is Miss.ABSENT


class TestHints:
    async def test_a_hint_whose_segment_is_gone_is_stale(self, node: Node) -> None:
        process = node.process()
        ref = await process.produce(TABLE)
        await process.tier.forget(ref)

        assert await process.tier.load(ref) is Miss.STALE

    async def test_a_hint_of_another_node_is_foreign_unless_there_is_a_copy_here(self, node: Node) -> None:
        process = node.process()
        ref = await process.produce(TABLE)
        assert ref.hint is not None
        away = replace(ref, hint=replace(ref.hint, node_id="node-2"))
        assert isinstance(await process.tier.load(away), memoryview)
        await process.tier.forget(ref)

        assert await process.tier.load(away) is Miss.FOREIGN

    async def test_a_hint_of_another_schema_is_corrupt(self, node: Node) -> None:
        process = node.process()
        ref = await process.produce(TABLE)
        assert ref.hint is not None
        other = replace(ref, hint=replace(ref.hint, schema_digest="0" * 64))

        assert await process.tier.load(other) is Miss.CORRUPT
        assert isinstance(await process.tier.load(ref), memoryview)  # the hint was wrong, not the copy


class TestBehindAStore:
    async def test_reads_fall_through_and_leave_a_copy_for_the_neighbours(self, node: Node) -> None:
        store, first, second = InMemoryPayloadStore(), node.process(), node.process()
        ref = await store.put(tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE)

        assert await TieredPayloadStore(store, [first.tier], first.reports).get(ref) == TABLE
        assert await TieredPayloadStore(store, [second.tier], second.reports).get(ref) == TABLE
        assert first.reports.reads == {"miss": 1, "hit": 1}  # the hit is the store's
        store.objects.clear()
        near = TieredPayloadStore(store, [second.tier], second.reports)
        assert b"".join([chunk async for chunk in near.stream(ref)]) == TABLE
        assert await near.attach(ref) == TABLE
        assert second.reports.reads == {"hit": 3}

    async def test_a_part_is_proven_by_itself_and_not_by_all_the_others(self, node: Node) -> None:
        store, process = InMemoryPayloadStore(), node.process()
        ref = await TieredPayloadStore(store, [process.tier], process.reports).put(
            tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE
        )
        good = PayloadPart(start=0, bytes=100, sha256=sha256_hex(TABLE[:100]))
        bad = PayloadPart(start=1000, bytes=100, sha256=sha256_hex(TABLE[1000:1100]))
        change(node, at=DATA_OFFSET + 1050)
        reader = node.process()
        near = TieredPayloadStore(store, [reader.tier], reader.reports)

        assert await near.get_part(ref, good) == TABLE[:100]
        assert await near.get_part(ref, bad) == TABLE[1000:1100]
        assert reader.reports.reads == {"hit": 2, "corrupt": 1}  # the second hit is the store's
        assert node.segments() == []

    async def test_a_hint_comes_back_from_putting(self, node: Node) -> None:
        process = node.process()
        near = TieredPayloadStore(InMemoryPayloadStore(), [process.tier], process.reports)
        ref = await near.put(tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE)

        assert ref.hint is not None
        assert await near.attach(ref) == TABLE

    async def test_a_closed_tier_is_as_good_as_none(self, node: Node) -> None:
        process = node.process()
        near = TieredPayloadStore(InMemoryPayloadStore(), [process.tier], process.reports)
        await process.tier.close()
        ref = await near.put(tenant_id="acme", organization_id="ops", data=TABLE, media_type=MEDIA_TYPE)
        await process.tier.close()

        assert await near.get(ref) == TABLE
        assert not node.path.exists()
