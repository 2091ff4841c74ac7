"""Where a pipeline stands while it waits, as bytes that any worker can go on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from noetl_core.call_logs import CallOutput
from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.errors import Corrupt

from noetl_worker.application.captured_output import CapturedOutput
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.parked_loop import LoopStand, loop_object, read_loop
from noetl_worker.application.parked_outcome import outcome_object, read_outcome
from noetl_worker.application.scopes import PipelineScope

FORMAT = 1
FORMAT_WITH_LOOP = 2
"""A release that knows no waiting items must not go on from these as if there were none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """Everything a pipeline remembers between two calls, but for what its names are made of anew."""

    position: int
    task_runs: int
    attempt: int
    """Which run of its rules the waiting call is."""
    runs: Mapping[str, int]
    """How many calls of each task have begun."""
    scope: PipelineScope
    last: Outcome
    captured: CapturedOutput
    path: str
    return_step: str
    loop: LoopStand | None = None
    """The loop of the task that it stands at, if calls of its items wait."""


def encode_stand(stand: Stand) -> bytes:
    """Canonical bytes; raises `NotCanonical` for results that have none. In a thread, since they may be large."""
    scope = stand.scope
    return encode(
        {
            "format": FORMAT_WITH_LOOP if stand.loop else FORMAT,
            "position": stand.position,
            "task_runs": stand.task_runs,
            "attempt": stand.attempt,
            "runs": dict(stand.runs),
            "variables": dict(scope.variables),
            "step_scope": dict(scope.step_scope),
            "results": dict(scope.results),
            "previous": scope.previous,
            "iteration": dict(scope.iteration.scope) if scope.iteration else None,
            "has_output": scope.output is not None,
            "last": outcome_object(stand.last),
            "path": stand.path,
            "return_step": stand.return_step,
            "captured": [output.to_json() for output in (*stand.captured.first, *stand.captured.last)],
            **({"loop": loop_object(stand.loop)} if stand.loop else {}),
        }
    )


def decode_stand(data: bytes, outer: Mapping[str, object], iteration: Iteration | None = None) -> Stand:
    """What was encoded, over names as they are now; raises `Corrupt` for what another release has parked."""
    fields = decode(data)
    if not isinstance(fields, dict) or fields.get("format") not in (FORMAT, FORMAT_WITH_LOOP):
        raise Corrupt("these bytes hold no pipeline of this format")
    if iteration is not None:
        iteration = replace(iteration, scope=dict(cast("JsonObject", fields.get("iteration") or {})))
    return _stand(fields, outer, iteration)


def _stand(fields: Mapping[str, Any], outer: Mapping[str, object], iteration: Iteration | None) -> Stand:
    last = read_outcome(fields["last"])
    captured = CapturedOutput()
    for output in fields["captured"]:
        captured.keep(CallOutput(**output))
    return Stand(
        position=fields["position"],
        task_runs=fields["task_runs"],
        attempt=fields["attempt"],
        runs=fields["runs"],
        scope=PipelineScope(
            outer=outer,
            variables=fields["variables"],
            step_scope=fields["step_scope"],
            results=fields["results"],
            previous=fields["previous"],
            output=last if fields["has_output"] else None,
            iteration=iteration,
        ),
        last=last,
        captured=captured,
        path=fields["path"],
        return_step=fields["return_step"],
        loop=read_loop(fields["loop"]) if fields.get("loop") else None,
    )
