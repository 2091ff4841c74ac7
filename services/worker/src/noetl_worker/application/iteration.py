"""One item of a loop, of a step or of a task: what its templates see of it, and what they set for it alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl_core.canonical import JsonValue


@dataclass(slots=True, kw_only=True)
class Iteration:
    """The item at an index; within the item of another loop it sees that one too."""

    iterator: str
    value: JsonValue
    index: int
    total: int
    scope: dict[str, JsonValue] = field(default_factory=dict)
    """What `set` wrote to `iter`."""
    outer: Iteration | None = None
    frame: Mapping[str, object] | None = None
    """What templates see of the frame that it runs in, if it does."""

    def iterators(self) -> dict[str, object]:
        """The items under the names of their iterators; the innermost wins."""
        return {**(self.outer.iterators() if self.outer else {}), self.iterator: self.value}

    def names(self) -> dict[str, object]:
        """§6.4: what templates have from the runtime within a loop; names with an underscore also below `iter`."""
        first, last = self.index == 0, self.index == self.total - 1
        place = {"_index": self.index, "_first": first, "_last": last, "_total": self.total}
        frame = self._frame_names()
        of_frame = {name: value for name, value in frame.items() if name.startswith("_")}
        return {
            "iter": {**self.iterators(), **self._scopes(), **self._frame_rows(), **of_frame, **place},
            **place,
            "loop_index": self.index,
            "loop": {"index": self.index, "first": first, "length": self.total, "done": False},
            **frame,
        }

    def _frame_names(self) -> Mapping[str, object]:
        if self.frame is not None:
            return self.frame
        return self.outer._frame_names() if self.outer else {}

    def _frame_rows(self) -> dict[str, object]:
        """`iter.<it>_rows`: all rows of the frame, under the name of the iterator that it has."""
        if self.frame is None:
            return self.outer._frame_rows() if self.outer else {}
        about = self.frame["frame"]
        return {f"{self.iterator}_rows": about["rows"]} if isinstance(about, Mapping) else {}

    def _scopes(self) -> dict[str, object]:
        return {**(self.outer._scopes() if self.outer else {}), **self.scope}
