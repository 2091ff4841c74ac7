"""Bodies of requests and answers over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from noetl_core.append import Appended
from noetl_core.envelope import StoredEvent
from noetl_core.errors import Problem
from noetl_core.ports.catalog import CatalogEntry
from noetl_core.ports.projections import ExecutionView
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator


class _Request(BaseModel):
    """A misspelt key is an error, not a default; null is as good as no key, and a number as its digits."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, body: Any) -> Any:
        return {key: value for key, value in body.items() if value is not None} if isinstance(body, dict) else body


class RegisterBody(_Request):
    """A playbook to register."""

    content: str = Field(description="The YAML document.")
    resource_type: str = Field(default="playbook", pattern="^[Pp]laybook$", description="Playbooks are all there is.")


class ProblemOut(BaseModel):
    """One thing that is wrong or questionable about a document."""

    code: str
    message: str
    path: str
    line: int | None
    column: int | None
    suggestion: str | None

    @classmethod
    def of(cls, problem: Problem) -> ProblemOut:
        return cls(
            code=problem.code,
            message=problem.message,
            path=problem.path,
            line=problem.line,
            column=problem.column,
            suggestion=problem.suggestion,
        )


class EntryOut(BaseModel):
    """One version of a playbook."""

    catalog_id: str
    path: str
    version: int
    name: str
    sha256: str
    created_at: datetime
    created_by: str

    @classmethod
    def fields_of(cls, entry: CatalogEntry) -> dict[str, Any]:
        return {
            "catalog_id": entry.catalog_id,
            "path": entry.path,
            "version": entry.version,
            "name": entry.name,
            "sha256": entry.sha256,
            "created_at": entry.created_at,
            "created_by": entry.created_by,
        }

    @classmethod
    def of(cls, entry: CatalogEntry) -> EntryOut:
        return cls(**cls.fields_of(entry))


class RegisteredOut(EntryOut):
    """The version that this content is."""

    created: bool = Field(description="False when this content was the newest version already.")
    warnings: list[ProblemOut]


class PlaybookOut(EntryOut):
    """A version with its document."""

    content: str


class EntriesOut(BaseModel):
    """Some versions."""

    entries: list[EntryOut]
    next_page_token: str


class ExecuteBody(_Request):
    """A playbook to execute."""

    path: str = Field(default="", description="Catalog key; not needed with catalog_id.")
    catalog_id: str = Field(default="", description="One version of a playbook, by identity.")
    version: int = Field(default=0, ge=0, description="Version; 0 means the newest.")
    payload: dict[str, Any] | None = Field(default=None, description="Variables merged over the playbook's workload.")
    workload: dict[str, Any] | None = Field(default=None, description="Another name of payload.")
    parent_execution_id: str = Field(default="", description="Execution that this one belongs to.")

    @field_validator("version", mode="before")
    @classmethod
    def newest(cls, version: Any) -> Any:
        """Scripts write `latest` where they mean the newest."""
        return 0 if version in ("latest", "") else version

    start_key: str = Field(
        default="", description="Makes repeated requests start one execution; so does the header Idempotency-Key."
    )


class StartedOut(BaseModel):
    """An execution that exists now."""

    execution_id: str
    status: str = "started"
    path: str
    version: int
    created: bool = Field(description="False when the start key had been used before.")


class ExecutionOut(BaseModel):
    """An execution as of its last event."""

    execution_id: str
    path: str
    version: int
    catalog_id: str
    status: str = Field(description="RUNNING, PAUSED, COMPLETED, FAILED or CANCELLED.")
    last_event_type: str
    last_node_name: str
    start_time: datetime
    end_time: datetime | None
    error: dict[str, Any] | None
    parent_execution_id: str | None
    stream_version: int
    upcasters: str | None = Field(
        description="Digest of the registry by which old events were read; null if the release that folded it does "
        "not tell."
    )

    @classmethod
    def fields_of(cls, view: ExecutionView) -> dict[str, Any]:
        return {
            "execution_id": str(view.execution_id),
            "path": view.path,
            "version": view.version,
            "catalog_id": view.catalog_id,
            "status": view.status,
            "last_event_type": view.last_event_type,
            "last_node_name": view.last_node_name,
            "start_time": view.start_time,
            "end_time": view.end_time,
            "error": dict(view.error) if view.error is not None else None,
            "parent_execution_id": view.parent_execution_id or None,
            "stream_version": view.stream_version,
            "upcasters": view.upcasters or None,
        }

    @classmethod
    def of(cls, view: ExecutionView) -> ExecutionOut:
        return cls(**cls.fields_of(view))


class ExecutionsOut(BaseModel):
    """Some executions, newest first."""

    executions: list[ExecutionOut]
    next_page_token: str


class StatusOut(BaseModel):
    """Where an execution stands."""

    execution_id: str
    status: str
    completed: bool
    failed: bool
    error: dict[str, Any] | None
    stream_version: int


