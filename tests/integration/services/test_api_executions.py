from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from noetl_core.append import END_KEY
from noetl_core.canonical import decode
from noetl_core.envelope import Draft
from noetl_core.errors import AlreadyTerminal, InvalidInput, KeyTaken, NotFound, NotPermitted, PlaybookInvalid
from noetl_core.ports.event_log import Scope
from noetl_testkit.compliance.event_log import ACME, chain_holds, history, new_id, note, request

HELLO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hello, path: examples/hello}
workload:
  who: world
  greeting: "Hello, {{ who }} from {{ env.REGION }}"
  secret: "{{ env.SECRET }}"
  me: "{{ execution_id }}"
  echo: "{{ payload.times }}"
  broken: "{{ 1 / 0 }}"
workflow:
- step: greet
  tool: {kind: noop}
"""


async def variables(api: Any, execution_id: int, payload_root: Path) -> Any:
    (first, *_) = await history((await api.as_("service")).events, execution_id)
    ref = first.envelope().payload_ref
    assert ref is not None
    return await asyncio.to_thread(_read, payload_root, ref.sha256)


def _read(payload_root: Path, sha256: str) -> Any:
    (stored,) = payload_root.rglob(sha256)
    return decode(stored.read_bytes())


async def test_an_execution_is_pinned_to_the_version_it_started_with(api: Any) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)
    first = await ada.executions.execute(None, path="examples/hello")
    await ada.catalog.register(None, HELLO + "- {step: more, tool: {kind: noop}}\n")

    second = await ada.executions.execute(None, path="examples/hello")
    old = await ada.executions.execute(None, path="examples/hello", version=1)

    assert (first.version, second.version, old.version) == (1, 2, 1)
    assert (await ada.executions.get(None, first.execution_id)).version == 1


async def test_the_payload_is_merged_over_the_workload_and_templates_are_rendered_once(
    api: Any, tmp_path: Path
) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)

    started = await ada.executions.execute(
        None,
        path="examples/hello",
        payload={"who": "Ada", "times": 3, "note": "{{ who }}", "ctx": {"extra": True}},
    )

    assert await variables(api, started.execution_id, tmp_path / "payloads") == {
        "who": "Ada",
        "greeting": "Hello, Ada from north",
        "secret": None,
        "me": str(started.execution_id),
        "echo": 3,
        "broken": "{{ 1 / 0 }}",
        "times": 3,
        "note": "{{ who }}",
        "extra": True,
    }


async def test_a_start_key_starts_one_execution(api: Any) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)

    outcomes = await asyncio.gather(
        *(ada.executions.execute(None, path="examples/hello", payload={"n": 1}, start_key="order/7") for _ in range(10))
    )
    await ada.catalog.register(None, HELLO + "- {step: more, tool: {kind: noop}}\n")
    later = await ada.executions.execute(None, path="examples/hello", payload={"n": 1}, start_key="order/7")

    assert len({one.execution_id for one in outcomes}) == 1
    assert sum(one.created for one in outcomes) == 1
    assert later.execution_id == outcomes[0].execution_id
    assert (later.created, later.version) == (False, 1)
    with pytest.raises(KeyTaken):
        await ada.executions.execute(None, path="examples/hello", payload={"n": 2}, start_key="order/7")
    other = await (await api.as_("sam")).catalog.register(None, HELLO)
    assert other.entry.version == 1
    elsewhere = await (await api.as_("sam")).executions.execute(None, path="examples/hello", start_key="order/7")
    assert elsewhere.execution_id != outcomes[0].execution_id


async def test_who_has_just_started_an_execution_sees_it(api: Any) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)
    started = await ada.executions.execute(None, path="examples/hello")

    view = await ada.executions.get(None, started.execution_id)

    assert (view.status, view.path, view.stream_version) == ("RUNNING", "examples/hello", 1)
    assert view.last_event_type == "playbook.initialized"


async def test_a_query_waits_for_the_version_that_it_names(api: Any) -> None:
    ada, service = await api.as_("ada"), await api.as_("service")
    await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id

    asking = asyncio.create_task(ada.executions.get(None, execution_id, min_version=2))
    await service.events.append(
        request(
            execution_id, Draft(event_type="workflow.initialized", idempotency_key="w", meta={"entry_step": "greet"})
        )
    )

    assert (await asking).last_event_type == "workflow.initialized"


async def test_cancelling_ends_an_execution_and_tells_workers(api: Any, installed_dsn: str) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id

    first = await ada.executions.cancel(None, execution_id, reason="enough")
    again = await ada.executions.cancel(None, execution_id, reason="once more")

    assert (first.stream_version, again.stream_version) == (2, 2)
    assert (await ada.executions.get(None, execution_id)).status == "CANCELLED"
    events = await history(ada.events, execution_id)
    assert chain_holds(events)
    assert events[-1].envelope().meta == {"reason": "enough", "cancelled_by": "ada", "cascade": True}
    connection = await asyncpg.connect(installed_dsn)
    rows = await connection.fetch("SELECT body FROM noetl.outbox WHERE subject = 'noetl.control.cancel'")
    await connection.close()
    assert [json.loads(row["body"]) for row in rows] == [{"execution_id": str(execution_id)}]


async def test_what_ended_otherwise_cannot_be_cancelled(api: Any) -> None:
    ada, service = await api.as_("ada"), await api.as_("service")
    await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id
    await service.events.append(request(execution_id, Draft(event_type="playbook.completed", idempotency_key=END_KEY)))

    with pytest.raises(AlreadyTerminal):
        await ada.executions.cancel(None, execution_id)


@pytest.mark.parametrize("stranger", ["rival", "sam"])
async def test_other_tenants_executions_and_playbooks_do_not_exist(api: Any, stranger: str) -> None:
    ada, other = await api.as_("ada"), await api.as_(stranger)
    registered = await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id

    for attempt, code in (
        (other.executions.get(None, execution_id), "execution.not_found"),
        (other.executions.cancel(None, execution_id), "execution.not_found"),
        (other.executions.get(None, new_id()), "execution.not_found"),
        (other.executions.execute(None, path="examples/hello"), "catalog.not_found"),
        (other.executions.execute(None, catalog_id=registered.entry.catalog_id), "catalog.not_found"),
        (other.catalog.get(None, path="examples/hello"), "catalog.not_found"),
        (other.catalog.get(None, catalog_id=registered.entry.catalog_id), "catalog.not_found"),
        (other.catalog.versions(None, "examples/hello"), "catalog.not_found"),
    ):
        with pytest.raises(NotFound) as refusal:
            await attempt
        assert refusal.value.code == code
    assert (await other.catalog.list(None)).entries == ()
    for attempt in (
        other.executions.get(ACME, execution_id),
        other.executions.cancel(ACME, execution_id),
        other.executions.execute(ACME, path="examples/hello"),
        other.catalog.register(ACME, HELLO),
    ):
        with pytest.raises(NotPermitted):
            await attempt


async def test_a_service_acts_for_the_scope_that_it_names(api: Any) -> None:
    ada, service = await api.as_("ada"), await api.as_("service")
    registered = await ada.catalog.register(None, HELLO)

    started = await service.executions.execute(ACME, path="examples/hello")
    source = await service.catalog.get(None, catalog_id=registered.entry.catalog_id)
    version = (await service.executions.cancel(None, started.execution_id)).stream_version

    assert (await ada.executions.get(None, started.execution_id)).status == "CANCELLED"
    assert source.content == HELLO
    assert version == 2
    with pytest.raises(InvalidInput):
        await service.executions.execute(None, path="examples/hello")
    with pytest.raises(NotFound):
        await service.executions.execute(Scope(tenant_id="rival", organization_id="ops"), path="examples/hello")


async def test_readers_neither_register_nor_execute_nor_cancel(api: Any) -> None:
    ada, rita = await api.as_("ada"), await api.as_("rita")
    await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id

    for attempt in (
        rita.catalog.register(None, HELLO + "\n"),
        rita.executions.execute(None, path="examples/hello"),
        rita.executions.cancel(None, execution_id),
    ):
        with pytest.raises(NotPermitted):
            await attempt
    assert (await rita.executions.get(None, execution_id)).status == "RUNNING"


@pytest.mark.parametrize(
    "payload",
    [{"text": "x" * 1_100_000}, {"deep": {"text": "x" * 1_100_000}}],
)
async def test_a_payload_that_is_too_large_is_refused_before_anything_happens(
    api: Any, payload: dict[str, Any], tmp_path: Path
) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)

    with pytest.raises(InvalidInput) as refusal:
        await ada.executions.execute(None, path="examples/hello", payload=payload)

    assert refusal.value.code == "execution.invalid_payload"
    stored = [file for file in (tmp_path / "payloads").rglob("*") if file.is_file() and ".owners" not in file.parts]
    assert stored == []


BROKEN = {
    "yaml_invalid": (HELLO + "  - [oops\n", None),
    "unknown_step": (HELLO.replace("tool: {kind: noop}", "tool: {kind: noop}\n  next: {arcs: [{step: nowhere}]}"), 14),
    "unknown_tool": (HELLO.replace("kind: noop", "kind: teleport"), 13),
    "api_version": (HELLO.replace("noetl.io/v2", "noetl.io/v99"), 1),
    "template_syntax": (
        HELLO.replace("tool: {kind: noop}", "tool: {kind: noop}\n  next: {arcs: [{step: greet, when: '{{ 1 +'}]}"),
        14,
    ),
}


@pytest.mark.parametrize("code", sorted(BROKEN))
async def test_a_playbook_that_cannot_run_is_refused_with_line_and_reason_and_nothing_is_stored(
    api: Any, code: str
) -> None:
    ada = await api.as_("ada")
    content, line = BROKEN[code]

    with pytest.raises(PlaybookInvalid) as refusal:
        await ada.catalog.register(None, content)

    problem = next(one for one in refusal.value.problems if one.code == f"playbook.{code}")
    assert problem.message
    assert problem.line is not None
    assert line is None or problem.line == line
    assert (await ada.catalog.list(None)).entries == ()


async def test_registering_is_idempotent_and_versions_can_be_listed(api: Any) -> None:
    ada = await api.as_("ada")

    first = await ada.catalog.register(None, HELLO)
    again = await ada.catalog.register(None, HELLO)
    second = await ada.catalog.register(None, HELLO + "# more\n")

    assert (first.created, again.created, second.created) == (True, False, True)
    assert again.entry == first.entry
    assert first.entry.created_by == "ada"
    versions = (await ada.catalog.versions(None, "examples/hello")).entries
    assert [entry.version for entry in versions] == [2, 1]
    assert (await ada.catalog.get(None, path="examples/hello", version=1)).content == HELLO
    assert [(entry.path, entry.version) for entry in (await ada.catalog.list(None)).entries] == [("examples/hello", 2)]


async def test_user_events_do_not_disturb_an_execution(api: Any) -> None:
    ada = await api.as_("ada")
    await ada.catalog.register(None, HELLO)
    execution_id = (await ada.executions.execute(None, path="examples/hello")).execution_id

    await ada.events.append(request(execution_id, note("k")))

    view = await ada.executions.get(None, execution_id)
    assert (view.status, view.stream_version, view.last_event_type) == ("RUNNING", 2, "user.note")
