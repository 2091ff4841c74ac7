"""Where items come from and where results of loops are: collections read once, results put together from the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import encode
from noetl_core.commands.events import CallDone, CallFailed
from noetl_core.errors import Corrupt, NotFound
from noetl_core.executions.looping import close_loop
from noetl_core.executions.plan import Plan
from noetl_core.loops.events import LoopDone, LoopStarted
from noetl_core.loops.state import Loop
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import LoopItem
from noetl_servicekit.loop_results import LoopResults
from noetl_servicekit.stored_values import StoredValues
from noetl_testkit.histories import EXECUTION, History, initialized
from noetl_testkit.memory.event_log import InMemoryEventLog
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.loop_items import LoopItems

LOOP = f"loop_{EXECUTION}_l_1"
PLAYBOOK = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n- {step: l, loop: {in: []}}\n"


class CountingStore(InMemoryPayloadStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, ref: PayloadRef) -> bytes:
        self.read.append(ref.uri)
        await asyncio.sleep(0)
        return await super().get(ref)

    async def keep(self, value: Any) -> PayloadRef:
        return await self.put(tenant_id="t", organization_id="o", data=encode(value), media_type="application/json")


def item(index: int, collection: PayloadRef | None, value: Any = None) -> LoopItem:
    return LoopItem(loop_id=LOOP, index=index, total=3, value=value, collection=collection)


async def test_a_collection_is_read_once_for_all_items_that_ask_at_the_same_time() -> None:
    store = CountingStore()
    items, ref = LoopItems(StoredValues(store, ArrowTables())), await store.keep([10, 20, 30])
    assert await asyncio.gather(*(items.value(item(index, ref)) for index in range(3))) == [10, 20, 30]
    assert len(store.read) == 1
    assert await items.value(item(0, None, "here")) == "here"


async def test_collections_that_are_not_asked_for_any_more_are_let_go() -> None:
    store = CountingStore()
    items, first, second = (
        LoopItems(StoredValues(store, ArrowTables()), max_kept_bytes=10),
        await store.keep([1] * 9),
        await store.keep([2] * 9),
    )
    for ref in (first, second, first):
        await items.value(item(0, ref))
    assert len(store.read) == 3


async def test_a_collection_that_is_gone_or_none_is_told() -> None:
    store = CountingStore()
    ref, wrong = await store.keep([1]), await store.keep({"no": "list"})
    with pytest.raises(Corrupt):
        await LoopItems(StoredValues(store, ArrowTables())).value(item(5, ref))
    with pytest.raises(Corrupt):
        await LoopItems(StoredValues(store, ArrowTables())).value(item(0, wrong))
    store.objects.clear()
    with pytest.raises(NotFound):
        await LoopItems(StoredValues(store, ArrowTables())).value(item(0, ref))


async def log_of(store: CountingStore, total: int, *, begun: int) -> tuple[InMemoryEventLog, LoopDone]:
    """A loop whose items ended in the opposite order, the first with an error that has no bytes."""
    log, history = InMemoryEventLog(), History(EXECUTION).add(initialized())
    started = LoopStarted(
        loop_id=LOOP, step="l", activation=1, mode="parallel", collection_size=total, max_in_flight=8, items=()
    )
    history.add(started)
    for index in reversed(range(1, begun)):
        ref = await store.keep({"item": index})
        reference = {"ref_id": "x", "type": "object_store", **ref.to_json()}
        result = {"status": "ok", "reference": reference, "parent_ref": None, "context": {}}
        of_item: dict[str, Any] = {"loop_id": LOOP, "loop_iteration_index": index}
        history.add(CallDone(command_id=f"c{index}", step="l", result=result, **of_item))
        other = {**of_item, "loop_id": "loop_of_another"}
        history.add(CallDone(command_id=f"o{index}", step="m", result=result, **other))
    error = {"status": "error", "reference": None, "parent_ref": None, "context": {"error": {"code": "GONE"}}}
    history.add(CallFailed(command_id="c0", step="l", result=error, loop_id=LOOP, loop_iteration_index=0))
    loop = Loop(
        loop_id=LOOP, activation=1, mode="parallel", total=total, started_version=2, success=begun - 1, failed=1
    )
    plan = Plan(playbook=parse_playbook(PLAYBOOK, supported=EVERYTHING)[0])
    done = close_loop(EXECUTION, plan, step="l", loop=loop)
    history.add(done)
    await history.append_to(log)
    return log, done


async def test_results_stand_in_index_order_failed_ones_as_after_continue_and_none_where_none_began() -> None:
    store = CountingStore()
    log, done = await log_of(store, 4, begun=3)
    results = LoopResults(log, StoredValues(store, ArrowTables()))
    assert done.result is not None

    told = await results(None, EXECUTION, done.result)

    assert told == {
        "results": [{"status": "error", "error": {"code": "GONE"}}, {"item": 1}, {"item": 2}, None],
        "stats": {"total": 4, "success": 2, "failed": 1},
        "count": 4,
        "status": "partial",
    }
    reads = len(store.read)
    assert await results(None, EXECUTION, done.result) is told
    assert len(store.read) == reads, "what never changes is read once"


async def test_many_results_are_read_page_by_page() -> None:
    store = CountingStore()
    log, done = await log_of(store, 700, begun=700)
    assert done.result is not None
    told: Any = await LoopResults(log, StoredValues(store, ArrowTables()))(None, EXECUTION, done.result)
    assert told["results"][1:] == [{"item": index} for index in range(1, 700)]


async def test_the_result_of_an_item_that_is_gone_is_told() -> None:
    store = CountingStore()
    log, done = await log_of(store, 3, begun=3)
    store.objects.clear()
    assert done.result is not None
    with pytest.raises(NotFound):
        await LoopResults(log, StoredValues(store, ArrowTables()))(None, EXECUTION, done.result)


async def test_large_results_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_servicekit.loop_results.MAX_KEPT_BYTES", 10)
    store = CountingStore()
    log, done = await log_of(store, 3, begun=3)
    results = LoopResults(log, StoredValues(store, ArrowTables()))
    assert done.result is not None
    assert await results(None, EXECUTION, done.result) == await results(None, EXECUTION, done.result)
    assert len(store.read) == 4
