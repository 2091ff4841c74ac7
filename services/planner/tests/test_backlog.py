"""What a scaler of workers goes by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count

from noetl_core.commands.state import Command, CommandStatus
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, empty
from noetl_planner.application.backlog import MAX_POOLS, OTHERS, PublishedBacklog, backlog_of

NUMBERS = count()


def command(status: CommandStatus, *, pool: str = "default") -> Command:
    return Command(
        command_id=f"c{next(NUMBERS)}",
        step="a",
        activation=1,
        attempt=1,
        pool=pool,
        cause_step="",
        status=status,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
        issued_version=1,
    )


def state(commands: Iterable[Command], *, status: ExecutionStatus = ExecutionStatus.RUNNING) -> State:
    nothing = empty(1)
    by_id = {one.command_id: one for one in commands}
    return replace(nothing, execution=replace(nothing.execution, status=status), commands=by_id)


def test_what_waits_and_what_runs_is_counted_by_pool() -> None:
    backlog = backlog_of(
        [
            state([command(CommandStatus.ISSUED), command(CommandStatus.STARTED), command(CommandStatus.PARKED)]),
            state([command(CommandStatus.RESUMED), command(CommandStatus.CLAIMED, pool="gpu")]),
            state([command(CommandStatus.COMPLETED), command(CommandStatus.ABANDONED)]),
        ]
    )

    assert backlog == {("default", "waiting"): 2, ("default", "running"): 1, ("gpu", "running"): 1}


def test_a_paused_execution_asks_for_no_workers_but_keeps_those_that_it_has() -> None:
    paused = state([command(CommandStatus.ISSUED), command(CommandStatus.STARTED)], status=ExecutionStatus.PAUSED)

    assert backlog_of([paused]) == {("default", "running"): 1}


def test_a_pool_that_has_nothing_left_is_said_to_have_nothing_once() -> None:
    published = PublishedBacklog()
    published.update({("gpu", "waiting"): 3})

    assert published.update({}) == {("gpu", "waiting"): 0, ("gpu", "running"): 0}
    assert published.update({}) == {}


def test_pools_beyond_the_limit_are_counted_together() -> None:
    many = [state([command(CommandStatus.ISSUED, pool=f"p{number}")]) for number in range(MAX_POOLS + 7)]
    many.append(state([command(CommandStatus.ISSUED, pool="p1")]))

    backlog = backlog_of(many)

    assert backlog["p1", "waiting"] == 2
    assert backlog[OTHERS, "waiting"] == 7
    assert sum(backlog.values()) == MAX_POOLS + 8
