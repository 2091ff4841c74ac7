"""An execution that the list of streams has lost is found by its events, or by its live rows."""

from __future__ import annotations

from dataclasses import replace

from noetl_adapters.verify.shares import ShareReport
from noetl_cli.stream_heads import all_heads
from noetl_cli.verify.bulk import _failed
from noetl_cli.verify.hidden import find_hidden
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.verdict import Verdict
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import LiveExecution, LivePage
from noetl_testkit.compliance.event_log import ACME, RIVAL, start
from noetl_testkit.memory.event_log import InMemoryEventLog


class Rows:
    """Live rows, one a page."""

    def __init__(self, *rows: tuple[int, Scope]) -> None:
        self._rows = sorted(rows, key=lambda one: one[0])

    async def list_live(self, scope: Scope | None, *, after: int = 0, limit: int = 1000) -> LivePage:
        found = [live(one, whose) for one, whose in self._rows if scope in (None, whose) and one > after]
        return LivePage(executions=tuple(found[:1]), following=found[0].execution_id if len(found) > 1 else None)


def live(execution_id: int, whose: Scope) -> LiveExecution:
    return LiveExecution(
        execution_id=execution_id, tenant_id=whose.tenant_id, organization_id=whose.organization_id, stream_version=3
    )


async def some_log() -> tuple[InMemoryEventLog, list[tuple[int, Scope]]]:
    log = InMemoryEventLog()
    scopes = [ACME, ACME, ACME, RIVAL]
    return log, [(await start(log, scope=scope), scope) for scope in scopes]


async def test_nothing_is_said_of_executions_that_have_their_heads() -> None:
    log, rows = await some_log()

    for scope in (None, ACME):
        assert await find_hidden(log, Rows(*rows), scope, await all_heads(log, scope)) == {}
    assert await find_hidden(InMemoryEventLog(), Rows(), None, []) == {}


async def test_an_execution_whose_head_names_another_tenant_is_told_once() -> None:
    log, rows = await some_log()
    lost = rows[1][0]
    log.streams[lost].head = replace(log.streams[lost].head, tenant_id="evil")

    found = await find_hidden(log, Rows(*rows), ACME, await all_heads(log, ACME))
    by_all = await find_hidden(log, Rows(*rows), None, await all_heads(log, None))

    assert [(one, finding.code) for one, finding in found.items()] == [(lost, "stream.missing")]
    assert "names another tenant" in found[lost].message
    assert by_all == {}, "who sees its head verifies it, and is told that it differs"


async def test_an_execution_of_which_only_live_rows_are_left_is_told() -> None:
    log, rows = await some_log()
    lost = rows[1][0]
    del log.streams[lost]

    for scope in (None, ACME):
        found = await find_hidden(log, Rows(*rows), scope, await all_heads(log, scope))

        assert {one: finding.code for one, finding in found.items()} == {lost: "stream.missing"}
        assert "stand at version 3" in found[lost].message


async def test_a_tenant_whose_only_execution_left_nothing_but_live_rows_is_told_to_whoever_sees_all() -> None:
    log, rows = await some_log()
    lost, whose = rows[3]
    del log.streams[lost]
    assert whose == RIVAL

    found = await find_hidden(log, Rows(*rows), None, await all_heads(log, None))
    by_others = await find_hidden(log, Rows(*rows), ACME, await all_heads(log, ACME))

    assert {one: finding.code for one, finding in found.items()} == {lost: "stream.missing"}
    assert f"{RIVAL.tenant_id}/{RIVAL.organization_id}" in found[lost].message
    assert by_others == {}


async def test_an_execution_that_was_started_after_heads_were_listed_is_not_missing() -> None:
    log, rows = await some_log()
    heads = await all_heads(log, None)
    rows.append((await start(log, scope=ACME), ACME))

    assert await find_hidden(log, Rows(*rows), None, heads) == {}


def test_what_is_hidden_is_told_beside_what_a_lake_says_of_it() -> None:
    share = ShareReport()
    for number in (2, 3):
        share.add(
            Verdict(execution_id=number, version=1, events=1, findings=(Finding(code="log.lost", message="gone"),))
        )

    failed = _failed(share.failed, {1: Finding(code="stream.missing", message="x"), 3: Finding(code="y", message="z")})

    told = [(one["execution_id"], one["proved"], [finding["code"] for finding in one["findings"]]) for one in failed]
    assert told == [("1", False, ["stream.missing"]), ("2", False, ["log.lost"]), ("3", False, ["log.lost", "y"])]
