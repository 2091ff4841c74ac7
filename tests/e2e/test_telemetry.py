"""What a running stack emits is what `telemetry/` declares, and one execution is one trace across all services."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack, local_stack
from noetl_testkit.otlp import OtlpCollector, ReceivedSpan, otlp_collector
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2]
SERVICES = {"api", "planner", "projector", "outbox-publisher", "reaper", "worker"}
NOT_ALWAYS_NEEDED = {"reaper"}
"""Only where somebody falls silent."""
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SETTINGS = {
    "OTEL_BSP_SCHEDULE_DELAY": "200",  # milliseconds, after which spans are sent
    "NOETL_LOG_LEVEL": "debug",
    "NOETL_COMMAND_LEASE_SECONDS": "1.5",
    "NOETL_HEARTBEAT_SECONDS": "0.3",
    "NOETL_REAPER_INTERVAL_SECONDS": "0.5",
}
OUR_SPAN = "b7ad6b7169203331"
QUIET_TRACE = "0af7651916cd43dd8448eb211c80319c"
RESCUED_TRACE = "7d2f0c51b6a94e0f93c1a8e0d4b5f612"

RESCUED = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: rescued, path: tests/rescued}
workload: {marker: ""}
workflow:
- step: hang_once
  tool:
    kind: python
    input: {marker: "{{ marker }}"}
    code: |
      import pathlib
      import signal

      first = not pathlib.Path(marker).exists()
      pathlib.Path(marker).touch()
      if first:
          signal.pause()
      result = {"done": True}
  next: {arcs: [{step: after}]}
- step: after
  tool: {kind: noop}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Everything that a stack said from its start to its end."""

    spans: tuple[ReceivedSpan, ...]
    metrics: Mapping[str, str]
    logs: Mapping[str, Sequence[str]]
    executions: Mapping[str, str]
    """Trace ids by execution ids."""

    def trace(self, trace_id: str) -> tuple[ReceivedSpan, ...]:
        return tuple(span for span in self.spans if span.trace_id == trace_id)


@pytest.fixture(scope="module")
def telemetry(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    """Of a stack that runs an execution undisturbed and one whose worker is killed, and is then stopped."""
    marker = tmp_path_factory.mktemp("telemetry") / "marker"
    with otlp_collector() as collector, local_stack({**SETTINGS, ENDPOINT: collector.endpoint}) as stack:
        executions = {asyncio.run(run_undisturbed(stack)): QUIET_TRACE}
        # A worker that is killed takes the spans with it that it has not sent yet: those must be out before.
        eventually(lambda: services_in(collector, QUIET_TRACE) >= SERVICES - NOT_ALWAYS_NEEDED)
        eventually(lambda: is_whole(collector.trace(QUIET_TRACE)))
        executions[asyncio.run(run_with_a_killed_worker(stack, marker=marker))] = RESCUED_TRACE
        eventually(lambda: services_in(collector, RESCUED_TRACE) >= SERVICES)
        metrics = {service: scraped(stack, service) for service in SERVICES}
        assert stack.noetl("dev", "down").code == 0  # with their last words
        return Telemetry(
            spans=collector.spans(),
            metrics=metrics,
            logs={service: stack.home.log_file(service).read_text("utf-8").splitlines() for service in SERVICES},
            executions=executions,
        )


async def run_undisturbed(stack: LocalStack) -> str:
    """Started over HTTP, as other systems do it."""
    endpoint = stack.endpoint
    headers = {
        "authorization": f"Bearer {endpoint.token}",
        "traceparent": f"00-{QUIET_TRACE}-{OUR_SPAN}-01",
    }
    content = (ROOT / "examples" / "playbooks" / "two_steps.yaml").read_text("utf-8")
    async with open_channel(endpoint.address, token=endpoint.token) as channel:
        registered = await CatalogClient(channel).register(None, content)
        async with httpx.AsyncClient(base_url=endpoint.http_url, headers=headers) as http:
            answer = await http.post("/api/execute", json={"path": registered.entry.path})
            assert answer.status_code == 200, answer.text
            execution_id = str(answer.json()["execution_id"])
            await watch_to_the_end(EventLogClient(channel), execution_id)
            answer = await http.get(f"/api/executions/{execution_id}/status")
            assert answer.json()["status"] == "COMPLETED", answer.text
    return execution_id


async def run_with_a_killed_worker(stack: LocalStack, *, marker: Path) -> str:
    """Whose command the reaper has issued again."""
    endpoint = stack.endpoint
    traceparent = f"00-{RESCUED_TRACE}-{OUR_SPAN}-01"
    async with open_channel(endpoint.address, token=endpoint.token, traceparent=lambda: traceparent) as channel:
        registered = await CatalogClient(channel).register(None, RESCUED)
        started = await ExecutionClient(channel).execute(
            None, path=registered.entry.path, payload={"marker": str(marker)}
        )
        await asyncio.to_thread(eventually, marker.exists)
        stack.kill("worker")
        await watch_to_the_end(EventLogClient(channel), str(started.execution_id))
    return str(started.execution_id)


async def watch_to_the_end(log: EventLogClient, execution_id: str) -> None:
    types: list[str] = []
    async for seen in log.watch(None, int(execution_id), timeout=60.0):
        types += [event.envelope().event_type for event in seen.events]
    assert types[-1] == "playbook.completed", types


def orphans_in(spans: Sequence[ReceivedSpan]) -> list[ReceivedSpan]:
    """Spans whose parent is neither among them nor ours."""
    known = {OUR_SPAN, *(span.span_id for span in spans)}
    return [span for span in spans if span.parent_span_id not in known]


def is_whole(spans: Sequence[ReceivedSpan]) -> bool:
    """Whether both steps are told of to the end, by who delivered their results as well as by who took them."""
    taken = [span for span in spans if span.kind == "server" and span.name.endswith("CommandService/Complete")]
    return len(taken) >= 2 and not orphans_in(spans)


def services_in(collector: OtlpCollector, trace_id: str) -> set[str]:
    return {span.service for span in collector.trace(trace_id)}


def scraped(stack: LocalStack, service: str) -> str:
    stack.pid(service)  # it is ready, also if it had to be started again
    port = stack.state().components[service].ports["ops"]
    answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
    assert answer.status_code == 200
    return answer.text


def registry(file: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "telemetry" / file).read_text("utf-8"))
    return document


