"""A worker evaluates control expressions: it loads what they read, answers in little, and stores the rest."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import decode, encode
from noetl_core.executions.evaluation import Evaluation, Place
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook
from noetl_core.ports.commands import CommandKey, GrantedCommand, Variables
from noetl_servicekit.chunk_rows import LoadRows
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.evaluate_control import MAX_EVENT_BYTES, EvaluateControl
from noetl_worker.application.persist_before_emit import PersistBeforeEmit

NOW = "2026-01-01T00:00:06.000000Z"


class CountingStore(InMemoryPayloadStore):
    """Knows what was read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    async def get(self, ref: PayloadRef) -> bytes:
        self.read.append(ref.uri)
        return await super().get(ref)

    async def keep(self, value: Any) -> PayloadRef:
        return await self.put(tenant_id="t", organization_id="o", data=encode(value), media_type="application/json")


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def playbook(yaml: str) -> Playbook:
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"
    return parse_playbook(head + yaml, supported=EVERYTHING)[0]


def result_of(ref: PayloadRef) -> dict[str, Any]:
    reference = {"ref_id": "noetl://x", "type": "object_store", **ref.to_json()}
    return {"status": "ok", "reference": reference, "parent_ref": None, "context": {}}


async def answers_to(
    store: CountingStore,
    yaml: str,
    results: dict[str, Any],
    *,
    place: Place = Place.LEAVE,
    step: str = "a",
    **command: Any,
) -> dict[str, Any]:
    """The whole result of the command."""
    cause = "s" if place is Place.ADMIT else ""
    evaluation = Evaluation(
        place=place, step=step, activation=1, cause=6, now=NOW, consumes=(cause,) if place is Place.ADMIT else ()
    )
    told = {name: value if "status" in value else result_of(await store.keep(value)) for name, value in results.items()}
    granted = GrantedCommand(
        key=CommandKey(execution_id=1, command_id="c"),
        tenant_id="t",
        organization_id="o",
        catalog_id="1",
        step=evaluation.node,
        activation=1,
        attempt=1,
        lease_seconds=30,
        idempotency_key="k",
        issued_at=datetime(2027, 1, 1, tzinfo=UTC),
        results=told,
        evaluation=evaluation.to_json(),
        **{"cause_step": cause, **command},
    )
    persist = PersistBeforeEmit(store, ArrowTables())
    return dict(await EvaluateControl(persist, LoadRows(store, ArrowTables()))(granted, playbook(yaml)))


CONDITION = '- {step: a, tool: {kind: noop}, next: {arcs: [{step: a, when: "{{ CONDITION }}"}]}}'


async def test_a_condition_is_answered_by_yes_or_no(store: CountingStore) -> None:
    yaml = CONDITION.replace("CONDITION", "output.data.rows | length == 2 and now() == '" + NOW + "'")

    result = await answers_to(store, yaml, {"a": {"rows": [1, 2]}})

    assert result["status"] == "ok"
    assert result["reference"] is None
    assert result["context"] == {"evaluation": {"arcs/0/when": {"is": True}}}


async def test_only_what_is_read_is_loaded_and_each_payload_once(store: CountingStore) -> None:
    yaml = """
- step: a
  tool: {kind: noop}
  set: {ctx.n: "{{ output.data.rows | length + other.rows | length }}", ctx.m: "{{ big[0] + n }}"}
- {step: other, tool: {kind: noop}}
- {step: unread, tool: {kind: noop}}
"""
    big, unread = await store.keep([7]), await store.keep("never")
    variables = Variables(refs={"big": big, "unread_variable": unread})

    result = await answers_to(
        store, yaml, {"a": {"rows": [1]}, "other": {"rows": [1, 2]}, "unread": {"rows": []}}, variables=variables
    )

    assert result["context"]["evaluation"] == {"set/0": {"is": 3}, "set/1": {"is": 10}}
    assert len(store.read) == 3
    assert unread.uri not in store.read


