"""An execution as its follower sees it: the fold of its events, and how long each step has been at it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from noetl_core.commands.events import CommandHeartbeat
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.envelope import StoredEvent
from noetl_core.executions.events import StepEntered, StepExited, StepSkipped
from noetl_core.executions.state import Step, StepStatus
from noetl_core.fold import State, empty, fold, prune
from noetl_core.recorded import record
from noetl_core.stages.events import FrameHeartbeat


class RowStatus(StrEnum):
    """Where a step stands, in the words of people."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One step; times are the server's."""

    step: str
    status: RowStatus
    activation: int = 0
    attempt: int = 0
    worker_id: str = ""
    entered_at: datetime | None = None
    ended_at: datetime | None = None
    error: Mapping[str, object] | None = None
    items: str = ""
    """How far its loop has come, if it has one."""
    call: str = ""
    """How far a long call is, if its tool says so."""

    def seconds(self, now: datetime) -> float | None:
        """How long it took, or has taken so far; None for a step that never ran."""
        if self.entered_at is None:
            return None
        return ((self.ended_at or now) - self.entered_at).total_seconds()


class Progress:
    """Folds events one by one; knows the server's time as well as its events tell it."""

    def __init__(self, execution_id: int) -> None:
        self.state: State = empty(execution_id)
        self._entered: dict[str, datetime] = {}
        self._exited: dict[str, datetime] = {}
        self._errors: dict[str, Mapping[str, object]] = {}
        self._calls: dict[str, str] = {}
        self._ahead: timedelta | None = None
        """Our clock minus the server's, and the shortest time that an event took to get here."""

    def take(self, event: StoredEvent, *, now: datetime) -> tuple[Row, ...]:
        """The rows that an event changed, as they are after it."""
        before = {row.step: row for row in self.rows()}
        recorded = record(event)
        self.state = prune(fold(self.state, recorded))
        self._note_times(recorded.content, recorded.ingest_time)
        late = now - recorded.ingest_time
        self._ahead = late if self._ahead is None else min(self._ahead, late)
        return tuple(row for row in self.rows() if before.get(row.step) != row)

    def server_time(self, now: datetime) -> datetime:
        """What the server's clock shows, to within the time that an event travels."""
        return now - self._ahead if self._ahead is not None else now

    def rows(self) -> tuple[Row, ...]:
        """Every step that was entered or skipped, in that order."""
        latest: dict[str, Command] = {}
        for command in self.state.commands.values():
            known = latest.get(command.step)
            if known is None or (command.activation, command.attempt) > (known.activation, known.attempt):
                latest[command.step] = command
        return tuple(self._row(name, step, latest.get(name)) for name, step in self.state.execution.steps.items())

    def seconds(self, now: datetime) -> float:
        """How long the execution took, or has taken so far."""
        execution = self.state.execution
        if execution.started_at is None:
            return 0.0
        return ((execution.ended_at or self.server_time(now)) - execution.started_at).total_seconds()

    def _row(self, name: str, step: Step, command: Command | None) -> Row:
        loop = self.state.execution.loops.get(name)
        if loop is not None and loop.activation == step.activation:
            return Row(
                step=name,
                status=RowStatus.RUNNING if step.status is StepStatus.ACTIVE else _status(step, None),
                activation=step.activation,
                entered_at=self._entered.get(name),
                ended_at=self._exited.get(name),
                error=self._errors.get(name),
                call=self._calls.get(name, ""),
                items=f"{loop.ended} of {loop.total} items" + (f", {loop.failed} failed" if loop.failed else ""),
            )
        return Row(
            step=name,
            status=_status(step, command),
            activation=step.activation,
            attempt=command.attempt if command is not None else 0,
            worker_id=command.worker_id if command is not None else "",
            entered_at=self._entered.get(name),
            ended_at=self._exited.get(name),
            error=self._errors.get(name),
            call=self._calls.get(name, ""),
        )

    def _note_times(self, content: object, ingest_time: datetime) -> None:
        match content:
            case StepEntered(step=step):
                self._entered[step] = ingest_time
                self._exited.pop(step, None)
                self._errors.pop(step, None)
                self._calls.pop(step, None)
            case CommandHeartbeat(step=step, progress=progress) | FrameHeartbeat(step=step, progress=progress):
                if progress:
                    self._calls[step] = _call_text(progress)
            case StepExited(step=step, error=error):
                self._exited[step] = ingest_time
                self._calls.pop(step, None)
                if error is not None:
                    self._errors[step] = error
            case StepSkipped():
                pass


def _status(step: Step, command: Command | None) -> RowStatus:
    match step.status:
        case StepStatus.DONE:
            return RowStatus.DONE
        case StepStatus.FAILED:
            return RowStatus.FAILED
        case StepStatus.SKIPPED:
            return RowStatus.SKIPPED
        case StepStatus.ACTIVE:
            waits = command is None or command.is_claimable or command.status is CommandStatus.PARKED
            return RowStatus.WAITING if waits else RowStatus.RUNNING


def _call_text(progress: Mapping[str, object]) -> str:
    """How far Spark is, in its own words; nothing of what another tool may tell one day."""
    if progress.get("engine") != "spark":
        return ""
    stages = f"stage {progress.get('stages_done')} of {progress.get('stages')}"
    return f"Spark: {stages}, task {progress.get('tasks_done')} of {progress.get('tasks')}"