def emits(entry: Mapping[str, Any], service: str) -> bool:
    return entry["services"] == ["all"] or service in entry["services"]


def test_an_execution_is_one_trace_through_every_service_that_worked_for_it(telemetry: Telemetry) -> None:
    quiet, rescued = telemetry.trace(QUIET_TRACE), telemetry.trace(RESCUED_TRACE)

    assert {span.service for span in quiet} >= SERVICES - NOT_ALWAYS_NEEDED
    assert {span.service for span in rescued} == SERVICES
    # Nothing that was done for an execution is in another trace than its own.
    for span in telemetry.spans:
        execution_id = span.attributes.get("noetl.execution_id")
        if execution_id is not None:
            assert span.trace_id == telemetry.executions[str(execution_id)], span
        if span.name.partition(".")[0] in {"planner", "worker", "reaper"} and span.kind == "internal":
            assert span.trace_id in {QUIET_TRACE, RESCUED_TRACE}, span


def test_every_span_of_an_undisturbed_execution_hangs_below_the_callers(telemetry: Telemetry) -> None:
    assert not orphans_in(telemetry.trace(QUIET_TRACE))


def test_spans_are_declared_for_their_service_with_their_kind_and_attributes(telemetry: Telemetry) -> None:
    declared = registry("spans.yaml")["spans"]
    problems = set()
    for span in telemetry.spans:
        entry = next(
            (
                one
                for one in declared
                if (re.fullmatch(one["emitted_as"], span.name) if "emitted_as" in one else one["span"] == span.name)
            ),
            None,
        )
        if entry is None:
            problems.add(f"{span.service}: span {span.name!r} is not declared")
            continue
        extra = span.attributes.keys() - {*entry["attributes"], "error.type"}
        if not emits(entry, span.service) or span.kind != entry["kind"] or extra:
            problems.add(f"{span.service}: span {span.name!r} ({span.kind}, {sorted(extra)}) is declared otherwise")
    assert not problems


def test_metrics_are_declared_for_their_service_with_their_type_and_labels(telemetry: Telemetry) -> None:
    declared = {entry["name"]: entry for entry in registry("metrics.yaml")["metrics"]}
    problems, seen = set(), 0
    for service, text in telemetry.metrics.items():
        for family in text_string_to_metric_families(text):
            if family.name.startswith(("process_", "python_")):
                continue
            name = f"{family.name}_total" if family.type == "counter" else family.name
            owner = name.removesuffix("_created")  # when a counter or histogram began, which comes with it
            entry = declared.get(name) or declared.get(f"{owner}_total") or declared.get(owner)
            if entry is None or not emits(entry, service):
                problems.add(f"{service}: metric {name!r} is not declared for it")
                continue
            seen += 1
            if name == entry["name"] and family.type != entry["type"]:
                problems.add(f"{service}: metric {name!r} is a {family.type}")
            for sample in family.samples:
                if sample.labels.keys() - {"le"} != set(entry["labels"]):
                    problems.add(f"{service}: metric {name!r} has the labels {sorted(sample.labels)}")
    assert not problems
    assert seen > len(SERVICES)


def test_every_log_line_is_json_and_its_event_and_fields_are_declared(telemetry: Telemetry) -> None:
    document = registry("logs.yaml")
    declared = {entry["event"]: entry for entry in document["events"]}
    common = set(document["common_fields"])
    problems = set()
    for service, lines in telemetry.logs.items():
        assert lines, f"{service} says nothing"
        for line in lines:
            record = json.loads(line)
            entry = declared.get(record["event"])
            assert record["service"] == service
            if entry is None or not emits(entry, service):
                problems.add(f"{service}: event {record['event']!r} is not declared for it")
                continue
            extra = record.keys() - {*entry["fields"], *common}
            if extra or entry["level"] not in ("any", record["level"]):
                problems.add(f"{service}: event {record['event']!r} ({record['level']}) has the fields {sorted(extra)}")
    assert not problems
