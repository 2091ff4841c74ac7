"""Commands, claims and completions as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from google.protobuf.duration_pb2 import Duration
from noetl.command.v1 import command_pb2 as pb
from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.children.state import ParkedCall
from noetl_core.errors import InvalidInput
from noetl_core.ids import parse_id
from noetl_core.placement import ANYWHERE, Locality, max_distance_of
from noetl_core.ports.commands import (
    ClaimOutcome,
    CommandKey,
    Completion,
    GrantedCommand,
    Heartbeats,
    LoopItem,
    Variables,
    Worker,
)
from noetl_core.ports.steering import SteerAction

from noetl_contracts.mapping import streams
from noetl_contracts.mapping.events import json_object, payload_ref, payload_ref_message
from noetl_contracts.mapping.times import moment, timestamp

MAX_PROGRESS_BYTES: Final = 1024

STEER_ACTIONS: Final[Mapping[SteerAction, pb.SteerAction.ValueType]] = {
    SteerAction.PAUSE: pb.STEER_ACTION_PAUSE,
    SteerAction.RESUME: pb.STEER_ACTION_RESUME,
}


def steer_action(message: pb.SteerAction.ValueType) -> SteerAction:
    """What is to be done to an execution."""
    action = next((one for one, value in STEER_ACTIONS.items() if value == message), None)
    if action is None:
        raise InvalidInput("say what to do: pause or resume")
    return action


def worker_message(worker: Worker) -> pb.Worker:
    """A worker as a message."""
    return pb.Worker(
        worker_id=worker.worker_id,
        pool=worker.pool,
        locator=worker.locator,
        locality=_locality_message(worker.locality),
    )


def worker(message: pb.Worker) -> Worker:
    """A worker."""
    locality = _locality(message.locality) if message.HasField("locality") else ANYWHERE
    return Worker(worker_id=message.worker_id, pool=message.pool, locator=message.locator, locality=locality)


def _locality_message(locality: Locality) -> pb.Locality | None:
    if locality == ANYWHERE:
        return None
    return pb.Locality(
        prefer_node=locality.prefer_node,
        prefer_zone=locality.prefer_zone,
        max_distance=locality.max_distance.value,
        source_locality=locality.source,
    )


def _locality(message: pb.Locality) -> Locality:
    return Locality(
        prefer_node=message.prefer_node,
        prefer_zone=message.prefer_zone,
        max_distance=max_distance_of(message.max_distance),
        source=message.source_locality,
    )


def progress(data: bytes) -> JsonObject:
    """How far a call is, as its worker tells it; raises `InvalidInput` for more than an event should carry."""
    if len(data) > MAX_PROGRESS_BYTES:
        raise InvalidInput(f"progress is told in at most {MAX_PROGRESS_BYTES} bytes")
    return json_object(data, "progress_json")


def key_message(key: CommandKey) -> pb.CommandKey:
    """A command's name as a message."""
    return pb.CommandKey(execution_id=str(key.execution_id), command_id=key.command_id)


def key(message: pb.CommandKey) -> CommandKey:
    """A command's name."""
    return CommandKey(execution_id=parse_id(message.execution_id), command_id=message.command_id)


def variables_message(variables: Variables) -> pb.Variables | None:
    """Variables as a message, if there are any."""
    if not variables:
        return None
    refs = {name: payload_ref_message(ref) for name, ref in variables.refs.items()}
    return pb.Variables(
        values_json=encode(dict(variables.values)) if variables.values else b"",
        refs={name: ref for name, ref in refs.items() if ref is not None},
    )


def variables(message: pb.Variables) -> Variables:
    """Variables."""
    return Variables(
        values=json_object(message.values_json, "values_json"),
        refs={name: payload_ref(ref) for name, ref in message.refs.items()},
    )


def item_message(item: LoopItem | None) -> pb.LoopItem | None:
    """An item of a loop as a message, if there is one."""
    if item is None:
        return None
    return pb.LoopItem(
        loop_id=item.loop_id,
        index=item.index,
        total=item.total,
        value_json=b"" if item.collection else encode(item.value),
        collection=payload_ref_message(item.collection),
    )


def item(message: pb.LoopItem) -> LoopItem:
    """An item of a loop."""
    return LoopItem(
        loop_id=message.loop_id,
        index=message.index,
        total=message.total,
        value=decode(message.value_json) if message.value_json else None,
        collection=payload_ref(message.collection) if message.HasField("collection") else None,
    )


