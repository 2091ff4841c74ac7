"""Which rows of a frame failed, as its commit tells it: a result that looks like a failure may be none (§5.1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.loops.intervals import Intervals
from noetl_servicekit.failed_rows import STORED, TOLD

from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace

MAX_TOLD: Final = 100
"""Runs of failed rows that the event itself tells; more are stored."""


def places_of(failed: Iterable[int]) -> Intervals:
    """Places in the list of outcomes, in order, as runs."""
    runs: list[tuple[int, int]] = []
    for place in failed:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return tuple(runs)


async def told_failed(failed: Intervals, place: ResultPlace, persist: PersistBeforeEmit) -> JsonObject:
    """What the context of a commit says about rows that failed; raises what keeps a long list from being stored."""
    if not failed:
        return {}
    runs: list[JsonValue] = [[first, last] for first, last in failed]
    if len(runs) <= MAX_TOLD:
        return {TOLD: runs}
    return {STORED: (await persist.put(place, encode(runs))).to_json()}
