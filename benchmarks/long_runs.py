"""An execution of ten thousand steps: what a step costs at its beginning and at its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CatalogClient, EventLogClient, ExecutionClient
from noetl_core.ports.event_log import Scope

from benchmarks.drafts import ORGANIZATION, TENANT
from benchmarks.figures import Figure, Goal, median
from benchmarks.stack import Stack

STEPS = 10_000
PART = 1_000
"""Steps of which the median is taken, at either end."""
_TIMEOUT_SECONDS = 1_800.0
_SCOPE = Scope(tenant_id=TENANT, organization_id=ORGANIZATION)
_POLL = f"""
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: long_run, path: benchmarks/long_run}}
workload: {{n: 0}}
workflow:
- step: poll
  tool: {{kind: noop, result: {{n: "{{{{ n + 1 }}}}"}}}}
  set: {{ctx.n: "{{{{ output.data.n }}}}"}}
  next: {{arcs: [{{step: poll, when: "{{{{ n < {STEPS} }}}}"}}]}}
"""


async def measure_long_runs(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """A step that leads back to itself so often, timed by the database: from one entry to the next.

    It takes as long as it takes: fewer steps would show less.
    """
    await stack.settle()
    async with open_channel(stack.addresses.api, token=stack.addresses.service_token) as channel:
        registered = await CatalogClient(channel).register(_SCOPE, _POLL)
        started = await ExecutionClient(channel).execute(_SCOPE, path=registered.entry.path)
        entered: list[datetime] = []
        last = ""
        async for seen in EventLogClient(channel).watch(_SCOPE, started.execution_id, timeout=_TIMEOUT_SECONDS):
            for event in seen.events:
                last = event.envelope().event_type
                if last == "step.enter":
                    entered.append(event.ingest_time)
                    if len(entered) % PART == 0:
                        say(f"{len(entered)} of {STEPS} steps")
    if last != "playbook.completed" or len(entered) != STEPS:
        raise RuntimeError(f"execution {started.execution_id} ended with {last} after {len(entered)} steps")
    gaps = [(later - earlier).total_seconds() * 1000 for earlier, later in pairwise(entered)]
    first, final = median(gaps[:PART]), median(gaps[-PART:])
    group = f"An execution of {STEPS:,} steps (a back edge)"
    return [
        Figure(group=group, name=f"a step, p50 of the first {PART:,}", value=first, unit="ms", samples=PART),
        Figure(group=group, name=f"a step, p50 of the last {PART:,}", value=final, unit="ms", samples=PART),
        Figure(
            group=group,
            name="last to first",
            value=final / first,
            unit="",
            goal=Goal(bound=1.2, at_least=False),
            samples=PART,
        ),
    ]
