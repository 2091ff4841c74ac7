"""What templates see of the frame that they run in (§6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl_core.canonical import JsonValue
from noetl_core.stages.rows import FrameRows


def frame_names(frame: FrameRows, rows: Sequence[JsonValue]) -> Mapping[str, object]:
    """The names of a frame; its rows have one more, where the tasks run once for each."""
    slot = f"{frame.stage_id}/{frame.slot}"
    return {
        "frame": {
            "index": frame.index,
            "base_index": frame.start,
            "row_count": len(rows),
            "rows": rows,
            "policy": frame.bounds.to_json(),
            "worker_slot_id": slot,
        },
        "_frame_index": frame.index,
        "_worker_slot_id": slot,
    }
