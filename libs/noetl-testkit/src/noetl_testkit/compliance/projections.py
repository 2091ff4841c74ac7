"""What every projection store must do; an adapter's tests subclass this and supply an empty store."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from noetl_core.children.events import ChildStarted, ExecutionCascaded
from noetl_core.commands.events import CommandIssued
from noetl_core.deadlines.events import DeadlinePassed
from noetl_core.errors import InvalidInput, Unavailable
from noetl_core.execution_view import execution_view
from noetl_core.executions.events import (
    ExecutionCancelled,
    PlaybookFailed,
    StepEntered,
    StepExited,
    WorkflowInitialized,
)
from noetl_core.fold import State, empty, fold_all, prune
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import ExecutionColumns, RowPage, StoredRow
from noetl_core.ports.projection_store import ProjectedExecution, ProjectionStore, Refusal, ShardCheckpoint
from noetl_core.sharding import shard_of
from noetl_core.surfaces.checksums import in_order
from noetl_core.surfaces.shapes import Row, Surface
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_core.upcasting.releases import UPCASTERS

from noetl_testkit.histories import (
    EXECUTION,
    NOON,
    TRACE,
    History,
    abandoned,
    choices,
    claimed,
    completed,
    drawn_history,
    heartbeat,
    initialized,
    issued,
    started,
    two_steps,
)
from noetl_testkit.telling_histories import telling_history

SCOPE = Scope(tenant_id="default", organization_id="default")
FUTURE = datetime.now(UTC) + timedelta(hours=1)
OTHER_REGISTRY = "0" * 64


def projected(
    history: History,
    *,
    through: int | None = None,
    after: int = 0,
    epoch: int = 1,
    base_version: int | None = None,
    upcasters: str = UPCASTERS.digest,
    replaces: int = 0,
) -> ProjectedExecution:
    """What a projector would store of a history up to a version, on top of what it has stored through another."""
    objects = SurfaceFold(empty(history.execution_id))
    objects.add_all(history.recorded[:after])
    known = objects.changed_parts()[Surface.BUSINESS_OBJECTS]
    surfaces = SurfaceFold(prune(objects.state), {Surface.BUSINESS_OBJECTS: known})
    surfaces.add_all(history.recorded[after:through])
    return ProjectedExecution(
        state=surfaces.state,
        rows=surfaces.changed_parts(),
        shard=shard_of(history.execution_id, 64),
        epoch=epoch,
        base_version=after if base_version is None else base_version,
        upcasters=upcasters,
        replaces=replaces,
    )


def running(history: History, *, lease_seconds: float = 30.0) -> tuple[History, CommandIssued]:
    """A history whose first step is held by a worker."""
    command = issued(history, "first")
    history.add(initialized()).add(command, claimed(command, lease_seconds=lease_seconds), started(command))
    return history, command


def limited(history: History, *, step_seconds: float = 5, execution_seconds: float | None = None) -> History:
    """A history whose first step has a deadline, and maybe the execution too."""
    history.add(initialized(), WorkflowInitialized(entry_step="first", timeout_seconds=execution_seconds))
    return history.add(StepEntered(step="first", activation=1, timeout_seconds=step_seconds))


class ProjectionStoreCompliance(ABC):
    """One suite, run by every adapter and by the in-memory twin."""

    @pytest.fixture
    @abstractmethod
    def store(self) -> ProjectionStore:
        """An empty store, whose clock shows the time of day."""

    async def test_what_was_written_is_found_by_its_key(self, store: ProjectionStore) -> None:
        history = two_steps(History(parent_execution_id=42))
        await store.write([projected(history)])

        view = await store.find_execution(SCOPE, EXECUTION)

        assert view == execution_view(fold_all(empty(EXECUTION), history.recorded))
        assert view is not None
        assert (view.status, view.stream_version, view.path) == ("COMPLETED", 18, "examples/hello")
        assert view.parent_execution_id == "42"
        assert view.end_time == NOON + timedelta(seconds=5, milliseconds=-5)

    async def test_a_failed_execution_tells_why(self, store: ProjectionStore) -> None:
        error = {"code": "python.error", "message": "zero \u0000 and large", "size": 1e22, "at": [1, None, {}]}
        await store.write([projected(History().add(initialized()).add(PlaybookFailed(error=error)))])

        view = await store.find_execution(None, EXECUTION)

        assert view is not None
        assert view.error == error
        assert view.status == "FAILED"

    async def test_nobody_finds_what_is_another_s(self, store: ProjectionStore) -> None:
        await store.write([projected(two_steps(History()))])

        assert await store.find_execution(Scope(tenant_id="other", organization_id="default"), EXECUTION) is None
        assert await store.find_execution(Scope(tenant_id="default", organization_id="other"), EXECUTION) is None
        assert await store.find_execution(None, EXECUTION) is not None
        assert await store.find_execution(SCOPE, EXECUTION + 1) is None

    async def test_a_state_comes_back_as_it_was(self, store: ProjectionStore) -> None:
        for seed in range(20):
            history = drawn_history(choices(seed), execution_id=EXECUTION + seed)
            written = projected(history)
            await store.write([written])

            stored = (await store.load([history.execution_id, 1]))[history.execution_id]

            assert stored.state == prune(written.state)
            assert (stored.stream_version, stored.epoch) == (len(history.stored), 1)

    async def test_only_what_is_newer_is_taken(self, store: ProjectionStore) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=9, epoch=3)])

        again = await store.write([projected(history, through=9, epoch=3)])
        older = await store.write([projected(history, through=4, epoch=3)])
        newer = await store.write([projected(history, after=9, epoch=3)])

        assert again.refused == older.refused == {EXECUTION: Refusal(stream_version=9, epoch=3)}
        assert newer.refused == {}
        assert await store.versions([EXECUTION, EXECUTION + 1]) == {EXECUTION: 18}

    async def test_a_deposed_owner_writes_no_more(self, store: ProjectionStore) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=9, epoch=3)])

        deposed = await store.write([projected(history, after=9, epoch=2)])

        assert deposed.refused == {EXECUTION: Refusal(stream_version=9, epoch=3)}
        assert await store.versions([EXECUTION]) == {EXECUTION: 9}

    async def test_a_refused_row_takes_its_commands_along_and_no_others(self, store: ProjectionStore) -> None:
        mine, command = running(History(EXECUTION + 1))
        other, _ = running(History(EXECUTION + 2))
        await store.write([projected(mine), projected(other, through=1)])
        mine.add(completed(command))

        outcome = await store.write([projected(mine, after=4, epoch=0), projected(other, after=1)])

        assert set(outcome.refused) == {EXECUTION + 1}
        silent = await store.silent_commands(limit=10)
        assert {one.execution_id for one in silent} == {EXECUTION + 1, EXECUTION + 2}

    async def test_a_row_that_continues_one_that_is_gone_is_refused(self, store: ProjectionStore) -> None:
        outcome = await store.write([projected(two_steps(History()), after=9)])

        assert outcome.refused == {EXECUTION: Refusal(stream_version=0, epoch=0)}
        assert await store.find_execution(SCOPE, EXECUTION) is None

    async def test_a_row_says_with_which_registry_it_was_folded(self, store: ProjectionStore) -> None:
        await store.write([projected(two_steps(History())), projected(two_steps(History(EXECUTION + 1)))])
        await store.write([projected(two_steps(History(EXECUTION + 2)), upcasters=OTHER_REGISTRY)])

        stored = await store.load([EXECUTION, EXECUTION + 2])
        view = await store.find_execution(SCOPE, EXECUTION + 2)
        listed = await store.list_executions(SCOPE)
        page = await store.list_rows(SCOPE, [EXECUTION, EXECUTION + 2], limit=1)

        assert stored[EXECUTION].upcasters == UPCASTERS.digest
        assert stored[EXECUTION + 2].upcasters == OTHER_REGISTRY
        assert view is not None
        assert view.upcasters == OTHER_REGISTRY
        assert [one.upcasters for one in listed.executions] == [OTHER_REGISTRY, UPCASTERS.digest, UPCASTERS.digest]
        assert page.upcasters == {EXECUTION: UPCASTERS.digest, EXECUTION + 2: OTHER_REGISTRY}

    async def test_a_row_of_another_registry_is_not_continued(self, store: ProjectionStore) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=9, upcasters=OTHER_REGISTRY)])

        continued = await store.write([projected(history, after=9)])
        from_the_start = await store.write([projected(history)])

        assert continued.refused == from_the_start.refused == {EXECUTION: Refusal(stream_version=9, epoch=1)}
        assert (await store.load([EXECUTION]))[EXECUTION].upcasters == OTHER_REGISTRY

    async def test_a_row_that_replaces_another_one_leaves_nothing_of_it(self, store: ProjectionStore) -> None:
        history, other = telling_history(choices(1)), telling_history(choices(2), execution_id=EXECUTION + 1)
        await store.write([projected(telling_history(choices(7)), through=20, upcasters=OTHER_REGISTRY)])
        await store.write([projected(other, through=9)])

        outcome = await store.write([projected(history, replaces=20), projected(other, after=9)])

        assert outcome.refused == {}
        assert await stored_rows(store, EXECUTION) == rows_of_replay(history)
        assert (await store.load([EXECUTION]))[EXECUTION].upcasters == UPCASTERS.digest
        assert await store.versions([other.execution_id]) == {other.execution_id: len(other.stored)}

    async def test_what_is_written_together_is_seen_at_once_and_its_steps_by_nobody(
        self, store: ProjectionStore
    ) -> None:
        history = two_steps(History())
        for version, after in ((4, 0), (18, 4)):
            await store.write([projected(history, after=after, through=version, upcasters=OTHER_REGISTRY)])
            await store.write_barriers([EXECUTION])
            if version == 4:
                await store.keep_barrier(EXECUTION, 4)

        async with store.together() as aside:
            first = await aside.write([projected(history, through=9, replaces=18)])
            seen = await store.versions([EXECUTION]), await aside.versions([EXECUTION])
            last = await aside.write([projected(history, after=9)])
        await store.write_barriers([EXECUTION])

        assert first.refused == last.refused == {}
        assert seen == ({EXECUTION: 18}, {EXECUTION: 9})
        assert (await store.load([EXECUTION]))[EXECUTION].upcasters == UPCASTERS.digest
        assert await stored_rows(store, EXECUTION) == rows_of_replay(history)
        assert [one.version for one in await store.barriers(EXECUTION)] == [4, 18]

    async def test_of_what_was_to_be_written_together_nothing_stays_if_the_last_of_it_fails(
        self, store: ProjectionStore
    ) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=9, upcasters=OTHER_REGISTRY)])
        before = await stored_rows(store, EXECUTION)

        with pytest.raises(Unavailable):
            async with store.together() as aside:
                await aside.write([projected(history, through=4, replaces=9)])
                raise Unavailable("the log is away")

        assert await stored_rows(store, EXECUTION) == before
        assert await store.versions([EXECUTION]) == {EXECUTION: 9}

    async def test_only_the_row_that_was_looked_at_is_replaced_and_not_by_a_deposed_owner(
        self, store: ProjectionStore
    ) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=9, epoch=3, upcasters=OTHER_REGISTRY)])

        moved = await store.write([projected(history, epoch=3, replaces=8)])
        deposed = await store.write([projected(history, epoch=2, replaces=9)])

        assert moved.refused == deposed.refused == {EXECUTION: Refusal(stream_version=9, epoch=3)}
        stored = await stored_rows(store, EXECUTION)
        assert stored[Surface.COMMANDS] == projected(history, through=9).rows[Surface.COMMANDS]

    async def test_another_owner_s_row_in_between_does_not_hinder_a_newer_one(self, store: ProjectionStore) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=4)])
        await store.write([projected(history, after=4, through=9)])

        outcome = await store.write([projected(history, after=4, epoch=1)])

        assert outcome.refused == {}

    async def test_a_write_tells_the_database_s_time(self, store: ProjectionStore) -> None:
        before = datetime.now(UTC) - timedelta(minutes=1)

        outcome = await store.write([projected(two_steps(History()))])

        assert before < outcome.projected_at < before + timedelta(minutes=2)

    async def test_a_claimed_command_is_silent_once_its_lease_is_over(self, store: ProjectionStore) -> None:
        history, command = running(History())
        await store.write([projected(history)])
        await store.write([projected(running(History(EXECUTION + 1, started_at=FUTURE))[0])])

        (silent,) = await store.silent_commands(limit=10)

        assert (silent.execution_id, silent.command_id) == (EXECUTION, command.command_id)
        assert (silent.tenant_id, silent.organization_id) == ("default", "default")
        assert (silent.step, silent.attempt, silent.worker_id) == ("first", 1, "worker-1")
        assert silent.aggregate_version == 3
        assert silent.lease_until == NOON + timedelta(seconds=32)
        assert silent.trace == TRACE

    async def test_a_heartbeat_is_a_sign_of_life(self, store: ProjectionStore) -> None:
        history, command = running(History())
        await store.write([projected(history)])
        history.add(heartbeat(command, lease_seconds=(FUTURE - NOON).total_seconds()))

        await store.write([projected(history, after=4)])

        assert await store.silent_commands(limit=10) == ()

    async def test_a_closed_command_is_not_silent(self, store: ProjectionStore) -> None:
        for number, end in enumerate((completed, abandoned)):
            history, command = running(History(EXECUTION + number))
            await store.write([projected(history)])
            history.add(end(command))
            await store.write([projected(history, after=4)])

        assert await store.silent_commands(limit=10) == ()

    async def test_a_command_that_nobody_claimed_is_not_silent(self, store: ProjectionStore) -> None:
        history = History().add(initialized())
        history.add(issued(history, "first"))

        await store.write([projected(history)])

        assert await store.silent_commands(limit=10) == ()

    async def test_an_ended_execution_has_no_silent_commands(self, store: ProjectionStore) -> None:
        history, _ = running(History())
        await store.write([projected(history)])
        history.add(ExecutionCancelled(reason="enough", cancelled_by="ada"))

        await store.write([projected(history, after=4)])

        assert await store.silent_commands(limit=10) == ()

    async def test_the_longest_silent_come_first_page_by_page(self, store: ProjectionStore) -> None:
        for number, lease_seconds in enumerate((50, 10, 40, 20, 20)):
            history, _ = running(History(EXECUTION + number), lease_seconds=lease_seconds)
            await store.write([projected(history)])

        found: list[int] = []
        after = None
        while page := await store.silent_commands(limit=2, after=after):
            found += [one.execution_id - EXECUTION for one in page]
            after = (page[-1].lease_until, page[-1].execution_id, page[-1].command_id)

        assert found == [1, 3, 4, 2, 0]

    async def test_an_execution_is_late_once_a_deadline_in_it_has_passed(self, store: ProjectionStore) -> None:
        await store.write([projected(limited(History()))])
        await store.write([projected(limited(History(EXECUTION + 1, started_at=FUTURE)))])
        await store.write([projected(running(History(EXECUTION + 2))[0])])

        (late,) = await store.passed_deadlines(limit=10)

        assert (late.execution_id, late.tenant_id, late.organization_id) == (EXECUTION, "default", "default")
        assert late.deadline == NOON + timedelta(seconds=7)

    async def test_of_several_deadlines_the_next_one_counts_until_it_is_passed(self, store: ProjectionStore) -> None:
        history = limited(History(), execution_seconds=60)
        await store.write([projected(history)])
        history.add(DeadlinePassed(what="step", step="first", activation=1, deadline="x"))
        await store.write([projected(history, after=3)])

        (late,) = await store.passed_deadlines(limit=10)

        assert late.deadline == NOON + timedelta(seconds=61)

    async def test_a_cancelled_family_is_late_until_it_is_known_to_have_ended(self, store: ProjectionStore) -> None:
        child = ChildStarted(child_execution_id="7", path="x")
        cancelled = ExecutionCancelled(reason="", cancelled_by="ada", cascade=True)
        family = History().add(initialized()).add(child).add(cancelled)
        await store.write([projected(family)])

        (late,) = await store.passed_deadlines(limit=10)
        await store.write([replace(projected(family.add(ExecutionCascaded())), base_version=3)])

        assert (late.execution_id, late.cascades) == (EXECUTION, True)
        assert await store.passed_deadlines(limit=10) == ()

    async def test_an_execution_without_news_is_quiet_until_it_ends(self, store: ProjectionStore) -> None:
        running, ended = History().add(initialized()), two_steps(History(execution_id=EXECUTION + 1))
        await store.write([projected(running), projected(ended)])

        (quiet,) = await store.quiet_executions(quiet_seconds=1, limit=10)

        assert (quiet.execution_id, quiet.tenant_id) == (EXECUTION, "default")
        assert NOON <= quiet.quiet_since <= running.now
        assert await store.quiet_executions(quiet_seconds=1, limit=10, after=EXECUTION) == ()
        assert await store.quiet_executions(quiet_seconds=1e9, limit=10) == ()

    async def test_what_ended_in_time_is_not_late(self, store: ProjectionStore) -> None:
        ends = (StepExited(step="first", activation=1, status="ok"), ExecutionCancelled(reason="", cancelled_by="ada"))
        for number, end in enumerate(ends):
            history = limited(History(EXECUTION + number))
            await store.write([projected(history)])
            history.add(end)
            await store.write([projected(history, after=3)])

        assert await store.passed_deadlines(limit=10) == ()

    async def test_the_longest_overdue_come_first_page_by_page(self, store: ProjectionStore) -> None:
        for number, seconds in enumerate((50, 10, 40, 20, 20)):
            await store.write([projected(limited(History(EXECUTION + number), step_seconds=seconds))])

        found: list[int] = []
        after = None
        while page := await store.passed_deadlines(limit=2, after=after):
            found += [one.execution_id - EXECUTION for one in page]
            after = (page[-1].deadline, page[-1].execution_id)

        assert found == [1, 3, 4, 2, 0]

    async def test_executions_are_listed_newest_first_page_by_page_without_their_state(
        self, store: ProjectionStore
    ) -> None:
        await store.write([projected(two_steps(History(EXECUTION + number))) for number in (3, 1, 2, 5, 4)])

        first = await store.list_executions(SCOPE, page_size=2)
        second = await store.list_executions(SCOPE, page_size=2, page_token=first.next_page_token)
        third = await store.list_executions(SCOPE, page_size=2, page_token=second.next_page_token)

        pages = [[view.execution_id - EXECUTION for view in page.executions] for page in (first, second, third)]
        assert pages == [[5, 4], [3, 2], [1]]
        assert third.next_page_token == ""
        assert first.executions[0] == replace(
            execution_view(fold_all(empty(EXECUTION + 5), two_steps(History(EXECUTION + 5)).recorded)), state={}
        )

    async def test_a_full_last_page_is_the_last(self, store: ProjectionStore) -> None:
        await store.write([projected(two_steps(History(EXECUTION + number))) for number in (1, 2)])

        assert (await store.list_executions(SCOPE, page_size=2)).next_page_token == ""

    async def test_whatever_has_a_row_is_listed_by_id_of_one_tenant_or_of_all(self, store: ProjectionStore) -> None:
        others = Scope(tenant_id="other", organization_id="default")
        histories = [two_steps(History(EXECUTION + number)) for number in (3, 1, 2)]
        histories.append(History(EXECUTION + 4, tenant_id=others.tenant_id).add(initialized()))
        await store.write([projected(one) for one in histories])

        async def listed(scope: Scope | None) -> list[list[tuple[int, str, int]]]:
            pages: list[list[tuple[int, str, int]]] = []
            after: int | None = 0
            while after is not None:
                page = await store.list_live(scope, after=after, limit=2)
                pages.append(
                    [(one.execution_id - EXECUTION, one.tenant_id, one.stream_version) for one in page.executions]
                )
                after = page.following
            return pages

        own = [(1, "default", 18), (2, "default", 18), (3, "default", 18)]
        foreign = (4, "other", 1)
        assert await listed(None) == [own[:2], [own[2], foreign]]
        assert await listed(SCOPE) == [own[:2], own[2:]]
        assert await listed(others) == [[], [foreign]]
        assert await listed(Scope(tenant_id="other", organization_id="x")) == [[], []]

    async def test_a_listing_can_be_narrowed(self, store: ProjectionStore) -> None:
        ended = two_steps(History(EXECUTION + 1))
        open_one = History(EXECUTION + 2).add(initialized("examples/other"))
        also_open = History(EXECUTION + 3).add(initialized())
        foreign = two_steps(History(EXECUTION + 4, tenant_id="other"))
        await store.write([projected(one) for one in (ended, open_one, also_open, foreign)])

        async def listed(**filters: Any) -> list[int]:
            page = await store.list_executions(SCOPE, page_size=10, **filters)
            return [view.execution_id - EXECUTION for view in page.executions]

        assert await listed() == [3, 2, 1]
        assert await listed(status="RUNNING") == [3, 2]
        assert await listed(path="examples/hello") == [3, 1]
        assert await listed(status="RUNNING", path="examples/hello") == [3]
        assert await listed(status="FAILED") == []

    async def test_children_are_listed_by_their_parent(self, store: ProjectionStore) -> None:
        parent = EXECUTION + 1
        below = [History(EXECUTION + number, parent_execution_id=parent) for number in (2, 3, 4)]
        await store.write(
            [
                projected(two_steps(below[0])),
                *(projected(one.add(initialized())) for one in below[1:]),
                *(projected(two_steps(History(other))) for other in (parent, EXECUTION + 5)),
            ]
        )

        first = await store.list_executions(SCOPE, parent_execution_id=parent, page_size=2)
        rest = await store.list_executions(
            SCOPE, parent_execution_id=parent, page_size=2, page_token=first.next_page_token
        )
        running = await store.list_executions(SCOPE, parent_execution_id=parent, status="RUNNING")

        assert [view.execution_id - EXECUTION for view in (*first.executions, *rest.executions)] == [4, 3, 2]
        assert [view.execution_id - EXECUTION for view in running.executions] == [4, 3]

    @pytest.mark.parametrize("token", ["x", "-1", "0", "1; DROP TABLE"])
    async def test_a_page_token_that_nobody_gave_out_is_refused(self, store: ProjectionStore, token: str) -> None:
        with pytest.raises(InvalidInput):
            await store.list_executions(SCOPE, page_token=token)

    async def test_checkpoints_are_kept_by_shard(self, store: ProjectionStore) -> None:
        one = ShardCheckpoint(shard=3, last_event_id=2**62, projected_at=NOON, lag_seconds=0.0125, caught_up_to=NOON)
        await store.write_checkpoints([one, ShardCheckpoint(shard=4, caught_up_to=NOON)])

        assert await store.checkpoints([3, 4, 5]) == {3: one, 4: ShardCheckpoint(shard=4, caught_up_to=NOON)}

    async def test_how_far_a_shard_has_been_compared_never_goes_back(self, store: ProjectionStore) -> None:
        later = NOON + timedelta(seconds=9)
        await store.write_checkpoints([ShardCheckpoint(shard=3, caught_up_to=later, last_event_id=1)])
        await store.write_checkpoints([ShardCheckpoint(shard=3, caught_up_to=NOON, last_event_id=2)])
        await store.write_checkpoints([ShardCheckpoint(shard=3, projected_at=NOON)])

        (checkpoint,) = (await store.checkpoints([3])).values()

        assert checkpoint == ShardCheckpoint(shard=3, caught_up_to=later, last_event_id=2, projected_at=NOON)

    async def test_a_barrier_closes_what_is_committed_and_takes_the_place_of_the_one_before_it(
        self, store: ProjectionStore
    ) -> None:
        history = two_steps(History())
        await store.write([projected(history, through=5)])

        (first,) = await store.write_barriers([EXECUTION, EXECUTION + 1])
        again = await store.write_barriers([EXECUTION])
        await store.write([projected(history, through=9, after=5)])
        (second,) = await store.write_barriers([EXECUTION])

        assert (first.version, first.last_event_id) == (5, history.recorded[4].envelope.event_id)
        assert first.shard == shard_of(EXECUTION, 64)
        assert again == []
        assert await store.barriers(EXECUTION) == [second]
        assert second.version == 9
        assert second.committed_at >= first.committed_at

    async def test_a_barrier_that_the_log_names_stays(self, store: ProjectionStore) -> None:
        history = two_steps(History())
        for version in (4, 9, 18):
            await store.write([projected(history, through=version, after={4: 0, 9: 4, 18: 9}[version])])
            await store.write_barriers([EXECUTION])
            if version == 4:
                await store.keep_barrier(EXECUTION, 4)

        assert [one.version for one in await store.barriers(EXECUTION)] == [4, 18]

    async def test_a_row_written_in_many_steps_is_the_row_written_at_once(self, store: ProjectionStore) -> None:
        for seed in range(10):
            choose = choices(seed)
            at_once = drawn_history(choose, execution_id=EXECUTION + 2 * seed, moves=20)
            in_steps = drawn_history(choices(seed), execution_id=EXECUTION + 2 * seed + 1, moves=20)
            await store.write([projected(at_once)])
            done = 0
            while done < len(in_steps.stored):
                step = min(done + choose.randint(1, 7), len(in_steps.stored))
                await store.write([projected(in_steps, after=done, through=step)])
                done = step

            stored = await store.load([at_once.execution_id, in_steps.execution_id])

            assert stored[at_once.execution_id].state == prune(projected(at_once).state)
            assert stored[in_steps.execution_id].state == prune(projected(in_steps).state)

    async def test_rows_of_all_surfaces_come_back_as_they_were_written(self, store: ProjectionStore) -> None:
        for seed in range(8):
            history = telling_history(choices(seed), execution_id=EXECUTION + seed)
            done = 0
            while done < len(history.stored):
                step = min(done + 5, len(history.stored))
                await store.write([projected(history, after=done, through=step)])
                done = step
            replayed = SurfaceFold(empty(history.execution_id))
            replayed.add_all(history.recorded)

            stored = await stored_rows(store, history.execution_id)
            for surface, rows in replayed.changed().items():
                assert list(stored[surface]) == in_order(rows)
                assert stored[surface] == rows

    async def test_rows_are_only_for_their_tenant(self, store: ProjectionStore) -> None:
        await store.write([projected(two_steps(History()))])
        stranger = Scope(tenant_id="other", organization_id="default")

        nothing = RowPage(versions={}, rows=(), following=None)
        assert await store.list_rows(stranger, [EXECUTION], limit=10) == nothing
        assert await store.list_rows(None, [EXECUTION + 1], limit=10) == nothing

    async def test_rows_of_several_executions_come_each_once_however_small_the_pages(
        self, store: ProjectionStore
    ) -> None:
        histories = [telling_history(choices(seed), execution_id=EXECUTION + seed) for seed in range(3)]
        await store.write([projected(history) for history in histories])
        ids = [history.execution_id for history in histories]

        by_one = await all_rows(store, [*ids, EXECUTION + 99], limit=1)
        at_once = await store.list_rows(SCOPE, ids, limit=10_000)

        assert by_one == list(at_once.rows)
        assert len(by_one) == len({(one.execution_id, one.surface, one.key) for one in by_one})
        assert at_once.versions == {history.execution_id: len(history.stored) for history in histories}
        assert at_once.following is None

    async def test_what_lookups_go_by_and_no_row_shows_is_told_beside_the_rows(self, store: ProjectionStore) -> None:
        late, ended = limited(History()), two_steps(History(EXECUTION + 1))
        await store.write([projected(late), projected(ended)])

        page = await store.list_rows(SCOPE, [EXECUTION, EXECUTION + 1], limit=1)

        assert page.columns == {
            EXECUTION: ExecutionColumns(
                shard=shard_of(EXECUTION, 64),
                next_deadline=late.stored[-1].ingest_time + timedelta(seconds=5),
            ),
            EXECUTION + 1: ExecutionColumns(shard=shard_of(EXECUTION + 1, 64), next_deadline=None),
        }

    async def test_objects_are_found_by_their_keys(self, store: ProjectionStore) -> None:
        history = telling_history(choices(1))
        await store.write([projected(history)])
        known = projected(history).rows[Surface.BUSINESS_OBJECTS]
        assert known

        found = await store.find_objects({EXECUTION: [*known, "order/none"], EXECUTION + 1: ["order/1"]})

        assert found[EXECUTION] == known
        assert not found.get(EXECUTION + 1)

    async def test_many_executions_are_one_write(self, store: ProjectionStore) -> None:
        histories = [running(History(EXECUTION + number))[0] for number in range(300)]

        outcome = await store.write([projected(history) for history in histories])

        assert outcome.refused == {}
        assert len(await store.silent_commands(limit=1000)) == 300


async def all_rows(store: ProjectionStore, execution_ids: Sequence[int], *, limit: int) -> list[StoredRow]:
    """Rows of all surfaces, page by page."""
    page = await store.list_rows(SCOPE, execution_ids, limit=limit)
    found = list(page.rows)
    while page.following is not None:
        page = await store.list_rows(SCOPE, execution_ids, after=page.following, limit=limit)
        found += page.rows
    return found


async def stored_rows(store: ProjectionStore, execution_id: int) -> dict[Surface, dict[str, Row]]:
    """All rows of an execution, in the order in which they come."""
    found: dict[Surface, dict[str, Row]] = {surface: {} for surface in Surface}
    for one in await all_rows(store, [execution_id], limit=3):
        found[one.surface][one.key] = one.row()
    return found


def rows_of_replay(history: History) -> dict[Surface, dict[str, Row]]:
    """All rows of a history, in the order in which they are listed."""
    replayed = SurfaceFold(empty(history.execution_id))
    replayed.add_all(history.recorded)
    return {surface: {key: rows[key] for key in in_order(rows)} for surface, rows in replayed.changed().items()}


def state_after(history: History) -> State:
    """What a straight fold of the whole history gives."""
    return prune(fold_all(empty(history.execution_id), history.recorded))
