"""What KEDA and the autoscaler would do with a pool, second by second, fed with a trace of arriving work.

The formula is theirs: KEDA looks every `polling_seconds` and wakes a pool of 0; the autoscaler looks every 15 s, wants
ceil(backlog / slots), leaves a pool alone within 10 % of that, at most doubles it (or adds four pods) each time, and
shrinks it only to the largest size wanted within the stabilization window. Pods take a while to start.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from noetl_cli.deploy.pool import WorkerPool

AUTOSCALER_SECONDS = 15
TOLERANCE = 0.1
MIN_STEP_PODS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The pool at the end of a second."""

    second: int
    arrived: int
    backlog: int
    """Commands that wait or run."""
    wanted: int
    replicas: int
    ready: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """How well a pool followed its work."""

    reaction_seconds: int | None
    """From the first work to the first pod that is ready for it; None if it never was."""
    peak_replicas: int
    changes: int
    reversals: int
    """Times that growing turned into shrinking or back: oscillation."""
    drained_second: int | None
    """When the last work was done; None if some was left."""


def simulate(
    pool: WorkerPool, arrivals: Sequence[int], *, command_seconds: int, start_seconds: int, after_seconds: int = 600
) -> Iterator[Moment]:
    """Feed arrivals, one number a second, then wait until the pool is at rest."""
    run = _Run(pool, command_seconds=command_seconds, start_seconds=start_seconds)
    for second in range(len(arrivals) + after_seconds):
        arrived = arrivals[second] if second < len(arrivals) else 0
        run.work(second, arrived)
        run.scale(second)
        yield Moment(
            second=second,
            arrived=arrived,
            backlog=run.backlog,
            wanted=run.wanted,
            replicas=run.replicas,
            ready=run.ready,
        )


class _Run:
    """A pool under way: commands in slots, pods on their way up, and what was wanted lately."""

    def __init__(self, pool: WorkerPool, *, command_seconds: int, start_seconds: int) -> None:
        self._pool, self._command_seconds, self._start_seconds = pool, command_seconds, start_seconds
        self.replicas = self.ready = self.wanted = pool.min_replicas
        self._waiting = 0
        self._ends: list[int] = []
        self._starting: list[int] = []
        self._lately: deque[tuple[int, int]] = deque()
        self._busy_second = 0

    @property
    def backlog(self) -> int:
        return self._waiting + len(self._ends)

    def work(self, second: int, arrived: int) -> None:
        """Commands end, pods become ready, free slots take what waits."""
        self._waiting += arrived
        while self._ends and self._ends[0] <= second:
            heapq.heappop(self._ends)
        self.ready += sum(1 for at in self._starting if at <= second)
        self._starting = [at for at in self._starting if at > second]
        taken = min(self._waiting, max(0, self.ready * self._pool.slots - len(self._ends)))
        for _ in range(taken):
            heapq.heappush(self._ends, second + self._command_seconds)
        self._waiting -= taken
        if self.backlog:
            self._busy_second = second

    def scale(self, second: int) -> None:
        """KEDA wakes a pool of 0, and puts it to sleep; in between the autoscaler decides."""
        pool = self._pool
        if self.replicas == 0:
            if self.backlog and second % pool.polling_seconds == 0:
                self._resize(1, second)
        elif not self.backlog and pool.min_replicas == 0 and second - self._busy_second >= pool.cooldown_seconds:
            self._resize(0, second)
            self._lately.clear()
        elif second % AUTOSCALER_SECONDS == 0:
            self.wanted = _wanted(pool, self.backlog, self.replicas)
            self._lately.append((second, self.wanted))
            while self._lately[0][0] < second - pool.stabilization_seconds:
                self._lately.popleft()
            self._resize(_target(self.replicas, self.wanted, max(size for _, size in self._lately)), second)

    def _resize(self, target: int, second: int) -> None:
        self._starting += [second + self._start_seconds] * (target - self.replicas)
        for _ in range(self.replicas - target):  # a pod that has not started goes first; one that runs ends its work
            if self._starting:
                self._starting.pop()
            else:
                self.ready -= 1
        self.replicas = target


def react(moments: Sequence[Moment]) -> Reaction:
    """What the trace shows."""
    first_work = next((one.second for one in moments if one.arrived), None)
    first_ready = next(
        (one.second for one in moments if first_work is not None and one.second >= first_work and one.ready), None
    )
    steps = [after.replicas - before.replicas for before, after in pairwise(moments)]
    moves = [step for step in steps if step]
    last_work = max((one.second for one in moments if one.backlog), default=None)
    done = last_work is None or last_work < moments[-1].second
    return Reaction(
        reaction_seconds=None if first_work is None or first_ready is None else first_ready - first_work,
        peak_replicas=max(one.replicas for one in moments),
        changes=len(moves),
        reversals=sum(1 for before, after in pairwise(moves) if (before > 0) != (after > 0)),
        drained_second=last_work if done else None,
    )


def burst(commands: int = 200) -> tuple[int, ...]:
    """All at once, on a pool at rest."""
    return (0,) * 30 + (commands,) + (0,) * 60


def waves(commands: int = 60, *, count: int = 5, every_seconds: int = 90) -> tuple[int, ...]:
    """Work that comes and goes: what makes a pool oscillate."""
    return tuple(commands if second % every_seconds == 0 else 0 for second in range(count * every_seconds))


def steady(per_second: int = 4, *, seconds: int = 300) -> tuple[int, ...]:
    """The same all the time."""
    return (per_second,) * seconds


def _wanted(pool: WorkerPool, backlog: int, replicas: int) -> int:
    ratio = backlog / (pool.slots * replicas)
    wanted = replicas if abs(ratio - 1.0) <= TOLERANCE else math.ceil(backlog / pool.slots)
    return max(1, pool.min_replicas, min(pool.max_replicas, wanted))


def _target(replicas: int, wanted: int, largest_lately: int) -> int:
    if wanted > replicas:
        return min(wanted, max(2 * replicas, replicas + MIN_STEP_PODS))
    return min(replicas, largest_lately)
