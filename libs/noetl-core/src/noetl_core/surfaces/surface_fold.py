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

_NO_OBJECTS: Mapping[str, Row] = MappingProxyType({})


class SurfaceFold:
    """One execution on its way through its events. Every change is a whole row, so the last one of a key counts.

    It begins at a state that was folded before, with the rows of those business objects that the coming events
    change (`touched_objects`); nothing else of what was written before is needed. Versions are for the caller to
    keep in order: what was folded is not folded again.
    """

    def __init__(self, state: State, objects: Mapping[str, Row] = _NO_OBJECTS) -> None:
        self.state = state
        self._objects = objects
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
            known = self._changed[Surface.BUSINESS_OBJECTS].get(key) or self._objects.get(key)
            changed.append((Surface.BUSINESS_OBJECTS, evolve_object(known, recorded.content, recorded)))
        # All of it or nothing: whoever goes on after an event that failed has the state and the rows before it.
        self.state = after
        for surface, row in changed:
            self._changed[surface][key_of(surface, row)] = row

    def add_all(self, events: Iterable[Recorded]) -> None:
        """Several events, in their order."""
        for recorded in events:
            self.add(recorded)

    @property
    def row_count(self) -> int:
        """How many rows have changed."""
        return sum(map(len, self._changed.values()))

    def changed_parts(self) -> Rows:
        """Rows of everything in the execution that differ from those of the beginning; not the execution's own."""
        return self._changed

    def changed(self) -> Rows:
        """Rows that differ from those of the beginning, as they are now; the execution's own is always among them."""
        if not self.state.stream_version:
            return self._changed
        row = execution_row(self.state)
        return {**self._changed, Surface.EXECUTION: {key_of(Surface.EXECUTION, row): row}}


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
