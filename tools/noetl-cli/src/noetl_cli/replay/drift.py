"""Compares what the server says of histories with what other code says to the same events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from noetl_contracts.clients import ReplayedState
from noetl_core.envelope import StoredEvent, verify_link
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.ports.event_log import EventLog
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.event_lines import event_line
from noetl_core.replay.points import Point

from noetl_cli.replay.other_release import Code, FoldFailed, Folding, NoOtherRelease
from noetl_cli.replay.replays import FAILURES_OF_ALL, Replays
from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line

_PAGE: Final = 500
_OF_ALL: Final = (*FAILURES_OF_ALL, NoOtherRelease)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One execution: which surfaces would change, or why the other release cannot read it."""

    execution_id: int
    stream_version: int
    drifted: tuple[str, ...] = ()
    error: str = ""
    formats: tuple[int, int] = (0, 0)
    upcasters: tuple[str, str] = ("", "")

    @property
    def is_same(self) -> bool:
        """Whether the other code says the same."""
        return not self.drifted and not self.error

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "execution_id": str(self.execution_id),
            "stream_version": self.stream_version,
            "drifted": [*self.drifted],
            "error": self.error or None,
            "format": {"server": self.formats[0], "other": self.formats[1]},
            "upcasters": {"server": self.upcasters[0], "other": self.upcasters[1]},
        }

    def what(self) -> str:
        """What would change, for people."""
        if self.error:
            return one_line(self.error)
        formats = "" if self.formats[0] == self.formats[1] else f" (format {self.formats[0]} -> {self.formats[1]})"
        return ", ".join(self.drifted) + formats


@dataclass(frozen=True, slots=True, kw_only=True)
class NotCompared:
    """One execution of which nobody can say whether it would change, and why."""

    execution_id: int
    stream_version: int
    code: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "execution_id": str(self.execution_id),
            "stream_version": self.stream_version,
            "code": self.code,
            "reason": self.reason,
        }


