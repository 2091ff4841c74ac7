import pytest
from noetl_core.catalog import to_draft
from noetl_core.commands.events import CommandClaimed
from noetl_core.envelope import Draft
from noetl_core.errors import Corrupt
from noetl_core.executions.events import PlaybookFailed, StepEntered
from noetl_core.fold import empty, fold
from noetl_core.recorded import as_if_recorded, record
from noetl_testkit.histories import EXECUTION, NOON, TRACE, History, claimed, initialized, issued


def test_a_stored_event_is_read_with_its_place_and_its_typed_content() -> None:
    history = History().add(initialized())
    command = issued(history, "load")
    history.add(command, claimed(command, worker_id="ada", lease_seconds=2.5))

    event = record(history.stored[2])

    assert event.content == CommandClaimed(
        command_id=command.command_id, step="load", worker_id="ada", lease_seconds=2.5
    )
    assert (event.stream_version, event.aggregate_version) == (3, 2)
    assert event.ingest_time == history.stored[2].ingest_time
    assert event.envelope.execution_id == EXECUTION
    assert event.envelope.trace == TRACE


def test_a_type_that_this_release_does_not_know_has_no_content() -> None:
    history = History().add(initialized(), Draft(event_type="user.note", idempotency_key="note"))

    assert record(history.stored[1]).content is None


def test_an_event_that_lacks_a_field_of_its_type_is_corrupt() -> None:
    history = History().add(initialized(), Draft(event_type="command.issued", idempotency_key="bad"))

    with pytest.raises(Corrupt, match="lacks 'activation'"):
        record(history.stored[1])


@pytest.mark.parametrize(("meta", "version"), [({"decided_through": 4}, 4), ({}, 0), ({"decided_through": "4"}, 0)])
def test_a_decision_names_the_cause_that_it_follows_from(meta: dict[str, object], version: int) -> None:
    history = History().add(Draft(event_type="user.note", idempotency_key="note", meta=meta))

    assert record(history.stored[0]).decided_through == version


def test_a_draft_folds_as_the_event_that_it_becomes() -> None:
    """A turn decides on what it is about to append, so that guess and fact must not differ."""
    history = History().add(initialized())
    command = issued(history, "load")
    contents = (
        StepEntered(step="load", activation=1, cause_step="begin", consumes=("begin", "")),
        command,
        claimed(command),
        PlaybookFailed(error={"code": "x", "at": [1, {"b": None}]}),
    )
    keys = ("enter", "issue", "claim", "execution/end")
    drafts = [to_draft(one, idempotency_key=key, trace=TRACE) for key, one in zip(keys, contents, strict=True)]
    guessed = real = fold(empty(EXECUTION), history.recorded[0])
    history.add(*drafts)

    for draft, event in zip(drafts, history.recorded[1:], strict=True):
        guess = as_if_recorded(
            draft,
            tenant_id="default",
            organization_id="default",
            execution_id=EXECUTION,
            stream_version=event.stream_version,
            aggregate_version=event.aggregate_version,
            time=event.ingest_time,
        )
        assert guess.content == event.content
        guessed, real = fold(guessed, guess), fold(real, event)

    assert guessed.commands == real.commands
    assert guessed.execution.steps == real.execution.steps
    assert guessed.execution.status == real.execution.status
    assert real.execution.ended_at > NOON  # type: ignore[operator]  # it has ended
