"""One item of a loop, of a step or of a task: what its templates see of it, and what they set for it alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from noetl_core.canonical import JsonValue

from noetl_worker.application.frame_names import FrameNames


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
    frame: FrameNames | None = None
    """What templates see of the frame that it runs in, if it does."""

    def iterators(self) -> dict[str, object]:
        """The items under the names of their iterators; the innermost wins."""
        return {**(self.outer.iterators() if self.outer else {}), self.iterator: self.value}

    def names(self) -> dict[str, object]:
        """§6.4: what templates have from the runtime within a loop; names with an underscore also below `iter`."""
        first, last = self.index == 0, self.index == self.total - 1
        place = {"_index": self.index, "_first": first, "_last": last, "_total": self.total}
        names: dict[str, object] = {
            **place,
            "loop_index": self.index,
            "loop": {"index": self.index, "first": first, "length": self.total, "done": False},
        }
        frame = self._frame()
        if frame is None:
            names["iter"] = {**self.iterators(), **self._scopes(), **place}
        else:
            names["iter"] = {**self.iterators(), **self._scopes(), **frame.below_iter, **place}
            names.update(frame.beside)
        return names

    def _frame(self) -> FrameNames | None:
        """Its own, or that of the item that its task runs for."""
        return self.outer._frame() if self.frame is None and self.outer else self.frame

    def _scopes(self) -> dict[str, object]:
        return {**(self.outer._scopes() if self.outer else {}), **self.scope}