def command_message(command: GrantedCommand) -> pb.Command:
    """A granted command as a message."""
    return pb.Command(
        key=key_message(command.key),
        tenant_id=command.tenant_id,
        organization_id=command.organization_id,
        catalog_id=command.catalog_id,
        step=command.step,
        activation=command.activation,
        attempt=command.attempt,
        workload=payload_ref_message(command.workload),
        results=[
            pb.StepResult(step=step, result_json=encode(dict(result))) for step, result in command.results.items()
        ],
        lease=duration_message(command.lease_seconds),
        trace=command.trace,
        cause_step=command.cause_step,
        idempotency_key=command.idempotency_key,
        issued_at=timestamp(command.issued_at),
        variables=variables_message(command.variables),
        evaluation_json=b"" if command.evaluation is None else encode(dict(command.evaluation)),
        pool=command.pool,
        pipeline=command.pipeline,
        parked=parked_call_message(command.parked) if command.parked else None,
        chunk=streams.chunk_message(command.chunk),
        streamed=streams.place_message(command.streamed),
        item=item_message(command.item),
    )


def command(message: pb.Command) -> GrantedCommand:
    """A granted command."""
    return GrantedCommand(
        key=key(message.key),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        catalog_id=message.catalog_id,
        step=message.step,
        activation=message.activation,
        attempt=message.attempt,
        workload=payload_ref(message.workload) if message.HasField("workload") else None,
        results={one.step: json_object(one.result_json, "result_json") for one in message.results},
        lease_seconds=message.lease.seconds + message.lease.nanos / 1_000_000_000,
        trace=message.trace,
        cause_step=message.cause_step,
        idempotency_key=message.idempotency_key,
        issued_at=moment(message.issued_at),
        variables=variables(message.variables),
        evaluation=json_object(message.evaluation_json, "evaluation_json") or None,
        pool=message.pool or "default",
        pipeline=message.pipeline,
        parked=parked_call(message.parked) if message.HasField("parked") else None,
        chunk=streams.chunk(message),
        streamed=streams.place(message),
        item=item(message.item) if message.HasField("item") else None,
    )


def parked_call_message(call: ParkedCall) -> pb.ParkedCall:
    """A call that waits or has waited, as a message."""
    return pb.ParkedCall(
        call_id=call.call_id,
        child_execution_id=call.child_execution_id,
        pipeline=payload_ref_message(call.pipeline),
        status=call.status,
    )


def parked_call(message: pb.ParkedCall) -> ParkedCall:
    """A call that waits or has waited."""
    return ParkedCall(
        call_id=message.call_id,
        child_execution_id=message.child_execution_id,
        pipeline=payload_ref(message.pipeline),
        status=message.status,
    )


def duration_message(seconds: float) -> Duration:
    """A time span as a message."""
    micros = round(seconds * 1_000_000)
    return Duration(seconds=micros // 1_000_000, nanos=micros % 1_000_000 * 1000)


def claim_outcome_message(outcome: ClaimOutcome) -> pb.ClaimOutcome:
    """The outcome of one claim as a message."""
    return pb.ClaimOutcome(
        key=key_message(outcome.key),
        command=command_message(outcome.command) if outcome.command else None,
        refusal=outcome.refusal,
    )


def claim_outcome(message: pb.ClaimOutcome) -> ClaimOutcome:
    """The outcome of one claim."""
    return ClaimOutcome(
        key=key(message.key),
        command=command(message.command) if message.HasField("command") else None,
        refusal=message.refusal,
    )


def completion_message(completion: Completion) -> pb.CompleteResponse:
    """What a completion leads to, as a message."""
    return pb.CompleteResponse(
        next=command_message(completion.next) if completion.next else None,
        stream_version=completion.stream_version,
    )


def completion(message: pb.CompleteResponse) -> Completion:
    """What a completion leads to."""
    return Completion(
        next=command(message.next) if message.HasField("next") else None,
        stream_version=message.stream_version,
    )


def heartbeats_message(beats: Heartbeats) -> pb.HeartbeatResponse:
    """What became of a round of heartbeats, as a message."""
    return pb.HeartbeatResponse(
        lost=[key_message(one) for one in beats.lost], unanswered=[key_message(one) for one in beats.unanswered]
    )


def heartbeats(message: pb.HeartbeatResponse) -> Heartbeats:
    """What became of a round of heartbeats."""
    return Heartbeats(
        lost=frozenset(key(one) for one in message.lost),
        unanswered=frozenset(key(one) for one in message.unanswered),
    )