@dataclass(slots=True, kw_only=True)
class DriftReport:
    """What came out; executions that stay the same are only counted, since there may be millions."""

    other: Code
    """The code that is compared with the server's."""
    servers: list[tuple[str, str]] = field(default_factory=list)
    """Code version and upcasters of whoever answered for the server; several while it is being replaced."""
    left_out: int = 0
    """Executions that the log has and that a limit kept from being looked at."""
    executions: int = 0
    drifted: list[Compared] = field(default_factory=list)
    not_comparable: list[NotCompared] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether something is known of every execution."""
        return not self.not_comparable and not self.left_out

    @property
    def is_clean(self) -> bool:
        """Whether everything that was looked at could be compared, and stays the same."""
        return not self.drifted and not self.not_comparable

    def heard(self, state: ReplayedState) -> None:
        """What the server said of a history."""
        if (said := (state.code_version, state.upcasters)) not in self.servers:
            self.servers.append(said)

    def add(self, one: Compared | NotCompared) -> None:
        """The next execution."""
        self.executions += 1
        if isinstance(one, NotCompared):
            self.not_comparable.append(one)
        elif not one.is_same:
            self.drifted.append(one)

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "servers": [{"code_version": version or None, "upcasters": digest} for version, digest in self.servers],
            "other": self.other.to_json(),
            "executions": self.executions,
            "complete": self.is_complete,
            "left_out": self.left_out,
            "drifted": [one.to_json() for one in self.drifted],
            "not_comparable": [one.to_json() for one in self.not_comparable],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        for version, digest in self.servers:
            yield f"server {_version(version, digest)}"
        yield f"other  {_version(self.other.code_version, self.other.upcasters)}"
        for name, place in self.other.places.items():
            yield f"       {name} from {place}"
        if self.drifted:
            rows = [("EXECUTION", "VERSION", "WHAT WOULD CHANGE")]
            rows += [(str(one.execution_id), str(one.stream_version), one.what()) for one in self.drifted]
            yield from table_lines(rows)
        if self.not_comparable:
            rows = [("EXECUTION", "VERSION", "WHY IT CANNOT BE COMPARED")]
            rows += [
                (str(one.execution_id), str(one.stream_version), f"{one.code}: {one_line(one.reason)}")
                for one in self.not_comparable
            ]
            yield from table_lines(rows)
        yield f"{len(self.drifted)} of {self.executions} executions would change"
        if self.not_comparable:
            yield f"{len(self.not_comparable)} could not be compared: nobody knows whether they would change"
        if self.left_out:
            yield f"{self.left_out} older ones were left out by --limit: nobody knows whether they would change"


def _version(code_version: str, upcasters: str) -> str:
    return f"{code_version or 'of a version that it does not tell'}, upcasters {upcasters}"


async def compare_all(
    replays: Replays,
    log: EventLog,
    heads: Sequence[StreamHead],
    folding: Folding,
    *,
    left_out: int,
    progress: Callable[[int, int], None],
) -> DriftReport:
    """One after the other; a history that cannot be compared is told of, and keeps no other from being compared."""
    report, events = DriftReport(other=await folding.code(), left_out=left_out), 0
    for head in heads:
        try:
            point = Point(stream_version=head.version)
            recorded = await replays.state(None, head.execution_id, point, projection="none", from_start=True)
            report.heard(recorded)
            report.add(await _compare(recorded, log, folding))
        except _OF_ALL as exc:
            exc.add_note(f"at execution {head.execution_id}, after {report.executions} of {len(heads)}")
            raise
        except NoetlError as exc:
            report.add(
                NotCompared(
                    execution_id=head.execution_id, stream_version=head.version, code=exc.code, reason=exc.message
                )
            )
        events += head.version
        progress(report.executions, events)
    return report


async def _compare(recorded: ReplayedState, log: EventLog, folding: Folding) -> Compared:
    """The server's own replay of a history beside the other code's, to the same version."""
    execution_id, version = recorded.execution_id, recorded.stream_version
    other = await folding.fold(_whole_lines(log, execution_id, version))
    if "error" in other:
        return Compared(execution_id=execution_id, stream_version=version, error=str(other["error"]))
    surfaces, told_format, upcasters = other.get("surfaces"), other.get("format"), other.get("upcasters")
    if not isinstance(surfaces, dict) or not isinstance(told_format, int) or not isinstance(upcasters, str):
        raise FoldFailed("the other release answers with a document that has no checksums of surfaces")
    names = dict.fromkeys([*recorded.surfaces, *surfaces])
    return Compared(
        execution_id=execution_id,
        stream_version=version,
        drifted=tuple(one for one in names if surfaces.get(one) != recorded.surfaces.get(one)),
        formats=(recorded.format, told_format),
        upcasters=(recorded.upcasters, upcasters),
    )


async def history_lines(log: EventLog, execution_id: int) -> AsyncIterator[bytes]:
    """The events of an execution up to its head, as they stand."""
    async for event in _events(log, execution_id):
        yield event_line(event)


async def _whole_lines(log: EventLog, execution_id: int, version: int) -> AsyncIterator[bytes]:
    """The events up to a version; raises `Corrupt` at one that was changed, which says nothing of the other release."""
    checksum = ""
    async for event in _events(log, execution_id, version):
        verify_link(event)
        if event.prev_checksum != checksum:
            raise Corrupt(f"version {event.stream_version} of execution {execution_id} does not follow the one before")
        checksum = event.checksum
        yield event_line(event)


async def _events(log: EventLog, execution_id: int, version: int = 0) -> AsyncIterator[StoredEvent]:
    """Page by page; raises `Corrupt` where one is missing."""
    following = 1
    while not version or following <= version:
        page = await log.read(None, execution_id, from_version=following, to_version=version, limit=_PAGE)
        version = version or page.head_version
        if not page.events and version:
            raise Corrupt(f"execution {execution_id} has no event at version {following}")
        if not page.events:
            return
        for event in page.events:
            if event.stream_version != following:
                raise Corrupt(f"execution {execution_id} has no event at version {following}")
            yield event
            following += 1
