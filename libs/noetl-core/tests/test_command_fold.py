from dataclasses import replace
from datetime import timedelta

import pytest
from noetl_core.commands.events import CommandIssued
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.fold import State, empty, fold_all
from noetl_testkit.histories import (
    NOON,
    TRACE,
    History,
    abandoned,
    claimed,
    completed,
    done,
    failed,
    failed_call,
    heartbeat,
    initialized,
    issued,
    started,
)

HISTORY = History()
COMMAND = issued(HISTORY, "load", activation=2, attempt=1, cause_step="begin")


def after(*contents: object) -> Command:
    """The command after facts that are a second apart, the first of them at 12:00:02."""
    history = History().add(initialized())
    for content in contents:
        history.add(content)
    return state_of(history).commands[COMMAND.command_id]


def state_of(history: History) -> State:
    return fold_all(empty(history.execution_id), history.recorded)


def test_an_issued_command_waits_for_a_worker_and_remembers_its_cause_and_trace() -> None:
    assert after(COMMAND) == Command(
        command_id=COMMAND.command_id,
        step="load",
        activation=2,
        attempt=1,
        pool="default",
        cause_step="begin",
        status=CommandStatus.ISSUED,
        issued_at=NOON + timedelta(seconds=2),
        issued_version=2,
        trace=TRACE,
        aggregate_version=1,
        stream_version=2,
    )


def test_a_claim_lasts_from_the_log_s_time_of_the_claim() -> None:
    command = after(COMMAND, claimed(COMMAND, lease_seconds=30))

    assert command.status is CommandStatus.CLAIMED
    assert command.worker_id == "worker-1"
    assert command.lease_until == NOON + timedelta(seconds=3 + 30)
    assert (command.aggregate_version, command.stream_version) == (2, 3)


def test_starting_keeps_the_lease() -> None:
    command = after(COMMAND, claimed(COMMAND), started(COMMAND))

    assert command.status is CommandStatus.STARTED
    assert command.lease_until == NOON + timedelta(seconds=3 + 30)
    assert command.held_by("worker-1")
    assert not command.held_by("worker-2")


def test_a_heartbeat_starts_the_lease_anew_and_moves_the_aggregate() -> None:
    command = after(COMMAND, claimed(COMMAND), started(COMMAND), heartbeat(COMMAND, lease_seconds=45))

    assert command.lease_until == NOON + timedelta(seconds=5 + 45)
    assert command.aggregate_version == 4


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (completed(COMMAND), CommandStatus.COMPLETED),
        (failed(COMMAND), CommandStatus.FAILED),
        (abandoned(COMMAND), CommandStatus.ABANDONED),
    ],
)
def test_an_end_gives_up_the_lease(end: object, status: CommandStatus) -> None:
    command = after(COMMAND, claimed(COMMAND), end)

    assert command.status is status
    assert command.lease_until is None
    assert command.ended_at == NOON + timedelta(seconds=4)
    assert not command.held_by("worker-1")


@pytest.mark.parametrize(
    "late", [claimed(COMMAND), started(COMMAND), heartbeat(COMMAND), completed(COMMAND), failed(COMMAND)]
)
def test_nothing_brings_an_ended_attempt_back(late: object) -> None:
    ended = after(COMMAND, claimed(COMMAND), abandoned(COMMAND))
    later = after(COMMAND, claimed(COMMAND), abandoned(COMMAND), late)

    assert later == replace(
        ended,
        aggregate_version=ended.aggregate_version + 1,
        stream_version=ended.stream_version + 1,
    )


def test_the_outcome_of_a_call_leaves_the_command_open_until_it_is_closed() -> None:
    for outcome in (done(COMMAND), failed_call(COMMAND)):
        command = after(COMMAND, claimed(COMMAND), started(COMMAND), outcome)
        assert command.status is CommandStatus.STARTED
        assert command.is_open


def test_the_command_that_was_handed_over_names_the_one_before() -> None:
    command = after(COMMAND, replace(claimed(COMMAND), after="earlier"))

    assert command.claimed_after == "earlier"


def test_a_fact_about_a_command_that_was_pruned_away_leaves_it_closed() -> None:
    command = after(heartbeat(COMMAND))

    assert command.status is CommandStatus.COMPLETED
    assert not command.is_open
    assert command.lease_until is None


def test_the_next_attempt_is_a_command_of_its_own() -> None:
    history = History().add(initialized()).add(COMMAND).add(claimed(COMMAND))
    again: CommandIssued = issued(history, "load", activation=2, attempt=2)
    history.add(abandoned(COMMAND), again)

    commands = state_of(history).commands

    assert commands[COMMAND.command_id].status is CommandStatus.ABANDONED
    assert commands[again.command_id].status is CommandStatus.ISSUED
    assert commands[again.command_id].attempt == 2
