"""Names for things of an execution that are the same in every run of its playbook: no ids, no attempts."""

from __future__ import annotations

from collections.abc import Iterable

from noetl_core.commands.events import CommandAbandoned, CommandIssued
from noetl_core.ids import effect_key
from noetl_core.playbook.task_model import LoopMode
from noetl_core.recorded import Recorded
from noetl_core.stages.events import FrameAbandoned, FrameDispatched, StageOpened
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where in its playbook a command stands; all its attempts share it."""

    step: str
    activation: int
    index: int | None = None
    internal: bool = False

    def __str__(self) -> str:
        item = "" if self.index is None else f"[{self.index}]"
        return f"{'evaluation ' if self.internal else ''}{self.step}#{self.activation}{item}"


class Places:
    """Reads a history once, for the names of what is in it."""

    def __init__(self, events: Iterable[Recorded] = ()) -> None:
        self.commands: dict[str, Place] = {}
        self.abandoned: set[str] = set()
        """Commands, and attempts at frames, that were given up."""
        self._stages: dict[str, Place] = {}
        self._cursors: set[str] = set()
        self._frames: dict[str, tuple[str, int, int]] = {}
        for one in events:
            self.take(one)

    def take(self, one: Recorded) -> None:
        """One more event."""
        match one.content:
            case CommandIssued() as issued:
                self.commands[issued.command_id] = Place(
                    step=issued.step,
                    activation=issued.activation,
                    index=issued.loop_iteration_index,
                    internal=issued.evaluation is not None,
                )
            case CommandAbandoned(command_id=command_id):
                self.abandoned.add(command_id)
            case StageOpened() as opened:
                self._stages[opened.stage_id] = Place(step=opened.step, activation=opened.activation)
                if opened.mode == LoopMode.CURSOR:
                    self._cursors.add(opened.stage_id)
            case FrameDispatched() as given:
                self._frames[given.frame_id] = (given.stage_id, given.start, given.stop)
            case FrameAbandoned() as lost:
                self.abandoned.add(attempt_key(lost.frame_id, lost.attempt))

    def is_cursor(self, stage_id: str) -> bool:
        """Whether rows were claimed from outside: then nobody says which of them go into one frame."""
        return stage_id in self._cursors

    def frame(self, frame_id: str) -> str:
        """A frame by its rows."""
        stage_id, start, stop = self._frames[frame_id]
        return f"{self._stages[stage_id]} rows {start}..{stop}"

    def frame_effects(self, execution_id: int, frame_id: str) -> str:
        """What the keys for effects of its rows begin with."""
        stage = self._stages[self._frames[frame_id][0]]
        return effect_key(execution_id=execution_id, step=stage.step, activation=stage.activation)

    def stage(self, stage_id: str) -> str:
        """A stage by its step."""
        return str(self._stages[stage_id])


def attempt_key(frame_id: str, attempt: int) -> str:
    """One attempt at a frame."""
    return f"{frame_id}/{attempt}"
