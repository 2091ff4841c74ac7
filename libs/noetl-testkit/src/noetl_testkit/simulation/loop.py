"""An event loop with virtual time: nothing waits, and processes can die between any two steps."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Process:
    """What a handle belongs to. A dead process never takes another step; one that is stopped takes them later."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.runs = True
        self.is_dead = False
        self.stalled: list[asyncio.Handle] = []
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class VirtualLoop(asyncio.AbstractEventLoop):
    """Steps and time are counted, so that faults can be placed by number."""

    def __init__(self) -> None:
        self.steps = 0
        self.interruptions: dict[int, Callable[[], None]] = {}
        """What happens before a step, by its number."""
        self.unhandled: list[str] = []
        """What nobody caught: a bug, whatever it is."""
        self._now = 0.0
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._processes: list[Process] = []
        self._is_ending = False

    def process(self, name: str) -> Process:
        """A new one."""
        process = Process(name)
        self._processes.append(process)
        return process

    def time(self) -> float:
        return self._now

    def run_while(self, goes_on: Callable[[], bool]) -> None:
        """Run step by step, as long as there is anything to run and, whenever time moves, the condition holds."""
        asyncio._set_running_loop(self)
        try:
            while True:
                self._run_ready()
                while self._timers and self._timers[0][2].cancelled():
                    heapq.heappop(self._timers)
                if not self._timers or not goes_on():
                    return
                self._now = max(self._now, self._timers[0][0])
                while self._timers and self._timers[0][0] <= self._now:
                    self._ready.append(heapq.heappop(self._timers)[2])
        finally:
            asyncio._set_running_loop(None)

    def _run_ready(self) -> None:
        ready = self._ready
        while ready:
            handle = ready.popleft()
            if handle.cancelled():
                continue
            process = handle._context.get(CURRENT)  # type: ignore[attr-defined]
            if process is None or process.runs:
                self.steps += 1
                if self.steps in self.interruptions:
                    self.interruptions[self.steps]()
            if process is None or process.runs:  # or was it stopped before this very step?
                handle._run()
            else:
                process.stalled.append(handle)

    def thaw(self, process: Process) -> None:
        """Let a process that was stopped go on with all that waits for it."""
        if not process.is_dead:
            process.runs = True
            self._ready.extend(process.stalled)
            process.stalled = []

    def end(self) -> None:
        """Nobody goes on: whatever is pending is cancelled, in the order in which it began."""
        self.interruptions = {}
        self._is_ending = True
        for _ in range(100):
            pending = [task for task in self._tasks if not task.done()]
            self._tasks = pending
            if not pending:
                break
            for task in pending:
                task.cancel()
            for process in self._processes:  # also what the dead never came to, as nobody looks any more
                self._ready.extend(process.stalled)
                process.stalled = []
            self._timers = []
            left = 10_000
            while self._ready and left:
                self._run_anything(self._ready.popleft())
                left -= 1
        self._timers, self._tasks = [], []
        self._ready.clear()

    def _run_anything(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            asyncio._set_running_loop(self)
            try:
                handle._run()
            finally:
                asyncio._set_running_loop(None)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        # Whoever waits at all waits long enough for the clock to move: a loop that waits for it would never end.
        return self.call_at(self._now + (max(delay, 1e-6) if delay > 0 else 0.0), callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Any = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        if self._is_ending:
            task.cancel()
        self._tasks.append(task)  # kept, since one that is forgotten would clean up after itself at any time
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        """At once, in this thread: threads have orders of their own."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.unhandled.append(f"{context.get('message')}: {context.get('exception')!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def run_until(self, work: Coroutine[Any, Any, None]) -> None:
        """Run one coroutine of nobody's process to its end."""
        asyncio._set_running_loop(self)
        try:
            task = self.create_task(work)
        finally:
            asyncio._set_running_loop(None)
        self.run_while(lambda: not task.done())
        task.result()
