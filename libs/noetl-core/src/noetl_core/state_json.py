"""State as canonical JSON and back, without loss: what projection rows and snapshots hold, and queries show."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from noetl_core.canonical import JsonObject, JsonValue, decode, encode
from noetl_core.children.state import AnsweredCall, ParentCall, ParkedCall
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.executions.state import Arrival, Execution, ExecutionStatus, Step, StepStatus
from noetl_core.fold import State
from noetl_core.loops.state_json import loop_object, loop_progress, read_loop
from noetl_core.payloads import PayloadRef
from noetl_core.stages.state_json import read_stage, stage_object
from noetl_core.steering.state import HeldCause
from noetl_core.streams.state import Chunk, ChunkQueue, Place
from noetl_core.timestamps import format_time, parse_time

FORMAT = 2
"""Grows whenever older bytes would be misread; a state of another format is folded from the log again."""

_Fields = Mapping[str, Any]


def encode_state(state: State) -> bytes:
    """Canonical bytes of a state; facts that are absent or empty are left out."""
    return encode(state_object(state))


def decode_state(data: bytes) -> State:
    """The state that was encoded; raises `Corrupt` for anything else, other formats too."""
    try:
        value = decode(data)
    except NoetlError as exc:
        raise Corrupt(f"a stored state cannot be read: {exc.message}") from exc
    return read_state(value)


def read_state(value: JsonValue | _Fields) -> State:
    """The state of its JSON object, as queries show it; raises `Corrupt` as `decode_state` does."""
    try:
        if not isinstance(value, Mapping) or value.get("format") != FORMAT:
            raise Corrupt("this is no state of this format")
        return _state(value)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise Corrupt(f"a stored state cannot be read: {exc!r}") from exc
    except NoetlError as exc:
        raise Corrupt(f"a stored state cannot be read: {exc.message}") from exc


def state_object(state: State) -> JsonObject:
    """The JSON object of a state, as queries show it; 64-bit ids are text."""
    execution = state.execution
    return _present(
        {
            "format": FORMAT,
            "execution_id": str(execution.execution_id),
            "tenant_id": execution.tenant_id,
            "organization_id": execution.organization_id,
            "path": execution.path,
            "version": execution.version,
            "catalog_id": execution.catalog_id,
            "parent_execution_id": execution.parent_execution_id,
            "parent_call": execution.parent_call.to_json() if execution.parent_call else None,
            "depth": execution.depth,
            "children": execution.children,
            "answered": {call: {"step": one.step, "status": one.status} for call, one in execution.answered.items()},
            "cascades": execution.cascades,
            "workload": execution.workload.to_json() if execution.workload else None,
            "variables": dict(execution.variables),
            "variable_refs": dict(execution.variable_refs),
            "status": execution.status.value,
            "pauses": execution.pauses,
            "held": [cause.to_json() for cause in execution.held],
            "released": [cause.to_json() for cause in execution.released],
            "redrive_of": execution.redrive_of,
            "inherited": execution.inherited.to_json() if execution.inherited else None,
            "redriven_rows": dict(execution.redriven_rows) if execution.redriven_rows else None,
            "steps": {name: _step_object(step) for name, step in execution.steps.items()},
            "arrivals": [_arrival_object(one) for one in execution.arrivals],
            "streams": {step: queue.to_json() for step, queue in execution.streams.items()},
            "loops": {name: loop_object(loop) for name, loop in execution.loops.items()},
            "loop_progress": {name: loop_progress(loop) for name, loop in execution.loops.items()},
            "stages": {name: stage_object(stage) for name, stage in execution.stages.items()},
            "failure": execution.failure,
            "failed_chunk": execution.failed_chunk.to_json() if execution.failed_chunk else None,
            "deadline": _time_text(execution.deadline),
            "started_at": _time_text(execution.started_at),
            "ended_at": _time_text(execution.ended_at),
            "error": execution.error,
            "trace": execution.trace,
            "commands": {key: _command_object(command) for key, command in state.commands.items()},
            "stream_version": state.stream_version,
            "last_event_id": str(state.last_event_id),
            "last_event_type": state.last_event_type,
            "last_node_name": state.last_node_name,
            "event_time_watermark": _time_text(state.event_time_watermark),
            "unknown_events": state.unknown_events,
            "checkpoints": state.checkpoints,
            "checkpoint_version": state.checkpoint_version,
        }
    )


def _step_object(step: Step) -> JsonObject:
    return _present(
        {
            "status": step.status.value,
            "activation": step.activation,
            "cause_step": step.cause_step,
            "result": step.result,
            "deadline": _time_text(step.deadline),
            "chunk": step.chunk.to_json() if step.chunk else None,
            "made_at": step.made_at,
        }
    )


def _arrival_object(arrival: Arrival) -> JsonObject:
    chunk = {"chunk": arrival.chunk.to_json()} if arrival.chunk else {}
    times: JsonObject = {"times": arrival.times} if arrival.times > 1 else {}
    return {"step": arrival.step, "cause_step": arrival.cause_step, **chunk, **times}


def _command_object(command: Command) -> JsonObject:
    return _present(
        {
            "step": command.step,
            "activation": command.activation,
            "attempt": command.attempt,
            "pool": command.pool,
            "cause_step": command.cause_step,
            "pipeline": command.pipeline,
            "status": command.status.value,
            "issued_at": format_time(command.issued_at),
            "issued_version": command.issued_version,
            "trace": command.trace,
            "worker_id": command.worker_id,
            "worker_locator": command.worker_locator,
            "claimed_after": command.claimed_after,
            "lease_until": _time_text(command.lease_until),
            "aggregate_version": command.aggregate_version,
            "stream_version": command.stream_version,
            "ended_at": _time_text(command.ended_at),
            "evaluation": command.evaluation,
            "answer": command.answer,
            "parked": command.parked.to_json() if command.parked else None,
            "deadline": _time_text(command.deadline),
            "streamed": command.streamed.to_json() if command.streamed != Place() else None,
            "loop_id": command.loop_id,
            "loop_index": command.loop_index,
            "stage_id": command.stage_id,
        }
    )


def _present(fields: dict[str, Any]) -> JsonObject:
    # An empty object is a fact (a failure of {} is a failure); empty text, no items and zero read as absence does.
    return {key: value for key, value in fields.items() if value or (key in _EMPTY_IS_A_FACT and value is not None)}


_EMPTY_IS_A_FACT = frozenset({"failure", "error", "result", "evaluation", "answer"})


def _state(fields: _Fields) -> State:
    return State(
        execution=_execution(fields),
        commands={key: _command(key, one) for key, one in fields.get("commands", {}).items()},
        stream_version=fields.get("stream_version", 0),
        last_event_id=int(fields["last_event_id"]),
        last_event_type=fields.get("last_event_type", ""),
        last_node_name=fields.get("last_node_name", ""),
        event_time_watermark=_time(fields.get("event_time_watermark")),
        unknown_events=fields.get("unknown_events", 0),
        checkpoints=fields.get("checkpoints", 0),
        checkpoint_version=fields.get("checkpoint_version", 0),
    )


def _execution(fields: _Fields) -> Execution:
    return Execution(
        execution_id=int(fields["execution_id"]),
        tenant_id=fields.get("tenant_id", ""),
        organization_id=fields.get("organization_id", ""),
        path=fields.get("path", ""),
        version=fields.get("version", 0),
        catalog_id=fields.get("catalog_id", ""),
        parent_execution_id=fields.get("parent_execution_id", ""),
        parent_call=ParentCall.from_json(fields["parent_call"]) if "parent_call" in fields else None,
        depth=fields.get("depth", 0),
        children=fields.get("children", 0),
        answered={call: AnsweredCall(**one) for call, one in fields.get("answered", {}).items()},
        cascades=fields.get("cascades", False),
        workload=PayloadRef.from_json(fields["workload"]) if "workload" in fields else None,
        variables=fields.get("variables", {}),
        variable_refs=fields.get("variable_refs", {}),
        status=ExecutionStatus(fields["status"]),
        pauses=fields.get("pauses", 0),
        held=tuple(HeldCause.from_json(one) for one in fields.get("held", ())),
        released=tuple(HeldCause.from_json(one) for one in fields.get("released", ())),
        redrive_of=fields.get("redrive_of", ""),
        inherited=PayloadRef.from_json(fields["inherited"]) if "inherited" in fields else None,
        redriven_rows=fields.get("redriven_rows"),
        steps={name: _step(one) for name, one in fields.get("steps", {}).items()},
        arrivals=tuple(_arrival(one) for one in fields.get("arrivals", ())),
        streams={step: ChunkQueue.from_json(one) for step, one in fields.get("streams", {}).items()},
        loops={name: read_loop(one) for name, one in fields.get("loops", {}).items()},
        stages={name: read_stage(name, one) for name, one in fields.get("stages", {}).items()},
        failure=fields.get("failure"),
        failed_chunk=Chunk.from_json(fields["failed_chunk"]) if "failed_chunk" in fields else None,
        deadline=_time(fields.get("deadline")),
        started_at=_time(fields.get("started_at")),
        ended_at=_time(fields.get("ended_at")),
        error=fields.get("error"),
        trace=fields.get("trace", ""),
    )


def _step(fields: _Fields) -> Step:
    return Step(
        status=StepStatus(fields["status"]),
        activation=fields.get("activation", 0),
        cause_step=fields.get("cause_step", ""),
        result=fields.get("result"),
        deadline=_time(fields.get("deadline")),
        chunk=_chunk(fields),
        made_at=fields.get("made_at", ""),
    )


def _arrival(fields: _Fields) -> Arrival:
    times = fields.get("times", 1)
    return Arrival(step=fields["step"], cause_step=fields["cause_step"], chunk=_chunk(fields), times=times)


def _chunk(fields: _Fields) -> Chunk | None:
    return Chunk.from_json(fields["chunk"]) if "chunk" in fields else None


def _command(command_id: str, fields: _Fields) -> Command:
    return Command(
        command_id=command_id,
        step=fields.get("step", ""),
        activation=fields.get("activation", 0),
        attempt=fields.get("attempt", 0),
        pool=fields.get("pool", ""),
        cause_step=fields.get("cause_step", ""),
        pipeline=bool(fields.get("pipeline")),
        status=CommandStatus(fields["status"]),
        issued_at=parse_time(fields["issued_at"]),
        issued_version=fields.get("issued_version", 0),
        trace=fields.get("trace", ""),
        worker_id=fields.get("worker_id", ""),
        worker_locator=fields.get("worker_locator", ""),
        claimed_after=fields.get("claimed_after", ""),
        lease_until=_time(fields.get("lease_until")),
        aggregate_version=fields.get("aggregate_version", 0),
        stream_version=fields.get("stream_version", 0),
        ended_at=_time(fields.get("ended_at")),
        evaluation=fields.get("evaluation"),
        answer=fields.get("answer"),
        parked=ParkedCall.from_json(fields["parked"]) if "parked" in fields else None,
        deadline=_time(fields.get("deadline")),
        streamed=Place.from_json(fields.get("streamed")),
        loop_id=fields.get("loop_id", ""),
        loop_index=fields.get("loop_index", 0) if "loop_id" in fields else None,
        stage_id=fields.get("stage_id", ""),
    )


def _time_text(moment: datetime | None) -> str | None:
    return None if moment is None else format_time(moment)


def _time(text: JsonValue) -> datetime | None:
    return None if text is None else parse_time(str(text))
