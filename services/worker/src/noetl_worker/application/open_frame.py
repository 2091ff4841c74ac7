"""What the calls of one frame may leave for each other, for as long as the frame runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class OpenFrame:
    """A frame that runs; who keeps something for its calls wants to hear of its end."""

    __slots__ = ("_keepers",)

    def __init__(self) -> None:
        self._keepers: set[Callable[[OpenFrame], None]] = set()

    def tell_at_end(self, keeper: Callable[[OpenFrame], None]) -> None:
        """Once, however often it is asked for."""
        self._keepers.add(keeper)

    def end(self) -> None:
        """Nothing is for its calls any more."""
        keepers, self._keepers = self._keepers, set()
        for keeper in keepers:
            keeper(self)


class FrameTask(NamedTuple):
    """The calls of one task in one frame: they have one execution, one step and one author."""

    frame: OpenFrame
    task: str


_open: ContextVar[OpenFrame | None] = ContextVar("the frame that runs", default=None)


@contextmanager
def open_frame() -> Iterator[None]:
    """Whatever is called in here, by this task or by those that it starts, belongs to the frame."""
    frame = OpenFrame()
    token = _open.set(frame)
    try:
        yield
    finally:
        _open.reset(token)
        frame.end()


def frame_task(task: str) -> FrameTask | None:
    """Of the call that asks; outside of frames every call is by itself."""
    frame = _open.get()
    return None if frame is None else FrameTask(frame, task)
