"""What user code printed during the calls of one command, as it is stored beside the results and shown to people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import Corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput:
    """One run of one task."""

    task: str
    run: int
    """Which run of the task's retries, from 1."""
    stdout: str = ""
    stderr: str = ""

    @property
    def size(self) -> int:
        """How much room it takes, roughly."""
        return len(self.stdout) + len(self.stderr)

    def to_json(self) -> JsonObject:
        """The stored form."""
        return {"task": self.task, "run": self.run, "stdout": self.stdout, "stderr": self.stderr}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLog:
    """One attempt at one activation of a step; of very many runs the first and the last are kept."""

    step: str
    activation: int
    attempt: int
    outputs: tuple[CallOutput, ...] = ()
    left_out_runs: int = 0
    """Runs between the first and the last that were not kept."""
    first_runs: int = 0
    """How many of the outputs stand before those that were left out."""

    @property
    def size(self) -> int:
        """How much room it takes, roughly."""
        return sum(output.size for output in self.outputs)

    def to_json(self) -> JsonObject:
        """The stored form."""
        return {
            "step": self.step,
            "activation": self.activation,
            "attempt": self.attempt,
            "outputs": [output.to_json() for output in self.outputs],
            "left_out_runs": self.left_out_runs,
            "first_runs": self.first_runs,
        }

    @classmethod
    def from_json(cls, value: JsonValue) -> CallLog:
        """Read the stored form; raises `Corrupt` for anything else."""
        match value:
            case {
                "step": str(step),
                "activation": int(activation),
                "attempt": int(attempt),
                "outputs": list(outputs),
                "left_out_runs": int(left_out),
                "first_runs": int(first),
            }:
                return cls(
                    step=step,
                    activation=activation,
                    attempt=attempt,
                    outputs=tuple(map(_output, outputs)),
                    left_out_runs=left_out,
                    first_runs=first,
                )
            case _:
                raise Corrupt("these bytes are not what calls printed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCallLog:
    """What one attempt printed, and how it ended; `missing` says why the output cannot be read any more."""

    stream_version: int
    command_id: str
    failed: bool
    ended_at: datetime
    log: CallLog
    missing: str = ""


def _output(value: JsonValue | Mapping[str, object]) -> CallOutput:
    match value:
        case {"task": str(task), "run": int(run), "stdout": str(stdout), "stderr": str(stderr)}:
            return CallOutput(task=task, run=run, stdout=stdout, stderr=stderr)
        case _:
            raise Corrupt("these bytes are not what a call printed")
