"""The reaper has payloads collected, and goes on whatever becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from noetl_core.append import Fence
from noetl_core.collection.report import CollectionReport
from noetl_core.errors import Fenced, NoetlError, Overloaded, Unavailable
from noetl_core.ports.event_log import Scope
from noetl_reaper.application.collect_payloads import CollectPayloads
from noetl_reaper.application.election import Election
from noetl_reaper.entrypoints.collection_loop import collect_regularly
from noetl_reaper.settings import Settings
from noetl_reaper.telemetry import ReaperMetrics
from noetl_servicekit.metrics import MetricSet

NEIGHBOURS = {
    "NOETL_API_ADDRESS": "a:1",
    "NOETL_PROJECTOR_ADDRESS": "b:1",
    "NOETL_PLANNER_ADDRESS": "c:1",
    "NOETL_TOKEN": "t",
}
FENCE = Fence(role="reaper", shard=0, epoch=3)


class Api:
    """Answers as it is told, and remembers what it was asked."""

    def __init__(self, *answers: CollectionReport | NoetlError) -> None:
        self.asked: list[tuple[Scope | None, bool, float]] = []
        self._answers = answers

    async def collect(
        self, scope: Scope | None, *, apply: bool, grace_seconds: float = 0.0, fence: Fence | None = None
    ) -> AsyncIterator[CollectionReport]:
        assert fence == FENCE
        self.asked.append((scope, apply, grace_seconds))
        for answer in self._answers:
            if isinstance(answer, NoetlError):
                raise answer
            yield answer


class Elected:
    def __init__(self) -> None:
        self.lost: list[int] = []

    def epoch(self, shard: int) -> int | None:
        return FENCE.epoch

    def fenced(self, shard: int) -> None:
        self.lost.append(shard)


def collection(api: Api, ownership: Elected | None = None) -> CollectPayloads:
    return CollectPayloads(api, election=Election(ownership or Elected()), metrics=ReaperMetrics(MetricSet()))


def report(phase: str) -> CollectionReport:
    return CollectionReport(applied=True, grace_seconds=1.0, phase=phase, swept=3)


async def test_everybodys_payloads_are_collected_for_real_with_signs_of_life() -> None:
    api, beats = Api(report("events"), report("payloads"), report("done")), list[int]()

    last = await collection(api)(FENCE, lambda: beats.append(1))

    assert api.asked == [(None, True, 0.0)]
    assert last is not None
    assert last.phase == "done"
    assert len(beats) == 3


@pytest.mark.parametrize("failure", [Unavailable("away"), Overloaded("somebody else")])
async def test_what_fails_is_tried_again_the_next_time(failure: NoetlError) -> None:
    api = Api(report("events"), failure)
    twice = asyncio.Event()

    def beat() -> None:
        if len(api.asked) >= 2:
            twice.set()

    collect = collection(api)
    loop = asyncio.create_task(collect_regularly(collect, elected=lambda: FENCE, every_seconds=0.001, beat=beat))
    async with asyncio.timeout(30):
        await twice.wait()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)

    assert len(api.asked) >= 2


async def test_a_collection_ends_where_it_is_when_another_reaper_was_elected() -> None:
    api, ownership = Api(report("events"), Fenced(role="reaper", shard=0, epoch=3, current=4)), Elected()

    assert await collection(api, ownership)(FENCE, lambda: None) is None

    assert ownership.lost == [0]


def test_nothing_is_collected_unless_the_operator_wants_it() -> None:
    assert Settings.from_env(NEIGHBOURS).payload_gc_seconds == 0.0
    assert Settings.from_env({**NEIGHBOURS, "NOETL_REAPER_PAYLOAD_GC_SECONDS": "3600"}).payload_gc_seconds == 3600.0
