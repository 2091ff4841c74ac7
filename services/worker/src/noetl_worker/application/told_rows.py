"""What has become of the rows of a frame: counts, the first error, and the outcomes that are stored as one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.stages.rows import FrameRows

from noetl_worker.application.call_times import CallTimes
from noetl_worker.application.persist_before_emit import told_alone
from noetl_worker.application.pipeline_run import PipelineEnd


@dataclass(slots=True, kw_only=True)
class ToldRows:
    """What has become of the rows so far."""

    bodies: list[bytes] = field(default_factory=list)
    success: int = 0
    failed: int = 0
    breaks: int = 0
    first_error: JsonObject | None = None
    failed_places: list[int] = field(default_factory=list)
    variables: dict[str, JsonValue] = field(default_factory=dict)
    stop: int = 0
    """Where the rows begin that have not run."""

    @classmethod
    def of(cls, frame: FrameRows, ends: Sequence[PipelineEnd], rows: Sequence[JsonValue]) -> ToldRows:
        """The outcomes of rows, or the one of all of them."""
        told = cls(stop=frame.start + len(ends))
        for number, end in enumerate(ends):
            told.take(frame.start + number, end)
        if frame.bounds.process == "frame":
            told.stop, told.success = frame.start + len(rows), len(rows)
            told.breaks = len(rows) if told.breaks else 0
        return told

    def metrics(self, ends: Sequence[PipelineEnd]) -> JsonObject:
        """R080: how rows ended, and where their time went."""
        times = CallTimes().add(end.run.times for end in ends if end.run is not None)
        rows: JsonObject = {"ok": self.success - self.breaks, "break": self.breaks, "error": self.failed}
        return {"rows": rows, "tasks": times.told()}

    def take(self, index: int, end: PipelineEnd) -> None:
        """The outcome of the row at an index of the loop."""
        outcome, body = told_alone(end.outcome)
        self.bodies.append(body)
        self.variables.update(end.variables)
        if outcome.error is None:
            self.success += 1
            self.breaks += end.broke
            return
        self.failed += 1
        self.failed_places.append(len(self.bodies) - 1)
        error = outcome.error
        self.first_error = self.first_error or {
            "index": index,
            "code": error.code[:128],
            "message": error.message[:500],
        }
