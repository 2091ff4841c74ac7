"""Folds events one at a time and remembers the rows they change: for the projector a batch, for replay a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from noetl_core.business_objects.events import ObjectChanged
from noetl_core.business_objects.fold import evolve as evolve_object
from noetl_core.canonical import JsonObject
from noetl_core.fold import State, fold
from noetl_core.recorded import Recorded
from noetl_core.surfaces.command_rows import changed_commands
from noetl_core.surfaces.execution_rows import execution_row
from noetl_core.surfaces.loop_rows import changed_loops
from noetl_core.surfaces.shapes import Row, Surface, key_of
from noetl_core.surfaces.stage_rows import changed_frames, changed_stage

Rows = Mapping[Surface, Mapping[str, Row]]
"""Rows by surface and key."""

_NO_ROWS: Mapping[str, Row] = MappingProxyType({})
_NOTHING: Rows = MappingProxyType({})


class SurfaceFold:
    """One execution on its way through its events. Every change is a whole row, so the last one of a key counts.

    It begins at a state that was folded before, with rows that are known of it: those of the business objects that
    the coming events change (`touched_objects`) are needed, all others only count. Versions are for the caller to
    keep in order: what was folded is not folded again.
    """

    def __init__(self, state: State, known: Rows = _NOTHING) -> None:
        self.state = state
        self._known = known
        self._parts = sum(len(rows) for surface, rows in known.items() if surface is not Surface.EXECUTION)
        self._changed: dict[Surface, dict[str, JsonObject]] = {surface: {} for surface in Surface}

    def add(self, recorded: Recorded) -> None:
        """The next event."""
        after = fold(self.state, recorded)
        if recorded.content is None and after.execution is self.state.execution:
            self.state = after  # it only has a place: rows follow from the execution and its commands
            return
        changed = list(changes(self.state, after, recorded))
        if isinstance(recorded.content, ObjectChanged):
            key = recorded.content.key
            known = self._row(Surface.BUSINESS_OBJECTS, key)
            changed.append((Surface.BUSINESS_OBJECTS, evolve_object(known, recorded.content, recorded)))
        # All of it or nothing: whoever goes on after an event that failed has the state and the rows before it.
        self.state = after
        for surface, row in changed:
            key = key_of(surface, row)
            self._parts += self._row(surface, key) is None
            self._changed[surface][key] = row

    def add_all(self, events: Iterable[Recorded]) -> None:
        """Several events, in their order."""
        for recorded in events:
            self.add(recorded)

    @property
    def row_count(self) -> int:
        """How many rows there are, those that it began with too: the same wherever it began with all of them."""
        return self._parts + bool(self.state.stream_version)

    def changed_parts(self) -> Rows:
        """Rows of everything in the execution that differ from those of the beginning; not the execution's own."""
        return self._changed

    def changed(self) -> Rows:
        """Rows that differ from those of the beginning, as they are now; the execution's own is always among them."""
        if not self.state.stream_version:
            return self._changed
        row = execution_row(self.state)
        return {**self._changed, Surface.EXECUTION: {key_of(Surface.EXECUTION, row): row}}

    def _row(self, surface: Surface, key: str) -> Row | None:
        return self._changed[surface].get(key) or self._known.get(surface, _NO_ROWS).get(key)


def changes(before: State, after: State, recorded: Recorded) -> Iterator[tuple[Surface, JsonObject]]:
    """What one event changes in the rows that are a function of the state; the execution's own changes with each."""
    for row in changed_commands(before, after, recorded):
        yield Surface.COMMANDS, row
    for row in changed_loops(before, after, recorded):
        yield Surface.LOOPS, row
    if (stage := changed_stage(before, after, recorded)) is not None:
        yield Surface.STAGES, stage
    for row in changed_frames(before, after, recorded):
        yield Surface.FRAMES, row


def touched_objects(events: Iterable[Recorded]) -> frozenset[str]:
    """Keys of the business objects that events change."""
    return frozenset(one.content.key for one in events if isinstance(one.content, ObjectChanged))
