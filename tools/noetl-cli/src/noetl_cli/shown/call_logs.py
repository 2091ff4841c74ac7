"""What calls printed, for people and programs."""

from collections.abc import Iterator
from typing import Any

from noetl_core.call_logs import CallOutput, EndedCallLog

from noetl_cli.shown.durations import time_text
from noetl_cli.shown.text import one_line


def call_log_document(call: EndedCallLog) -> dict[str, Any]:
    """For programs; every key is always there."""
    return {
        "stream_version": call.stream_version,
        "command_id": call.command_id,
        "failed": call.failed,
        "ended_at": time_text(call.ended_at),
        **call.log.to_json(),
        "missing": call.missing or None,
    }


def call_log_lines(call: EndedCallLog) -> Iterator[str]:
    """A head for the attempt, then every line with the step before it: `|` what it printed, `!` its errors."""
    log = call.log
    clock = (time_text(call.ended_at) or "")[11:23]
    visit = f" visit {log.activation}" if log.activation > 1 else ""
    attempt = f" attempt {log.attempt}" if log.attempt > 1 else ""
    yield one_line(f"--- {clock}  {log.step}{visit}{attempt}{' failed' if call.failed else ''}")
    if call.missing:
        yield one_line(f"{log.step} ! the output cannot be shown: {call.missing}")
    for place, output in enumerate(log.outputs):
        if log.left_out_runs and place == log.first_runs:
            yield one_line(f"{log.step} | ... {log.left_out_runs} runs are left out here")
        yield from _output_lines(output, name=_name(log.step, output))


def _name(step: str, output: CallOutput) -> str:
    task = "" if output.task == f"{step}_task" else f".{output.task}"
    return f"{step}{task}" + (f" (run {output.run})" if output.run > 1 else "")


def _output_lines(output: CallOutput, *, name: str) -> Iterator[str]:
    for mark, text in (("|", output.stdout), ("!", output.stderr)):
        for line in text.splitlines():
            yield one_line(f"{name} {mark} {line}")
