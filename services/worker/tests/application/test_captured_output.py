"""What calls print is kept for people: bounded, without secrets, and apart from the result."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.call_logs import CallLog
from noetl_core.canonical import decode
from noetl_core.errors import Unavailable
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import CommandKey, GrantedCommand
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_worker.application.captured_output import (
    MAX_HALF_CHARACTERS,
    MAX_HALF_RUNS,
    MAX_STREAM_CHARACTERS,
    CapturedOutput,
    StoreOutput,
    shorten,
)
from noetl_worker.application.outcome import ErrorKind, Outcome, Printed
from noetl_worker.application.persist_before_emit import PersistBeforeEmit
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.registry import ToolRegistry

COMMAND = GrantedCommand(
    key=CommandKey(execution_id=1, command_id="c"),
    tenant_id="t",
    organization_id="o",
    catalog_id="1",
    step="s",
    activation=2,
    attempt=3,
    lease_seconds=45,
    idempotency_key="k",
    issued_at=datetime(2026, 1, 1, tzinfo=UTC),
)


def said(stdout: str, stderr: str = "") -> Printed:
    return Printed(stdout=stdout, stderr=stderr)


class NoStore(InMemoryPayloadStore):
    async def put(self, *, tenant_id: str, organization_id: str, data: bytes, media_type: str) -> PayloadRef:
        raise Unavailable("the store is away")


async def no_time_passes(seconds: float) -> None:
    """The store is asked again at once."""


def storing(store: InMemoryPayloadStore) -> StoreOutput:
    return StoreOutput(PersistBeforeEmit(store, ArrowTables(), sleep=no_time_passes))


async def test_every_run_that_printed_is_stored_in_order_with_its_attempt() -> None:
    captured, store = CapturedOutput(), InMemoryPayloadStore()
    captured.take(said("one"), task="load", run=1)
    captured.take(said("", ""), task="quiet", run=1)
    captured.take(None, task="silent", run=1)
    captured.take(said("", "two"), task="load", run=2)

    ref = await storing(store)(COMMAND, captured)

    assert ref is not None
    log = CallLog.from_json(decode(await store.get(ref)))
    assert (log.step, log.activation, log.attempt) == ("s", 2, 3)
    assert [(one.task, one.run, one.stdout, one.stderr) for one in log.outputs] == [
        ("load", 1, "one", ""),
        ("load", 2, "", "two"),
    ]


async def test_a_command_that_printed_nothing_stores_nothing() -> None:
    assert await storing(InMemoryPayloadStore())(COMMAND, CapturedOutput()) is None


async def test_output_that_cannot_be_stored_does_not_cost_the_result() -> None:
    captured = CapturedOutput()
    captured.take(said("one"), task="load", run=1)

    assert await storing(NoStore())(COMMAND, captured) is None


def test_of_very_many_runs_the_first_and_the_last_are_kept() -> None:
    captured = CapturedOutput()
    for number in range(5_000):
        captured.take(said(f"{number}\n"), task="loop", run=1)

    log = captured.log_of(COMMAND)

    assert log is not None
    assert len(log.outputs) == 2 * MAX_HALF_RUNS
    assert (log.outputs[0].stdout, log.outputs[-1].stdout) == ("0\n", "4999\n")
    assert log.outputs[log.first_runs].stdout == f"{5_000 - MAX_HALF_RUNS}\n"
    assert log.left_out_runs == 5_000 - 2 * MAX_HALF_RUNS


def test_large_runs_are_bounded_together() -> None:
    captured = CapturedOutput()
    for _ in range(50):
        captured.take(said("x" * 60_000, "y" * 60_000), task="loud", run=1)

    log = captured.log_of(COMMAND)

    assert log is not None
    assert log.size <= 2 * MAX_HALF_CHARACTERS
    assert log.left_out_runs + len(log.outputs) == 50


def test_a_long_stream_keeps_both_ends_and_says_how_much_is_missing() -> None:
    short = shorten("a" * 100_000 + "z" * 100_000)

    assert short.startswith("a" * (MAX_STREAM_CHARACTERS // 4) + "\n… ")
    assert short.endswith("z" * (MAX_STREAM_CHARACTERS - MAX_STREAM_CHARACTERS // 4))
    assert f"{200_000 - MAX_STREAM_CHARACTERS} characters are left out" in short


async def test_secrets_of_the_call_are_blotted_out_of_what_it_printed() -> None:
    class Chatty:
        async def run(self, call: ToolCall) -> Outcome:
            failed = Outcome.failed(kind=ErrorKind.UNKNOWN, code="X", message="no", py={"stdout": "key s3cr3t-value"})
            return replace(failed, printed=said("key s3cr3t-value", "postgres://ada:s3cr3t-value@db"))

    call = ToolCall(
        tenant_id="t",
        organization_id="o",
        execution_id=1,
        step="s",
        kind="chatty",
        names={"keychain": {"db": {"password": "s3cr3t-value"}}},
    )
    outcome = await ToolRegistry({"chatty": Chatty()}).run(call)

    assert outcome.printed == said("key ***", "postgres://ada:***@db")
    assert outcome.py == {"stdout": "key ***"}
