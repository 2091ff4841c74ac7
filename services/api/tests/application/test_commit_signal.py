from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest
from noetl_api.application.commit_signal import CommitSignal
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Unavailable
from noetl_core.ports.event_log import Scope

FIRST = StoredEvent(
    body=b"{}",
    stream_version=1,
    aggregate_version=0,
    ingest_time=datetime(2026, 11, 17, tzinfo=UTC),
    prev_checksum="",
    checksum="",
)


async def test_what_moved_before_the_wait_is_not_waited_for() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher:
        signal.moved(7, 3)

        await watcher.wait_beyond(2, seconds=60)


async def test_a_follower_is_woken_by_a_move_of_its_own_execution_only() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher:
        waiting = asyncio.create_task(watcher.wait_beyond(2, seconds=60))
        await asyncio.sleep(0)
        signal.moved(8, 99)
        signal.moved(7, 2)
        await asyncio.sleep(0)
        assert not waiting.done()

        signal.moved(7, 3)
        await waiting


async def test_waiting_has_an_end() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher:
        began_at = time.monotonic()
        await watcher.wait_beyond(0, seconds=0.02)

    assert time.monotonic() - began_at >= 0.02


async def test_everybody_looks_once_when_anything_may_have_moved() -> None:
    signal = CommitSignal()
    with signal.watching(7) as one, signal.watching(8) as other:
        signal.anything_moved()
        await one.wait_beyond(5, seconds=60)
        await other.wait_beyond(5, seconds=60)

        again = asyncio.create_task(one.wait_beyond(5, seconds=60))
        await asyncio.sleep(0.01)
        assert not again.done()
        signal.moved(7, 6)
        await again


async def test_a_closed_signal_sends_everybody_away() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher:
        waiting = asyncio.create_task(watcher.wait_beyond(0, seconds=60))
        await asyncio.sleep(0)
        signal.close()
        with pytest.raises(Unavailable):
            await waiting
    with signal.watching(7) as late, pytest.raises(Unavailable):
        await late.wait_beyond(0, seconds=60)


def test_nothing_is_remembered_of_executions_that_nobody_follows() -> None:
    signal = CommitSignal()
    with signal.watching(7), signal.watching(7):
        assert signal.watcher_count == 2

    signal.moved(7, 1)

    assert signal.watcher_count == 0


async def test_what_is_heard_of_a_commit_under_way_waits_for_its_end() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher, signal.watching(8) as other:
        with signal.committing([7, 99]):
            signal.heard(7, 3)
            signal.heard(8, 1)
            await other.wait_beyond(0, seconds=60)
            waiting = asyncio.create_task(watcher.wait_beyond(2, seconds=60))
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting  # nothing was given to it: it has to read


async def test_news_of_a_commit_that_failed_sends_followers_to_the_log() -> None:
    signal = CommitSignal()
    with signal.watching(7) as watcher:
        with pytest.raises(Unavailable), signal.committing([7]):
            signal.heard(7, 3)
            raise Unavailable("the answer got lost")
        await watcher.wait_beyond(2, seconds=60)
        signal.heard(7, 4)
        await watcher.wait_beyond(3, seconds=60)


def test_what_began_while_news_was_missed_is_not_told_from_memory() -> None:
    signal = CommitSignal()
    scope = Scope(tenant_id="acme", organization_id="ops")
    with signal.committing([7]):
        signal.anything_moved()  # others may have gone on with it, and nobody says so again
        signal.moved(7, 1, [FIRST], scope=scope)
    with signal.committing([8]):
        signal.moved(8, 1, [FIRST], scope=scope)

    assert 7 not in signal.recent
    assert 8 in signal.recent


def test_what_another_replica_added_during_a_commit_is_not_forgotten() -> None:
    """Its news comes before the answer to ours, and before anything is remembered of the stream."""
    signal = CommitSignal()
    scope = Scope(tenant_id="acme", organization_id="ops")
    with signal.committing([7]):
        signal.heard(7, 2)
        signal.moved(7, 1, [FIRST], scope=scope)

    assert 7 not in signal.recent