async def test_large_values_are_stored_and_told_with_their_size(store: CountingStore) -> None:
    yaml = '- {step: a, tool: {kind: noop}, set: {ctx.all: "{{ output.data.rows }}"}}'
    result = await answers_to(store, yaml, {"a": {"rows": list(range(1000))}})

    answer = result["context"]["evaluation"]["set/0"]
    assert (answer["type"], answer["count"]) == ("list", 1000)
    assert decode(await store.get(PayloadRef.from_json(answer["ref"]))) == list(range(1000))


async def test_many_values_that_are_large_together_are_stored_too(store: CountingStore) -> None:
    sets = ", ".join(f'ctx.v{number}: "{{{{ output.data.text }}}}"' for number in range(40))
    result = await answers_to(
        store, f"- {{step: a, tool: {{kind: noop}}, set: {{{sets}}}}}", {"a": {"text": "x" * 900}}
    )

    assert len(encode(result)) < 32 * 1024
    assert len(result["context"]["evaluation"]) == 40


async def test_more_than_an_event_may_carry_is_refused(store: CountingStore) -> None:
    sets = ", ".join(f'ctx.v{number}: "{{{{ output.data.text }}}}"' for number in range(1000))
    result = await answers_to(
        store, f"- {{step: a, tool: {{kind: noop}}, set: {{{sets}}}}}", {"a": {"text": "x" * 900}}
    )

    assert result["status"] == "error"
    assert result["context"]["error"]["code"] == "template.error"
    assert str(MAX_EVENT_BYTES) in result["context"]["error"]["message"]


@pytest.mark.parametrize(
    "assigned", ["ctx.t: '{{ output.data.access_token }}'", "ctx.api_token: '{{ output.data.x }}'"]
)
async def test_what_may_be_a_secret_is_not_told_in_an_event(store: CountingStore, assigned: str) -> None:
    yaml = f"- {{step: a, tool: {{kind: noop}}, set: {{{assigned}}}}}"
    result = await answers_to(store, yaml, {"a": {"access_token": "hush", "x": "hush"}})

    assert b"hush" not in encode(result)
    assert result["context"]["evaluation"]["set/0"]["type"] == "text"


async def test_an_expression_that_fails_is_an_answer(store: CountingStore) -> None:
    result = await answers_to(store, CONDITION.replace("CONDITION", "output.data.rows + 1"), {"a": {"rows": [1]}})

    assert result["status"] == "ok"
    failed = result["context"]["evaluation"]["arcs/0/when"]
    assert failed["expression"] == "{{ output.data.rows + 1 }}"
    assert failed["failed"]


async def test_data_that_are_gone_are_an_error_of_the_command(store: CountingStore) -> None:
    gone = result_of(await store.keep({"rows": []}))
    store.objects.clear()
    result = await answers_to(store, CONDITION.replace("CONDITION", "output.data.rows"), {"a": gone})

    assert result["status"] == "error"
    assert result["context"]["error"]["code"] == "REFERENCE_NOT_AVAILABLE"
    assert result["context"]["error"]["retryable"] is True


async def test_an_admission_sees_the_result_that_led_here(store: CountingStore) -> None:
    yaml = """
- step: a
  tool: {kind: noop}
  spec: {policy: {admit: {rules: [{when: "{{ result.rows | length == 3 and s.rows[2] == 3 }}", then: {allow: false}}]}}}
- {step: s, tool: {kind: noop}}
"""
    result = await answers_to(store, yaml, {"s": {"rows": [1, 2, 3]}}, place=Place.ADMIT)

    assert result["context"]["evaluation"] == {"admit/0": {"is": True}}


async def test_a_failed_call_shows_its_error_and_what_it_kept(store: CountingStore) -> None:
    yaml = CONDITION.replace("CONDITION", "error.code == 'X' and output.data.rows | length == 2")
    kept = await store.keep({"rows": [1, 2], "status": "error", "error": {"code": "X"}})
    result = {**result_of(kept), "status": "error", "context": {"error": {"code": "X"}}}

    answer = await answers_to(store, yaml, {"a": result})

    assert answer["context"]["evaluation"] == {"error/arcs/0/when": {"is": True}}
