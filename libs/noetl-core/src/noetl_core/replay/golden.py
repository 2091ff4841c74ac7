"""What a history of the golden corpus must give, in every language: checksums on the way and rows at the end."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent
from noetl_core.replay.history import Replay
from noetl_core.surfaces.checksums import in_order
from noetl_core.surfaces.shapes import Surface


def expectation(events: Sequence[StoredEvent]) -> tuple[JsonObject, list[JsonObject]]:
    """The document of expected checksums, and the last rows with their surfaces, in the order in which they count.

    Checksums stand at the start, in the middle and at the end: a fold that is right at the end may have been wrong.
    """
    replay = Replay(events[0].envelope().execution_id)
    positions = sorted({1, max(len(events) // 2, 1), len(events)})
    checksums: list[JsonObject] = []
    for position in positions:
        replay.take(events[replay.version : position])
        checksums.append(replay.result().checksums())
    end = replay.result()
    expected: JsonObject = {
        "events": len(events),
        "last_event_checksum": end.checksum,
        "payload_root": end.payloads.root(),
        "positions": [*checksums],
    }
    rows: list[JsonObject] = [
        {"surface": str(surface), "row": dict(end.rows[surface][key])}
        for surface in Surface
        for key in in_order(end.rows[surface])
    ]
    return expected, rows
