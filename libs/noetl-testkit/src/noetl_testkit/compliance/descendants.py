"""What everybody who knows who stands below an execution must know; adapters subclass this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import pytest
from noetl_core.append import END_KEY, AppendRequest, StreamAppend, StreamStart
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, KeyTaken
from noetl_core.ports.descendants import Descendants
from noetl_core.ports.event_log import EventLog

from noetl_testkit.compliance.event_log import history, new_id, note, request, start


class DescendantsCompliance(ABC):
    """Families of streams, and what can be asked about them."""

    @pytest.fixture
    @abstractmethod
    def log(self) -> EventLog:
        """An empty log."""

    @pytest.fixture
    @abstractmethod
    def descendants(self, log: EventLog) -> Descendants:
        """Who knows the heads of that log."""

    async def test_open_descendants_are_listed_from_the_top_through_those_that_ended(
        self, log: EventLog, descendants: Descendants
    ) -> None:
        root, other = await start(log), await start(log)
        first, second = await child(log, root), await child(log, root)
        below_first, below_second = await child(log, first), await child(log, second)
        await child(log, other)
        await end(log, second)

        assert await descendants.open_descendants(root, limit=10) == (first, below_first, below_second)
        assert await descendants.open_descendants(root, limit=1) == (first,)
        assert await descendants.open_descendants(below_first, limit=10) == ()

    async def test_whether_anything_was_ever_started_is_known(self, log: EventLog, descendants: Descendants) -> None:
        root = await start(log)
        assert not await descendants.has_children(root)

        await end(log, await child(log, root))

        assert await descendants.has_children(root)

    async def test_a_start_that_is_told_to_a_parent_is_refused_under_a_taken_key_with_the_first_one_named(
        self, log: EventLog
    ) -> None:
        root = await start(log)
        first = started_under(root, key="k")
        await log.append(first)

        with pytest.raises(KeyTaken) as taken:
            await log.append(started_under(root, key="k"))

        assert taken.value.facts["execution_id"] == str(first.streams[0].execution_id)
        assert len(await history(log, root)) == 2
        again = await log.append(first)
        assert all(one.duplicate for one in again), "the same request again is answered"

    async def test_nothing_is_started_under_a_parent_that_has_ended(self, log: EventLog) -> None:
        root = await start(log)
        await end(log, root)
        late = started_under(root)

        with pytest.raises(AlreadyTerminal) as refusal:
            await log.append(late)

        assert refusal.value.facts["execution_id"] == str(root)
        root_two = await start(log)
        moved = replace(late.streams[1], execution_id=root_two)
        await log.append(replace(late, streams=(late.streams[0], moved)))  # its id was not used up


def started_under(parent: int, *, key: str = "") -> AppendRequest:
    """A child's first event, and what the parent is told."""
    child_id = new_id()
    begin = StreamStart(parent_execution_id=parent, start_key=key)
    alone = request(child_id, note("start"), start=begin)
    return replace(
        alone, streams=(*alone.streams, StreamAppend(execution_id=parent, drafts=(note(f"child/{child_id}"),)))
    )


async def child(log: EventLog, parent: int) -> int:
    asked = started_under(parent)
    await log.append(asked)
    return asked.streams[0].execution_id


async def end(log: EventLog, execution_id: int) -> None:
    await log.append(request(execution_id, Draft(event_type="playbook.completed", idempotency_key=END_KEY)))
