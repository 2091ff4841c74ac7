"""Connections that were not reset, since calls of the same task of a frame may come for them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from noetl_worker.application.open_frame import FrameTask, OpenFrame
from noetl_worker.tools.session_settings import Connection


class KeptSession(NamedTuple):
    """As its last call has left it."""

    connection: Connection
    since: float


class KeptSessions:
    """By whose they are."""

    def __init__(self) -> None:
        self._by_task: dict[FrameTask | None, list[KeptSession]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_task)

    def add(self, of_task: FrameTask, kept: KeptSession) -> None:
        """For calls of this task."""
        known = self._by_task.get(of_task)
        if known is None:
            self._by_task[of_task] = [kept]
        else:
            known.append(kept)

    def own(self, of_task: FrameTask | None) -> Connection | None:
        """The one that the task has used last."""
        known = self._by_task.get(of_task)
        return None if known is None else self._taken(of_task, known, -1).connection

    def last(self, of_task: FrameTask) -> Connection | None:
        """As `own`, which stays where it is."""
        known = self._by_task.get(of_task)
        return None if known is None else known[-1].connection

    def foreign(self) -> Connection | None:
        """Any, to be reset."""
        for of_task, known in self._by_task.items():
            return self._taken(of_task, known, 0).connection
        return None

    def resting(self, *, frame: OpenFrame | None, until: float) -> list[FrameTask]:
        """Whose they are that nobody has used since then, as often as there is one; of one frame or of all."""
        return [
            of_task
            for of_task, known in self._by_task.items()
            for one in known
            if of_task is not None and one.since <= until and (frame is None or of_task.frame is frame)
        ]

    def longest_resting(self, of_task: FrameTask, *, until: float) -> KeptSession | None:
        """That of a task, if it was not used since then."""
        known = self._by_task.get(of_task)
        return None if known is None or known[0].since > until else self._taken(of_task, known, 0)

    def _taken(self, of_task: FrameTask | None, known: list[KeptSession], place: int) -> KeptSession:
        kept = known.pop(place)
        if not known:
            del self._by_task[of_task]
        return kept
