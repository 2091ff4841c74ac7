"""Which rows of a frame failed, as its commit tells it: a result that looks like a failure may be none (§5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.errors import Corrupt
from noetl_core.loops.intervals import Intervals
from noetl_core.payloads import PayloadRef
from noetl_servicekit.stored_values import StoredValues

from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace

MAX_TOLD: Final = 100
"""Runs of failed rows that the event itself tells; more are stored."""
TOLD: Final = "failed_rows"
STORED: Final = "failed_rows_ref"


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


async def failed_places(result: Mapping[str, Any], values: StoredValues) -> Intervals | None:
    """The failed rows of a commit, by their places in its list; None if it does not tell."""
    context = result.get("context") or {}
    runs = context.get(TOLD)
    if runs is None and context.get(STORED):
        runs = await values.get(PayloadRef.from_json(context[STORED]))
    if runs is None:
        return None
    try:
        return tuple((int(first), int(last)) for first, last in runs)
    except (TypeError, ValueError) as exc:
        raise Corrupt("the failed rows of a frame are told in a way that nobody understands") from exc
