"""What every store of snapshots must do; an adapter's tests subclass this and supply one."""

from abc import ABC, abstractmethod

import pytest
from noetl_core.ports.event_log import Scope
from noetl_core.ports.snapshot_store import SnapshotStore
from noetl_core.replay.history import Replay
from noetl_core.replay.snapshots import Rules, Snapshot, open_snapshot, take_snapshot
from noetl_core.values import replace

from noetl_testkit.histories import EXECUTION, choices
from noetl_testkit.telling_histories import telling_history

RULES = Rules(code_version="1.0+abc")
SCOPE = Scope(tenant_id="default", organization_id="default")


def taken(position: int, *, code_version: str = RULES.code_version) -> tuple[Snapshot, list[bytes]]:
    """A snapshot of the one history that there is."""
    replay = Replay(EXECUTION)
    replay.take(telling_history(choices(11)).stored[:position])
    return take_snapshot(replay.result(), code_version=code_version)


class SnapshotStoreCompliance(ABC):
    """One suite, run by the adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> SnapshotStore:
        """An empty store."""

    async def test_what_was_written_comes_back_and_can_be_opened(self, store: SnapshotStore) -> None:
        snapshot, parts = taken(20)
        assert await store.write(snapshot, [parts[0][:50], parts[0][50:]], keep=[])

        found = await store.find(SCOPE, EXECUTION, at_or_below=99, rules=RULES)

        assert found == snapshot
        halves = [await store.part(snapshot, 0), await store.part(snapshot, 1)]
        assert await store.part(snapshot, 2) is None
        whole = b"".join(half for half in halves if half is not None)
        assert open_snapshot(found, [whole], execution_id=EXECUTION, rules=RULES).state.stream_version == 20

    async def test_the_newest_that_is_not_beyond_the_point_is_found(self, store: SnapshotStore) -> None:
        for position in (10, 20, 30):
            await store.write(*taken(position), keep=[10, 20, 30])

        found = [(await store.find(None, EXECUTION, at_or_below=at, rules=RULES)) for at in (9, 10, 29, 30, 31)]

        assert [one.position if one else 0 for one in found] == [0, 10, 20, 30, 30]
        assert await store.positions(EXECUTION, rules=RULES) == [10, 20, 30]

    async def test_snapshots_of_other_rules_executions_and_tenants_are_not_found(self, store: SnapshotStore) -> None:
        await store.write(*taken(20), keep=[])

        for rules in (
            replace(RULES, code_version="2.0+abc"),
            replace(RULES, upcasters="0" * 64),
            replace(RULES, row_format=0),
            replace(RULES, state_format=0),
        ):
            assert await store.find(None, EXECUTION, at_or_below=99, rules=rules) is None
        assert await store.find(None, EXECUTION + 1, at_or_below=99, rules=RULES) is None
        rival = Scope(tenant_id="rival", organization_id="default")
        assert await store.find(rival, EXECUTION, at_or_below=99, rules=RULES) is None

    async def test_the_same_is_stored_once(self, store: SnapshotStore) -> None:
        assert await store.write(*taken(20), keep=[])

        assert not await store.write(*taken(20), keep=[])
        assert await store.positions(EXECUTION, rules=RULES) == [20]

    async def test_what_is_not_to_be_kept_goes_and_what_other_rules_have_made(self, store: SnapshotStore) -> None:
        old, _ = taken(10, code_version="0.9+abc")
        await store.write(old, [b"x"], keep=[])
        await store.write(*taken(10), keep=[])
        await store.write(*taken(20), keep=[10])
        await store.write(*taken(30), keep=[20])

        assert await store.positions(EXECUTION, rules=RULES) == [20, 30]
        assert await store.positions(EXECUTION, rules=old.rules) == []

    async def test_parts_of_one_that_was_replaced_are_gone(self, store: SnapshotStore) -> None:
        old, parts = taken(10, code_version="0.9+abc")
        await store.write(old, parts, keep=[])
        await store.write(*taken(10), keep=[])

        assert await store.part(old, 0) is None

    async def test_one_that_is_of_no_use_is_dropped(self, store: SnapshotStore) -> None:
        snapshot, parts = taken(20)
        await store.write(snapshot, parts, keep=[])
        await store.drop(replace(snapshot, checksum="another"))
        assert await store.positions(EXECUTION, rules=RULES) == [20]

        await store.drop(snapshot)

        assert await store.positions(EXECUTION, rules=RULES) == []
        assert await store.part(snapshot, 0) is None
