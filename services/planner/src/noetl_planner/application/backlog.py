"""How much work each pool of workers has: what a scaler goes by."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from noetl_core.commands.state import CommandStatus
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State
from noetl_core.stages.state import Stage

WAITING: Final = "waiting"
RUNNING: Final = "running"
STATES: Final = (WAITING, RUNNING)
STAGE_KINDS: Final = ("loop", "fanout", "reduce")
MAX_POOLS: Final = 200
"""Playbooks name pools, and each is a line of metrics: beyond this many, the smallest are counted together."""
OTHERS: Final = "_others"

_RUNNING = frozenset({CommandStatus.CLAIMED, CommandStatus.STARTED})

Backlog = Mapping[tuple[str, str], int]
"""Commands by pool and state."""
FrameBacklog = Mapping[tuple[str, str, str, str], int]
"""Frames by tenant, organization, kind of stage and state."""
ALL: Final = "all"


def backlog_of(states: Iterable[State]) -> Backlog:
    """Commands and frames that a worker runs or could run now; those of a paused execution run, but wait for nobody."""
    counts: Counter[tuple[str, str]] = Counter()
    for state in states:
        may_start = state.execution.status is ExecutionStatus.RUNNING
        for command in state.commands.values():
            if command.is_claimable and may_start:
                counts[command.pool, WAITING] += 1
            elif command.status in _RUNNING:
                counts[command.pool, RUNNING] += 1
        for stage in _open_stages(state):
            counts[stage.pool, RUNNING] += len(stage.held)
            if may_start:  # no more frames than slots are for anybody to run now
                counts[stage.pool, WAITING] += min(stage.frames_left, stage.max_in_flight - len(stage.held))
    return _bounded(+counts)


def frame_backlog_of(states: Iterable[State]) -> Mapping[tuple[str, str], int]:
    """Frames by kind of stage and state, those that wait for a slot of their stage too, and all of them together."""
    counts: Counter[tuple[str, str]] = Counter({(kind, state): 0 for kind in STAGE_KINDS for state in STATES})
    for (_, _, kind, state), count in owners_of_frames(states).items():
        counts[kind, state] += count
    counts[ALL, ALL] = sum(counts.values())
    return counts


def owners_of_frames(states: Iterable[State]) -> FrameBacklog:
    """Frames by tenant, organization, kind of stage and state."""
    counts: Counter[tuple[str, str, str, str]] = Counter()
    for state in states:
        owner = state.execution.tenant_id, state.execution.organization_id
        for stage in _open_stages(state):
            counts[*owner, stage.kind, RUNNING] += len(stage.held)
            counts[*owner, stage.kind, WAITING] += stage.frames_left
    return +counts


def _open_stages(state: State) -> list[Stage]:
    if state.execution.status.is_final:
        return []
    return [stage for stage in state.execution.stages.values() if stage.is_open]


class PublishedFrames:
    """As `PublishedBacklog`, of the owners of frames: the largest of them, and what has just become none."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str, str, str]] = set()

    def update(self, current: FrameBacklog) -> dict[tuple[str, str, str, str], int]:
        """Every line to show now."""
        kept = dict(Counter(current).most_common(MAX_POOLS))
        shown = {line: kept.get(line, 0) for line in kept.keys() | self._known}
        self._known = set(kept)
        return shown


class PublishedBacklog:
    """Says of each pool what there is, and of one that has nothing left that it has nothing."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def update(self, current: Backlog) -> dict[tuple[str, str], int]:
        """Every line to show now; pools that were empty in the last round too are no longer among them."""
        pools = {pool for pool, _ in current}
        shown = {(pool, state): current.get((pool, state), 0) for pool in pools | self._known for state in STATES}
        self._known = pools
        return shown


def _bounded(counts: Counter[tuple[str, str]]) -> Backlog:
    totals: Counter[str] = Counter()
    for (pool, _), count in counts.items():
        totals[pool] += count
    if len(totals) <= MAX_POOLS:
        return counts
    kept = {pool for pool, _ in totals.most_common(MAX_POOLS)}
    bounded: Counter[tuple[str, str]] = Counter()
    for (pool, state), count in counts.items():
        bounded[pool if pool in kept else OTHERS, state] += count
    return bounded