class CancelBody(_Request):
    """Why an execution is cancelled."""

    reason: str = ""
    cascade: bool = Field(default=True, description="Whether its descendants end with it.")


class CancelledOut(BaseModel):
    """An execution that was cancelled."""

    execution_id: str
    status: str = "cancelled"
    stream_version: int
    cancelled_descendants: int = 0


class EventOut(BaseModel):
    """An event as the log has it."""

    event_id: str
    execution_id: str
    stream_version: int
    event_type: str
    node_id: str
    node_name: str
    status: str | None
    created_at: datetime = Field(description="When the log took it, by the database's clock.")
    event_time: datetime = Field(description="When it happened, according to its producer.")
    aggregate_type: str
    aggregate_id: str
    aggregate_version: int
    idempotency_key: str
    producer: str
    result: dict[str, Any] | None
    context: dict[str, Any]
    payload_ref: dict[str, Any] | None
    causation_id: str
    correlation_id: str
    parent_event_id: str
    prev_checksum: str
    checksum: str

    @classmethod
    def of(cls, stored: StoredEvent) -> EventOut:
        envelope = stored.envelope()
        ids = {
            "command_id": envelope.command_id,
            "stage_id": envelope.stage_id,
            "frame_id": envelope.frame_id,
            "loop_event_id": envelope.meta.get("loop_id"),
            "epoch_id": envelope.meta.get("epoch_id") or envelope.meta.get("loop_id"),
        }
        status = (envelope.result or envelope.meta).get("status")
        return cls(
            event_id=str(envelope.event_id),
            execution_id=str(envelope.execution_id),
            stream_version=stored.stream_version,
            event_type=envelope.event_type,
            node_id=envelope.node_name,
            node_name=envelope.node_name,
            status=status if isinstance(status, str) else None,
            created_at=stored.ingest_time,
            event_time=envelope.event_time,
            aggregate_type=envelope.aggregate_type,
            aggregate_id=envelope.aggregate_id,
            aggregate_version=stored.aggregate_version,
            idempotency_key=envelope.idempotency_key,
            producer=envelope.producer,
            result=envelope.result,
            context={**envelope.meta, **{name: value for name, value in ids.items() if value}},
            payload_ref=envelope.payload_ref.to_json() if envelope.payload_ref else None,
            causation_id=envelope.causation_id,
            correlation_id=envelope.correlation_id,
            parent_event_id=envelope.parent_event_id,
            prev_checksum=stored.prev_checksum,
            checksum=stored.checksum,
        )


class EventsOut(BaseModel):
    """Consecutive events of one execution."""

    events: list[EventOut]
    next_version: int = Field(description="Version to continue from; 0 when there are no more.")
    head_version: int
    terminal: bool = Field(description="Whether the execution has ended.")


class Pagination(BaseModel):
    """Where a page of events stands."""

    page: int
    page_size: int
    total: int
    has_next: bool


class ExecutionDetailOut(ExecutionOut):
    """An execution with its state, and with a page of its events if one was asked for."""

    state: dict[str, Any]
    loop_progress: dict[str, Any]
    events: list[EventOut] | None = None
    pagination: Pagination | None = None


class EventBody(_Request):
    """An event of a user or another system."""

    execution_id: str
    event_type: str = Field(description="Any name that NoETL does not use itself, such as order.shipped.")
    idempotency_key: str = Field(default="", description="The same key with the same content is the same event.")
    node_name: str = ""
    event_time: datetime | None = Field(default=None, description="With a time zone; unset means now.")
    status: str = Field(default="", description="ok, error, skipped, break or retry; with context it is the result.")
    context: dict[str, Any] | None = Field(default=None, description="Scalars; data is stored as payloads.")
    meta: dict[str, Any] = Field(default_factory=dict, description="Further facts.")
    business_object: dict[str, Any] | None = Field(
        default=None,
        description="What the event says of an object: type, id, and status, state, patch, deleted or derived_from.",
    )
    expected_object_version: int | None = Field(
        default=None, ge=0, description="Only if the object has this version by now; 0 if there is none."
    )
    causation_id: str = ""
    correlation_id: str = ""
    command_id: str = ""


class EventBatchBody(_Request):
    """Events that are appended together or not at all."""

    events: list[EventBody] = Field(min_length=1, max_length=1000)


class AppendedOut(BaseModel):
    """What became of an event."""

    event_id: str
    execution_id: str
    stream_version: int
    duplicate: bool = Field(description="True when this event had been there before.")

    @classmethod
    def of(cls, appended: Appended) -> AppendedOut:
        envelope = appended.event.envelope()
        return cls(
            event_id=str(envelope.event_id),
            execution_id=str(envelope.execution_id),
            stream_version=appended.event.stream_version,
            duplicate=appended.duplicate,
        )


class AppendedBatchOut(BaseModel):
    """What became of a batch, in its order."""

    events: list[AppendedOut]
