"""One item of a loop, of a step or of a task: what its templates see of it, and what they set for it alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from noetl_core.canonical import JsonValue

from noetl_worker.application.frame_names import FrameNames

NO_NAME: Final = object()
"""What there is under a name that nothing has."""
_OWN_NAMES = frozenset({"iter", "loop", "loop_index", "_index", "_first", "_last", "_total"})


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
    """What templates see of the frame that it runs in, if it does: its own, or that of the item around it."""

    _seen: dict[str, object] | None = field(default=None, init=False, repr=False, compare=False)
    """What `iter` is, while nothing was written to it."""

    def __post_init__(self) -> None:
        if self.frame is None and self.outer is not None:
            self.frame = self.outer.frame

    def iterators(self) -> dict[str, object]:
        """The items under the names of their iterators; the innermost wins."""
        return {**(self.outer.iterators() if self.outer else {}), self.iterator: self.value}

    def names(self) -> dict[str, object]:
        """§6.4: what templates have from the runtime within a loop; names with an underscore also below `iter`."""
        frame = self.frame
        names: dict[str, object] = {
            **self._place(),
            "loop_index": self.index,
            "loop": {"index": self.index, "first": self.index == 0, "length": self.total, "done": False},
            "iter": self._below_iter(),
        }
        return names if frame is None else {**names, **frame.beside}

    def item(self, name: str) -> object:
        """That of the innermost iterator of a name, or `NO_NAME`."""
        if name == self.iterator:
            return self.value
        return self.outer.item(name) if self.outer else NO_NAME

    def name(self, name: str) -> object:
        """As `names` has it, or `NO_NAME`."""
        frame = self.frame
        if frame is not None and name in frame.beside:
            return frame.beside[name]
        if name == "iter":
            return self._below_iter()
        return self.names()[name] if name in _OWN_NAMES else NO_NAME

    def has(self, name: str) -> bool:
        """Whether `names` or `iterators` has it."""
        if name in _OWN_NAMES or (self.frame is not None and name in self.frame.beside):
            return True
        return self.item(name) is not NO_NAME

    def _below_iter(self) -> dict[str, object]:
        frame = self.frame
        if frame is None or self.outer is not None or self.scope:
            below = {} if frame is None else frame.below_iter
            return {**self.iterators(), **self._scopes(), **below, **self._place()}
        if self._seen is None:  # as most rows of a frame are: all of their tasks see the same
            self._seen = {self.iterator: self.value, **frame.below_iter, **self._place()}
        return self._seen

    def _place(self) -> dict[str, object]:
        index, total = self.index, self.total
        return {"_index": index, "_first": index == 0, "_last": index == total - 1, "_total": total}

    def _scopes(self) -> dict[str, object]:
        return {**(self.outer._scopes() if self.outer else {}), **self.scope}
