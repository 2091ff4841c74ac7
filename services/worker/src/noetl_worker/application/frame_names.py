"""What templates see of the frame that they run in (§6.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from noetl_core.canonical import JsonValue
from noetl_core.stages.rows import FrameRows

from noetl_worker.application.light_values import light_value


@light_value(frozen=True, slots=True, kw_only=True)
class FrameNames:
    """What tasks see of their frame, put together once for all of its rows."""

    beside: Mapping[str, object]
    """Under names of their own."""
    below_iter: Mapping[str, object]
    """Of those, what has an underscore; and `iter.<it>_rows`, all rows under the name of the iterator."""

    @classmethod
    def of(cls, frame: FrameRows, rows: Sequence[JsonValue], *, iterator: str) -> FrameNames:
        """Of a frame whose tasks run once for all rows."""
        names = frame_names(frame, rows)
        hidden = {name: value for name, value in names.items() if name.startswith("_")}
        return cls(beside=names, below_iter={f"{iterator}_rows": rows, **hidden})

    def of_row(self, number: int) -> FrameNames:
        """Where the tasks run once for each row, it has a number."""
        own = {"_frame_row_index": number}
        return FrameNames(beside={**self.beside, **own}, below_iter={**self.below_iter, **own})


def frame_names(frame: FrameRows, rows: Sequence[JsonValue]) -> Mapping[str, object]:
    """The names of a frame."""
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
