"""Client processes that begin at the same moment, so that the client is not what is measured."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from threading import BrokenBarrierError
from types import TracebackType
from typing import Protocol, Self, TypeVar

_PREPARE_SECONDS = 60.0
JobT = TypeVar("JobT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What one process did, or several together, by the clock that all processes of the machine share."""

    events: int
    begun: float
    ended: float

    @property
    def rate(self) -> float:
        """Events per second."""
        return self.events / (self.ended - self.begun)


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


class _Meeting:
    """Set once in each client process."""

    barrier: _Barrier | None = None


def begin_together() -> None:
    """Called in a client process when it is prepared: returns when all are."""
    if _Meeting.barrier is None:
        return
    try:
        _Meeting.barrier.wait(_PREPARE_SECONDS)
    except BrokenBarrierError:
        raise RuntimeError("another client failed before the start") from None


def _join(barrier: _Barrier) -> None:
    _Meeting.barrier = barrier


class Clients:
    """A few processes that are started once and used for every round."""

    def __init__(self, count: int) -> None:
        self.count = count
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self._executor = ProcessPoolExecutor(
            max_workers=count, mp_context=context, initializer=_join, initargs=(context.Barrier(count),)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    async def run(self, work: Callable[[JobT], Timing], jobs: Sequence[JobT]) -> Timing:
        """One job a process; returns what they did together, from the first start to the last end."""
        if len(jobs) != self.count:
            raise ValueError(f"{self.count} clients need as many jobs, not {len(jobs)}")
        loop = asyncio.get_running_loop()
        timings = await asyncio.gather(*(loop.run_in_executor(self._executor, work, job) for job in jobs))
        return Timing(
            events=sum(timing.events for timing in timings),
            begun=min(timing.begun for timing in timings),
            ended=max(timing.ended for timing in timings),
        )
