"""A step that returns 500 MB: what the log has of it, how long it takes, and how much memory its worker needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient, PayloadClient
from noetl_core.ports.event_log import Scope

from benchmarks.drafts import ORGANIZATION, TENANT
from benchmarks.figures import Figure, Goal
from benchmarks.stack import Stack

SIZE_BYTES = 500_000_000
_SCOPE = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
_TIMEOUT_SECONDS = 600.0
_MAX_EVENT_BYTES = 2048
_MAX_STREAM_BYTES = 200 * 1024 * 1024
_MIB = 1024 * 1024
_HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: NAME, path: benchmarks/NAME}\nworkflow:\n"
_RETURNED = f"""
- step: make
  tool: {{kind: python, code: 'result = {{"label": "large", "text": "x" * {SIZE_BYTES}}}', timeout: 600}}
  next: {{arcs: [{{step: use}}]}}
- step: use
  tool: {{kind: noop, result: {{is: "{{{{ make.label }}}}"}}}}
"""
_STREAMED = """
- step: make
  tool:
    kind: duckdb
    query: SELECT range AS id, repeat('x', 1000) AS text FROM range(COUNT)
    timeout: 600
    spec: {stream: {chunk_rows: 5000}}
  next: {arcs: [{step: use}]}
- step: use
  tool: {kind: noop, result: {is: "{{ make.rows[-1].id }}"}}
""".replace("COUNT", str(SIZE_BYTES // 1000))


async def measure_large_results(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Once as a whole, which a worker holds in memory, and once as a stream, which it does not."""
    figures: list[Figure] = []
    for name, steps, most in (("returned", _RETURNED, None), ("streamed", _STREAMED, _MAX_STREAM_BYTES)):
        say(f"a result of {SIZE_BYTES // 10**6} MB, {name} …")
        figures += await _measured(stack, name, _HEAD.replace("NAME", f"large_{name}") + steps, most)
    return figures


async def _measured(stack: Stack, name: str, content: str, most_memory: int | None) -> list[Figure]:
    worker = Path("/proc") / str(stack.pid("worker"))
    (worker / "clear_refs").write_text("5")  # forget the peak so far
    before = _peak(worker)
    async with open_channel(stack.addresses.api, token=stack.addresses.service_token) as channel:
        path = (await CatalogClient(channel).register(_SCOPE, content)).entry.path
        begun = time.perf_counter()
        started = await ExecutionClient(channel).execute(_SCOPE, path=path)
        largest, last = 0, ""
        async for seen in EventLogClient(channel).watch(_SCOPE, started.execution_id, timeout=_TIMEOUT_SECONDS):
            largest = max(largest, *(len(event.body) for event in seen.events))
            last = seen.events[-1].envelope().event_type
        took = time.perf_counter() - begun
        if last != "playbook.completed":
            raise RuntimeError(f"execution {started.execution_id} ended with {last}")
        trace = await PayloadClient(channel).trace(_SCOPE, started.execution_id, "make")
        await PayloadClient(channel).stat(_SCOPE, trace.results[0].ref_id)  # raises if nobody can read it
    group = f"A result of {SIZE_BYTES // 10**6} MB, {name}"
    used = (_peak(worker) - before) / _MIB
    memory_goal = None if most_memory is None else Goal(bound=most_memory / _MIB, at_least=False)
    return [
        Figure(group=group, name="execute to terminal", value=took, unit="s"),
        Figure(
            group=group,
            name="largest event",
            value=float(largest),
            unit="bytes",
            goal=Goal(bound=_MAX_EVENT_BYTES, at_least=False),
        ),
        Figure(group=group, name="memory of the worker", value=used, unit="MiB", goal=memory_goal),
    ]


def _peak(process: Path) -> int:
    lines = dict(line.split(":", 1) for line in (process / "status").read_text(encoding="utf-8").splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024
