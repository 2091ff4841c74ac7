"""Whether states that begin with a snapshot are those that every event of the log gives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from noetl_contracts.clients import ReplayedState
from noetl_core.errors import NoetlError
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.points import Point

from noetl_cli.replay.replays import FAILURES_OF_ALL, Replays
from noetl_cli.shown.text import one_line

LOOK_AGAIN_SECONDS: Final = 0.5
_TOO_LARGE: Final = "replay.too_large"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One history, replayed twice."""

    execution_id: int
    version: int
    snapshot_version: int = 0
    differs: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_comparable(self) -> bool:
        """What is too large for a replay has no snapshot either: nothing is wrong with it, and nothing is proved."""
        return self.problem != _TOO_LARGE

    @property
    def is_proved(self) -> bool:
        """Whether it began with a snapshot and came to the same."""
        return not self.differs and self.snapshot_version > 0

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "execution_id": str(self.execution_id),
            "stream_version": self.version,
            "snapshot_version": self.snapshot_version,
            "equal": self.is_proved if self.is_comparable else None,
            "differs": [*self.differs],
            "problem": self.problem or None,
        }

    def line(self) -> str:
        """For people."""
        if self.differs:
            told = f"from the snapshot at {self.snapshot_version} DIFFERS in {', '.join(self.differs)}"
        elif self.problem:
            told = self.problem if self.is_comparable else "is too large to be replayed in one piece: NOT COMPARED"
        else:
            told = f"from the snapshot at {self.snapshot_version} is equal"
        return one_line(f"execution {self.execution_id} at version {self.version} {told}")


@dataclass(slots=True, kw_only=True)
class SnapshotReport:
    """What came out."""

    compared: list[Compared] = field(default_factory=list)

    @property
    def is_proved(self) -> bool:
        """Whether every one is; one that nobody could compare is not."""
        return all(one.is_proved for one in self.compared)

    @property
    def failed(self) -> int:
        """How many could be compared and are not proved: only these fail the command."""
        return sum(one.is_comparable and not one.is_proved for one in self.compared)

    @property
    def not_compared(self) -> int:
        """How many are too large."""
        return sum(not one.is_comparable for one in self.compared)

    def verdict(self) -> str:
        """For people: what is said of all of them is true of each."""
        if not self.compared:
            return "nothing to compare"
        if self.is_proved:
            return "proved"
        proved = sum(one.is_proved for one in self.compared)
        counted = {"failed": self.failed, "NOT COMPARED": self.not_compared}
        rest = ", ".join(f"{count} {name}" for name, count in counted.items() if count)
        return f"{'NOT PROVED, ' if self.failed else ''}{proved} proved, {rest}"

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "executions": len(self.compared),
            "from_snapshots": sum(one.snapshot_version > 0 for one in self.compared),
            "proved": self.is_proved,
            "failed": self.failed,
            "not_compared": self.not_compared,
            "compared": [one.to_json() for one in self.compared],
        }


async def verify_snapshots(
    replays: Replays,
    heads: Sequence[StreamHead],
    *,
    from_events: int,
    wait_seconds: float,
    progress: Callable[[int, int], None],
) -> SnapshotReport:
    """Histories of so many events and more, one by one: each costs api two replays, one of them of every event."""
    report, events = SnapshotReport(), 0
    deadline = time.monotonic() + wait_seconds
    for head in heads:
        if head.version < from_events:
            continue
        report.compared.append(await _compare(replays, head, deadline))
        events += head.version
        progress(len(report.compared), events)
    return report


async def _compare(replays: Replays, head: StreamHead, deadline: float) -> Compared:
    point = Point(stream_version=head.version)
    try:
        shortened = await replays.state(None, head.execution_id, point, projection="none")
        while not shortened.snapshot_version and time.monotonic() < deadline:
            # Projectors make snapshots behind their rows; api remembers the state, and looks for one all the same.
            await asyncio.sleep(LOOK_AGAIN_SECONDS)
            shortened = await replays.state(None, head.execution_id, point, projection="none")
        whole = await replays.state(None, head.execution_id, point, projection="none", from_start=True)
    except FAILURES_OF_ALL:
        raise
    except NoetlError as exc:
        problem = _TOO_LARGE if exc.code == _TOO_LARGE else f"cannot be replayed: {exc.message}"
        return Compared(execution_id=head.execution_id, version=head.version, problem=problem)
    return Compared(
        execution_id=head.execution_id,
        version=head.version,
        snapshot_version=shortened.snapshot_version,
        differs=tuple(_differences(shortened, whole)),
        problem="" if shortened.snapshot_version else "has no snapshot that can be used",
    )


def _differences(one: ReplayedState, other: ReplayedState) -> list[str]:
    surfaces = [str(name) for name in other.surfaces if one.surfaces.get(name) != other.surfaces[name]]
    facts = ("stream_version", "event_checksum", "row_counts", "payload_root", "payload_count", "checksum")
    return surfaces + [name for name in facts if getattr(one, name) != getattr(other, name)]
