"""A loop in a thread of its own, next to one that user code may block: it goes on, and notices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

TAKEN_SECONDS: Final = 10.0
"""A loop that turns takes at once what was done for it."""

T = TypeVar("T")


class ControlThread:
    """Lasts as long as the process."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_heed)
        threading.Thread(target=self._loop.run_forever, name="noetl-slots", daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def on_thread(self, work: Coroutine[Any, Any, T], *, give_up: Callable[[], None]) -> T:
        """Run something there, while the loop here goes on. If that no longer turns when it is done, give up."""
        taken = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                self._loop.call_later(TAKEN_SECONDS, lambda: None if taken.is_set() else give_up())

        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(watched(), self._loop))
        finally:
            taken.set()


def _heed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Two loops that use gRPC wake each other up, and one of them finds nothing to read.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
