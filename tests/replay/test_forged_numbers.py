"""Histories that somebody forged: whatever number an event has, no fold takes memory in proportion to it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from noetl_core.canonical import JsonValue, decode, encode
from noetl_core.envelope import StoredEvent
from noetl_core.fold import State, empty
from noetl_core.journal import Journal, Settled
from noetl_core.recorded import Recorded, record
from noetl_core.replay.event_lines import read_event_line
from noetl_core.surfaces.surface_fold import Rows, SurfaceFold

CORPUS = Path(__file__).parent / "golden"
HISTORIES = sorted(one.name for one in CORPUS.iterdir() if one.is_dir())
FORGED = 1_000_000
"""A list of so many would show, and harms nobody."""
ENOUGH_BYTES = 4 * 1024 * 1024
"""Several times what a whole history of the corpus takes."""


def numbers_in(value: JsonValue, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if type(part) in (int, float):
            yield (*path, name)
        yield from numbers_in(part, (*path, name))


def forged(event: StoredEvent, path: tuple[str | int, ...]) -> StoredEvent:
    body: Any = decode(event.body)
    holder = body
    for name in path[:-1]:
        holder = holder[name]
    holder[path[-1]] = FORGED
    return event._replace(body=encode(body))


def places(events: list[StoredEvent]) -> Iterator[tuple[int, tuple[str | int, ...]]]:
    """Every number of every type of event, where the history has it first."""
    seen: set[tuple[str, tuple[str | int, ...]]] = set()
    for place, event in enumerate(events):
        for path in numbers_in(decode(event.body)):
            if (one := (event.envelope().event_type, path)) not in seen:
                seen.add(one)
                yield place, path


def fold_from(before: tuple[State, Rows], event: StoredEvent, following: list[Recorded]) -> None:
    """The surfaces of all that follows, and what routes it; an event that cannot be folded ends either."""
    state, rows = before
    surfaces = SurfaceFold(state, rows)
    journal = Journal(state.execution.execution_id, begins_with=Settled(state=state, event_checksum=""))
    with suppress(Exception):
        surfaces.add_all([record(event), *following])
    surfaces.changed()
    with suppress(Exception):
        journal.extend([event])
        journal.advance(at_head=True)


@pytest.mark.parametrize("name", HISTORIES)
def test_a_number_that_is_absurd_takes_no_memory(name: str) -> None:
    events = [read_event_line(line) for line in (CORPUS / name / "events.jsonl").read_bytes().splitlines()]
    recorded = [record(event) for event in events]
    fold = SurfaceFold(empty(recorded[0].envelope.execution_id))
    befores: list[tuple[State, Rows]] = []
    for one in recorded:
        befores.append((fold.state, {surface: dict(rows) for surface, rows in fold.changed().items()}))
        fold.add(one)
    taken: dict[tuple[str, tuple[str | int, ...]], int] = {}

    tracemalloc.start()
    try:
        for place, path in places(events):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            fold_from(befores[place], forged(events[place], path), recorded[place + 1 :])
            taken[recorded[place].envelope.event_type, path] = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()

    assert {one: peak for one, peak in taken.items() if peak > ENOUGH_BYTES} == {}
