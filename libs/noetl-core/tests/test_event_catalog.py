from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest
from noetl_core.catalog import event_type, is_reserved, known_types, spec_of, to_draft, typed
from noetl_core.commands.events import CallDone, CommandIssued
from noetl_core.envelope import Draft, Envelope, StreamSpelling, parse_body
from noetl_core.errors import Corrupt
from noetl_core.events import is_allowed_after_end, is_terminal
from noetl_core.executions.events import PlaybookInitialized, StepExited, WorkflowInitialized
from noetl_core.payloads import refer_to

REF = refer_to(b"{}", tenant_id="acme", organization_id="ops", media_type="application/json")
EVENTS = [
    PlaybookInitialized(path="a/b", version=3, catalog_id="7", payload_ref=REF),
    WorkflowInitialized(entry_step="first"),
    StepExited(step="first", activation=2, status="error", fired=("x", "y"), error={"code": "e"}, handled=False),
    CommandIssued(command_id="c1", step="first", activation=1, attempt=2),
    CallDone(command_id="c1", step="first", result={"status": "ok", "context": {}}),
]


def stored(draft: Draft) -> Envelope:
    spelling = StreamSpelling(tenant_id="acme", organization_id="ops", execution_id=2)
    return parse_body(spelling.spell(draft, 1, datetime(2026, 1, 1, tzinfo=UTC)).body)


@pytest.mark.parametrize("content", EVENTS, ids=lambda content: type(content).__name__)
def test_a_typed_event_comes_back_from_its_bytes(content: object) -> None:
    assert typed(stored(to_draft(content, idempotency_key="k"))) == content


def test_events_about_a_command_belong_to_its_aggregate() -> None:
    draft = to_draft(EVENTS[3], idempotency_key="k")

    assert (draft.aggregate_type, draft.aggregate_id, draft.command_id) == ("command", "c1", "c1")
    assert (draft.node_name, draft.meta["attempt"]) == ("first", 2)


def test_types_and_versions_of_other_releases_are_not_guessed_at() -> None:
    known = to_draft(EVENTS[1], idempotency_key="k")

    assert typed(stored(replace(known, event_type="workflow.imagined"))) is None
    assert typed(stored(replace(known, schema_version=99))) is None


def test_a_known_event_that_lacks_a_field_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        typed(stored(Draft(event_type="workflow.initialized", idempotency_key="k")))


def test_every_type_that_noetl_writes_is_reserved() -> None:
    assert all(is_reserved(name) for name in known_types())
    assert not is_reserved("order.shipped")
    assert not is_reserved("commander.issued")


def test_exactly_the_terminal_events_end_an_execution() -> None:
    terminal = {name for name in known_types() if is_terminal(name)}

    assert {"playbook.completed", "playbook.failed", "execution.cancelled"} <= terminal
    assert not any(is_allowed_after_end(name) for name in terminal)


def test_a_type_cannot_be_declared_twice() -> None:
    with pytest.raises(ValueError, match="declared twice"):

        @event_type("workflow.initialized")
        @dataclass(frozen=True, slots=True, kw_only=True)
        class Again:
            """A second one of the same name."""

    assert spec_of(EVENTS[1]).payload is WorkflowInitialized
