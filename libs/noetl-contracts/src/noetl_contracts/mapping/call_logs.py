"""What calls printed, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noetl.execution.v1 import execution_pb2 as pb
from noetl_core.call_logs import CallLog, CallOutput, EndedCallLog

from noetl_contracts.mapping.times import moment, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBatch:
    """Logs that came at once; `terminal` comes with the last batch of an execution that is followed."""

    calls: Sequence[EndedCallLog]
    next_version: int
    terminal: bool


def call_log_message(call: EndedCallLog) -> pb.CallLog:
    """The log of one attempt as a message."""
    log = call.log
    return pb.CallLog(
        stream_version=call.stream_version,
        step=log.step,
        command_id=call.command_id,
        activation=log.activation,
        attempt=log.attempt,
        failed=call.failed,
        ended_at=timestamp(call.ended_at),
        outputs=[
            pb.CallOutput(task=one.task, run=one.run, stdout=one.stdout, stderr=one.stderr) for one in log.outputs
        ],
        left_out_runs=log.left_out_runs,
        first_runs=log.first_runs,
        missing=call.missing,
    )


def log_batch(message: pb.ReadLogsResponse) -> LogBatch:
    """Logs that came at once."""
    return LogBatch(
        calls=[_ended_call(one) for one in message.logs], next_version=message.next_version, terminal=message.terminal
    )


def _ended_call(message: pb.CallLog) -> EndedCallLog:
    log = CallLog(
        step=message.step,
        activation=message.activation,
        attempt=message.attempt,
        outputs=tuple(
            CallOutput(task=one.task, run=one.run, stdout=one.stdout, stderr=one.stderr) for one in message.outputs
        ),
        left_out_runs=message.left_out_runs,
        first_runs=message.first_runs,
    )
    return EndedCallLog(
        stream_version=message.stream_version,
        command_id=message.command_id,
        failed=message.failed,
        ended_at=moment(message.ended_at),
        log=log,
        missing=message.missing,
    )
