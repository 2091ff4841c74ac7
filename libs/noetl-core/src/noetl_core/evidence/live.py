"""Checksums of live rows, straight from the rows as they are stored: nothing is folded here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from noetl_core.canonical import JsonObject
from noetl_core.errors import Corrupt
from noetl_core.evidence.findings import Finding
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import ExecutionColumns, LiveRows, RowPage, StoredRow
from noetl_core.surfaces.checksums import SurfaceChecksum
from noetl_core.surfaces.shapes import Row, Surface, check_row, key_of

_LOOKS: Final = 5
"""An execution that moves while its rows are read is read again; one that always moves is not proved now."""


class LiveState:
    """What is stored of one execution, at one version of it."""

    def __init__(
        self,
        execution_id: int,
        version: int,
        *,
        keep_rows: bool = False,
        upcasters: str | None = None,
        columns: ExecutionColumns | None = None,
        shard_count: int = 0,
    ) -> None:
        self.execution_id = execution_id
        self.version = version
        self.upcasters = upcasters
        """Digest of the registry that it was folded with; empty: nobody knows. None: whoever shows it does not tell."""
        self.columns = columns
        """None: whoever shows it does not tell."""
        self.shard_count = shard_count
        """Of the installation; 0: the same."""
        self.findings: list[Finding] = []
        self.rows: dict[Surface, dict[str, Row]] = {surface: {} for surface in Surface}
        """Only if they are kept; checksums need none."""
        self._keep = keep_rows
        self._checksums = {surface: SurfaceChecksum() for surface in Surface}

    def add(self, stored: StoredRow) -> None:
        """The next row, in the order of keys."""
        surface, row = stored.surface, stored.row()
        try:
            check_row(surface, row)
            if key_of(surface, row) != stored.key or row["execution_id"] != str(self.execution_id):
                raise Corrupt(f"the row {stored.key} of {surface} is another one's")
        except Corrupt as exc:
            self.findings.append(Finding(code="row.shape", message=exc.message, surface=str(surface)))
        self._checksums[surface].add(stored.key, row)
        if self._keep:
            self.rows[surface][stored.key] = row

    def surfaces(self) -> dict[str, str]:
        """The checksum of each surface."""
        return {str(surface): self._checksums[surface].hexdigest() for surface in Surface}

    def counts(self) -> JsonObject:
        """The number of rows of each surface."""
        return {str(surface): self._checksums[surface].rows for surface in Surface}


async def read_live(
    source: LiveRows,
    scope: Scope | None,
    wanted: Mapping[int, int],
    *,
    wait_seconds: float = 0.0,
    keep_rows: bool = False,
) -> tuple[dict[int, LiveState], frozenset[int]]:
    """What is stored of executions, each of one moment; and which of them moved as often as they were looked at."""
    found: dict[int, LiveState] = {}
    left = dict(wanted)
    for _ in range(_LOOKS):
        states, moved = await _look(source, scope, left, wait_seconds=wait_seconds, keep_rows=keep_rows)
        found.update((one, state) for one, state in states.items() if one not in moved)
        left = {one: left[one] for one in moved}
        if not left:
            break
    return found, frozenset(left)


async def _look(
    source: LiveRows, scope: Scope | None, wanted: Mapping[int, int], *, wait_seconds: float, keep_rows: bool
) -> tuple[dict[int, LiveState], set[int]]:
    states: dict[int, LiveState] = {}
    moved: set[int] = set()
    page = await source.list_rows(scope, wanted, wait_seconds=wait_seconds)
    for execution_id, version in page.versions.items():
        states[execution_id] = LiveState(
            execution_id,
            version,
            keep_rows=keep_rows,
            upcasters=page.upcasters.get(execution_id, ""),
            columns=page.columns.get(execution_id),
            shard_count=page.shard_count,
        )
    while True:
        for stored in page.rows:
            if stored.execution_id not in moved:
                states[stored.execution_id].add(stored)
        if page.following is None or len(moved) == len(wanted):
            return states, moved
        page = await source.list_rows(scope, wanted, after=page.following)
        moved.update(one for one in wanted if not _stands(states.get(one), page, one))


def _stands(state: LiveState | None, page: RowPage, execution_id: int) -> bool:
    """Whether it is where it was: rows that are made again may come to the same version."""
    version = page.versions.get(execution_id)
    if state is None or version is None:
        return state is None and version is None
    return (state.version, state.upcasters) == (version, page.upcasters.get(execution_id, ""))
