"""One execution on trial: its history is checked and folded, and what is live is compared with what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any

from noetl_core.canonical import JsonObject
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Corrupt, NoetlError
from noetl_core.evidence.chain import ChainCheck, Head
from noetl_core.evidence.findings import Finding
from noetl_core.evidence.live import LiveState
from noetl_core.execution_view import late_after
from noetl_core.fold import State
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.differences import differences
from noetl_core.replay.history import Replay, Replayed
from noetl_core.sharding import shard_of
from noetl_core.surfaces.checksums import total_checksum
from noetl_core.surfaces.shapes import Surface
from noetl_core.timestamps import format_time
from noetl_core.upcasting.registry import Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_core.values import dataclass

MAX_SHOWN_ROWS = 20
"""Of a surface that differs; the rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found; no findings means that the log is what was written and that the live rows follow from it."""

    execution_id: int
    version: int
    """At which both sides were compared."""
    events: int
    replayed: Mapping[str, str] = field(default_factory=dict)
    live: Mapping[str, str] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows the log gives, by surface."""
    upcasters: str = ""
    """Digest of the registry by which the log was read; empty if nothing follows from it."""
    live_upcasters: str = ""
    """That of the live rows; empty if nobody knows. Rows that are equal are proved, whatever they were folded with."""
    findings: Sequence[Finding] = ()
    unsettled: bool = False
    """It moved whenever its rows were looked at, or they could not be read, so nothing else is said of them."""

    @property
    def is_proved(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings and not self.unsettled

    @property
    def is_of_another_registry(self) -> bool:
        """Whether live rows were folded with another registry than the log was read with, or nobody knows."""
        return bool(self.upcasters and self.live) and self.upcasters != self.live_upcasters

    def to_json(self) -> JsonObject:
        """As documents have it."""
        surfaces: JsonObject = {
            str(one): {
                "replayed": self.replayed.get(one),
                "live": self.live.get(one),
                "rows": self.rows.get(one, 0),
                "equal": one in self.replayed and self.replayed.get(one) == self.live.get(one),
            }
            for one in Surface
        }
        return {
            "execution_id": str(self.execution_id),
            "stream_version": self.version,
            "events": self.events,
            "proved": self.is_proved,
            "unsettled": self.unsettled,
            "checksum": total_checksum({**self.replayed}) if self.replayed else None,
            "upcasters": {
                "replayed": self.upcasters or None,
                "live": self.live_upcasters or None,
                "equal": bool(self.upcasters) and self.upcasters == self.live_upcasters,
            },
            "surfaces": surfaces,
            "findings": [one.to_json() for one in self.findings],
        }


class HistoryCheck:
    """Takes a history page by page; what is not what was written is named, and not folded."""

    def __init__(self, execution_id: int, *, upcasters: Upcasters = UPCASTERS) -> None:
        self.execution_id = execution_id
        self.findings: list[Finding] = []
        self.events = 0
        self.had_ended = False
        """Whether the execution had, at the head; later events may say so of later."""
        self._chain = ChainCheck(execution_id)
        self._replay = Replay(execution_id, upcasters=upcasters)

    @property
    def version(self) -> int:
        """Of the last event that was taken."""
        return self._chain.version

    def take(self, events: Iterable[StoredEvent]) -> None:
        """The next events, as they stand."""
        for event in events:
            self.events += 1
            self.findings += self._chain.take([event])
            if self.findings:
                continue
            try:
                self._replay.take([event])
            except NoetlError as exc:
                self.findings.append(
                    Finding(code="event.not_folded", message=exc.message, stream_version=event.stream_version)
                )

    def end(self, head: Head) -> None:
        """All events up to a head have been taken."""
        self.findings += self._chain.end(head)
        self.had_ended = self._replay.state.execution.status.is_final

    def told_otherwise(self, head: StreamHead) -> list[Finding]:
        """What a head says that its history does not; to be asked when all events up to it have been taken."""
        if self.findings or self.version != head.version:
            return []  # the history is told of already
        execution = self._replay.state.execution
        pairs = {
            "tenant_id": (head.tenant_id, execution.tenant_id),
            "organization_id": (head.organization_id, execution.organization_id),
            "terminal": (head.terminal, self.had_ended),
        }
        told = ", ".join(f"{name} is {said!r} beside {true!r}" for name, (said, true) in pairs.items() if said != true)
        if not told:
            return []
        message = f"the stream's head is not what its events give: {told} in them"
        return [Finding(code="stream.differs", message=message, stream_version=head.version)]

    def replayed(self) -> Replayed | None:
        """The state that the history gives; None unless all of it is as it was written."""
        return None if self.findings or not self.version else self._replay.result()

    def against(self, live: LiveState | None, *, unsettled: bool = False) -> Verdict:
        """The verdict, with what is stored of the execution."""
        replayed, sums, rows = self._summed()
        findings = [*self.findings, *(live.findings if live is not None else ())]
        if not unsettled:
            findings += self._standing(live)
        told = live.surfaces() if live is not None else {}
        if replayed is not None and live is not None and live.version == self.version:
            findings += _parity(replayed, live, sums, told)
        return Verdict(
            execution_id=self.execution_id,
            version=self.version,
            events=self.events,
            replayed=sums,
            live=told,
            rows=rows,
            upcasters=replayed.upcasters if replayed is not None else "",
            live_upcasters=(live.upcasters or "") if live is not None else "",
            findings=tuple(findings),
            unsettled=unsettled,
        )

    def alone(self) -> Verdict:
        """The verdict on the history by itself; nothing is said of live rows."""
        replayed, sums, rows = self._summed()
        return Verdict(
            execution_id=self.execution_id,
            version=self.version,
            events=self.events,
            replayed=sums,
            rows=rows,
            upcasters=replayed.upcasters if replayed is not None else "",
            findings=tuple(self.findings),
        )

    def _summed(self) -> tuple[Replayed | None, dict[str, str], dict[str, int]]:
        """What the history gives, with checksums and numbers of rows; nothing if it gives a row that has no sum."""
        replayed = self.replayed()
        try:
            return replayed, *_surfaces(replayed)
        except Corrupt as exc:
            version = int(exc.facts.get("stream_version", 0))
            self.findings.append(Finding(code="event.not_folded", message=exc.message, stream_version=version))
            return None, {}, {}

    def _standing(self, live: LiveState | None) -> list[Finding]:
        if live is None:
            return [Finding(code="projection.missing", message="no projector has stored anything of it")]
        if live.version < self.version:
            told = f"the live rows stand at version {live.version}, the log at {self.version}"
            return [Finding(code="projection.behind", message=told, stream_version=live.version + 1)]
        if live.version > self.version:
            told = f"the live rows include version {live.version}, the log ends at {self.version}"
            return [Finding(code="projection.ahead", message=told, stream_version=self.version + 1)]
        return []


def _surfaces(replayed: Replayed | None) -> tuple[dict[str, str], dict[str, int]]:
    if replayed is None:
        return {}, {}
    document: Any = replayed.checksums()
    return dict(document["surfaces"]), dict(document["rows"])


def _parity(replayed: Replayed, live: LiveState, sums: Mapping[str, str], told: Mapping[str, str]) -> list[Finding]:
    columns = _columns(replayed, live)
    differs = dict(sums) != dict(told) or bool(columns)
    findings: list[Finding] = []
    if differs and live.upcasters is not None and live.upcasters != replayed.upcasters:
        folded = f"with the registry {live.upcasters}" if live.upcasters else "with a registry that nobody knows"
        message = f"live rows were folded {folded}, the log is read with {replayed.upcasters}: make the rows again"
        findings.append(Finding(code="parity.other_registry", message=message))
    for surface in Surface:
        if sums[surface] == told[surface]:
            continue
        message = f"live rows of {surface} give {told[surface]}, the log gives {sums[surface]}"
        findings.append(Finding(code="parity.differs", message=message, surface=str(surface)))
        if not any(live.rows.values()):
            continue
        rows = {surface: live.rows[surface]}, {surface: replayed.rows[surface]}
        for place, one in enumerate(differences(*rows)):
            if place == MAX_SHOWN_ROWS:
                findings.append(Finding(code="parity.more_rows", message="and more rows", surface=str(surface)))
                break
            fields = ", ".join(f"{name} is {old!r} and should be {new!r}" for name, old, new in one.fields())
            what = {"added": "the row is missing", "removed": "nothing in the log gives this row", "changed": fields}
            # A row that somebody added may have anything there.
            version = (one.after or one.before or {}).get("stream_version")
            findings.append(
                Finding(
                    code=f"parity.row_{one.kind}",
                    message=f"{surface} {one.key}: {what[one.kind]}",
                    stream_version=version if type(version) is int else 0,
                    surface=str(surface),
                )
            )
    return findings + columns


def _columns(replayed: Replayed, live: LiveState) -> list[Finding]:
    """What the row of the execution has beside its shape, and so in no checksum: lookups go by it."""
    if live.columns is None:
        return []
    pairs = {"next_deadline": (_time(live.columns.next_deadline), _due(replayed.state))}
    if live.shard_count:
        pairs["shard"] = (str(live.columns.shard), str(shard_of(live.execution_id, live.shard_count)))
    return [
        Finding(
            code="parity.column_differs",
            message=f"{name} of the execution is {stored} and should be {right}",
            stream_version=live.version,
            surface=str(Surface.EXECUTION),
        )
        for name, (stored, right) in pairs.items()
        if stored != right
    ]


def _due(state: State) -> str:
    try:
        return _time(late_after(state))
    except OverflowError:  # of a history that somebody forged; no projector could store it
        return "after all times"


def _time(moment: datetime | None) -> str:
    return "none" if moment is None else format_time(moment)
