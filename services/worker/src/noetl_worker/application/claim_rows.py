"""Claims the rows of a frame through the cursor of its loop: they are the frame's before the claim is committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from noetl_core.canonical import JsonObject, JsonValue, encode
from noetl_core.errors import FrameHasRows, NoetlError
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.playbook.model import Cursor, KeychainEntry
from noetl_core.ports.commands import GrantedCommand, Worker
from noetl_core.ports.frames import FrameClaim, FrameKey, StageSlot
from noetl_core.stages.policy import MAX_ROWS
from noetl_core.stages.rows import FrameRows
from noetl_core.timestamps import format_time

from noetl_worker.application.frame_work import frame_key
from noetl_worker.application.keychain import Keychain
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.persist_before_emit import PersistBeforeEmit, ResultPlace
from noetl_worker.application.tool_call import Tool, ToolCall

AT_ONCE: Final = MAX_ROWS + 1
"""More rows than a claim may give: all that it gives are one frame."""


class TellRows(Protocol):
    """The part of the planner's port that is needed here."""

    async def start_frame(self, worker: Worker, key: FrameKey, rows: PayloadRef, *, row_count: int) -> int:
        """Tell which rows a frame has claimed."""
        ...

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Claim the next frame of each slot; who holds one gets it once more."""
        ...


@dataclass(slots=True, kw_only=True)
class _Sink:
    """Takes what the claim gives while its transaction is open: stored first, told second, committed last."""

    place: ResultPlace
    persist: PersistBeforeEmit
    tell: TellRows
    worker: Worker
    key: FrameKey
    rows: list[JsonValue] = field(default_factory=list)
    start: int = 0
    chunk_rows: int = AT_ONCE

    async def put(self, rows: list[JsonValue]) -> None:
        """The rows of the frame; whatever is raised here rolls the claim back."""
        ref = await self.persist.put(self.place, encode(rows))
        self.start = await self.tell.start_frame(self.worker, self.key, ref, row_count=len(rows))
        self.rows = rows


class ClaimRows:
    """One round trip for a frame, whatever the number of its rows."""

    def __init__(
        self,
        tool: Tool,
        *,
        persist: PersistBeforeEmit,
        tell: TellRows,
        worker: Worker,
        keychain: Keychain | None = None,
    ) -> None:
        self._tool = tool
        self._persist = persist
        self._tell = tell
        self._worker = worker
        self._keychain = keychain or Keychain()

    async def __call__(
        self,
        command: GrantedCommand,
        *,
        frame: FrameRows,
        cursor: Cursor,
        names: Mapping[str, object],
        keychain: Mapping[str, KeychainEntry],
        place: ResultPlace,
    ) -> tuple[int, list[JsonValue]] | FrameRows | Outcome:
        """The index of the first row and the rows, of which there may be none; or why they could not be had.

        Rows that this attempt has told of before, without hearing the answer, are the frame's: they are in the log.
        """
        key = frame_key(command.key)
        sink = _Sink(place=place, persist=self._persist, tell=self._tell, worker=self._worker, key=key)
        call = ToolCall(
            tenant_id=command.tenant_id,
            organization_id=command.organization_id,
            execution_id=command.key.execution_id,
            step=command.step,
            kind=cursor.kind,
            config={"command": cursor.claim},
            auth=cursor.auth,
            names={**names, **_claim_names(frame, key)},
            now=format_time(command.issued_at),
            attempt=command.attempt,
            timeout_seconds=frame.bounds.lease_seconds,
            chunks=sink,
        )
        try:
            outcome = await self._tool.run(await self._keychain.opened_for(call, keychain))
        except TemplateFailed as exc:
            return Outcome.failed(kind=ErrorKind.TRANSFORM, code=exc.code, message=exc.message)
        except NoetlError as exc:
            if exc.retryable:
                raise
            # An answer about other rows was not heard: this claim is rolled back, and those are the frame's.
            is_told = isinstance(exc, FrameHasRows)
            known = await self._known(command, frame, key) if is_told else None
            failed = Outcome.failed(kind=ErrorKind.UNKNOWN, code=exc.code, message=exc.message, retryable=is_told)
            return known or failed
        return outcome if outcome.error is not None else (sink.start, sink.rows)

    async def _known(self, command: GrantedCommand, frame: FrameRows, key: FrameKey) -> FrameRows | None:
        """The rows of this very attempt as the planner knows them, if it still has it."""
        slot = StageSlot(execution_id=command.key.execution_id, stage_id=frame.stage_id, slot=frame.slot)
        (claim,) = await self._tell.claim_frames(self._worker, [slot])
        granted = claim.frame
        return granted.rows if granted is not None and granted.key == key and not granted.rows.claims else None


def _claim_names(frame: FrameRows, key: FrameKey) -> dict[str, object]:
    """§6.4: what only the claim sees; the mark of a frame is the same in every attempt."""
    policy: JsonObject = frame.bounds.to_json()
    return {
        "__frame_id": key.frame_id,
        "__frame_max_rows": frame.bounds.max_rows,
        "__frame_policy": policy,
        "__worker_slot_id": f"{frame.stage_id}/{frame.slot}",
    }
