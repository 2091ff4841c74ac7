"""Heads of streams and rows of projections as messages and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from noetl.evidence.v1 import evidence_pb2 as pb
from noetl_core.errors import InvalidInput
from noetl_core.evidence.findings import Finding
from noetl_core.ids import parse_id
from noetl_core.ports.event_columns import ColumnPage, Place
from noetl_core.ports.live_rows import ExecutionColumns, LiveExecution, LivePage, RowPage, RowPlace, StoredRow
from noetl_core.ports.streams import HiddenPage, HiddenStream, StreamHead
from noetl_core.surfaces.shapes import Surface

from noetl_contracts.mapping.times import moment, optional_timestamp, timestamp


def head_message(head: StreamHead) -> pb.StreamHead:
    """Where a stream ends, as a message."""
    return pb.StreamHead(
        execution_id=str(head.execution_id),
        tenant_id=head.tenant_id,
        organization_id=head.organization_id,
        version=head.version,
        checksum=head.checksum,
        terminal=head.terminal,
        updated_at=timestamp(head.updated_at),
    )


def head(message: pb.StreamHead) -> StreamHead:
    """Where a stream ends."""
    return StreamHead(
        execution_id=parse_id(message.execution_id, what="execution_id"),
        tenant_id=message.tenant_id,
        organization_id=message.organization_id,
        version=message.version,
        checksum=message.checksum,
        terminal=message.terminal,
        updated_at=moment(message.updated_at),
    )


def hidden_message(page: HiddenPage) -> pb.ListHiddenResponse:
    """Executions that listings do not show, as a message."""
    return pb.ListHiddenResponse(
        hidden=[
            pb.HiddenStream(
                execution_id=str(one.execution_id),
                tenant_id=one.tenant_id,
                organization_id=one.organization_id,
                has_head=one.has_head,
            )
            for one in page.hidden
        ],
        following_execution_id=str(page.following or ""),
    )


def hidden_page(message: pb.ListHiddenResponse) -> HiddenPage:
    """Executions that listings do not show."""
    following = message.following_execution_id
    return HiddenPage(
        hidden=tuple(
            HiddenStream(
                execution_id=parse_id(one.execution_id, what="execution_id"),
                tenant_id=one.tenant_id,
                organization_id=one.organization_id,
                has_head=one.has_head,
            )
            for one in message.hidden
        ),
        following=parse_id(following, what="following_execution_id") if following else None,
    )


def live_message(page: LivePage) -> pb.LivePage:
    """Executions that have a row, as a message."""
    return pb.LivePage(
        executions=[
            pb.LiveExecution(
                execution_id=str(one.execution_id),
                tenant_id=one.tenant_id,
                organization_id=one.organization_id,
                stream_version=one.stream_version,
            )
            for one in page.executions
        ],
        following_execution_id=str(page.following or ""),
    )


def live_page(message: pb.LivePage) -> LivePage:
    """Executions that have a row."""
    following = message.following_execution_id
    return LivePage(
        executions=tuple(
            LiveExecution(
                execution_id=parse_id(one.execution_id, what="execution_id"),
                tenant_id=one.tenant_id,
                organization_id=one.organization_id,
                stream_version=one.stream_version,
            )
            for one in message.executions
        ),
        following=parse_id(following, what="following_execution_id") if following else None,
    )


def wanted_messages(wanted: Mapping[int, int]) -> list[pb.WantedRows]:
    """Executions and the versions that are waited for, as messages."""
    return [pb.WantedRows(execution_id=str(one), min_version=version) for one, version in wanted.items()]


def wanted(messages: Iterable[pb.WantedRows]) -> dict[int, int]:
    """Executions and the versions that are waited for."""
    return {parse_id(one.execution_id, what="execution_id"): one.min_version for one in messages}


def row_page_message(page: RowPage) -> pb.RowPage:
    """A page of rows as a message."""
    return pb.RowPage(
        versions={str(one): version for one, version in page.versions.items()},
        rows=[
            pb.StoredRow(execution_id=str(one.execution_id), surface=one.surface, key=one.key, row=one.data)
            for one in page.rows
        ],
        next_page_token=page.following.to_token() if page.following is not None else "",
        upcasters={str(one): digest for one, digest in page.upcasters.items()},
        columns={
            str(one): pb.ExecutionColumns(shard=told.shard, next_deadline=optional_timestamp(told.next_deadline))
            for one, told in page.columns.items()
        },
        shard_count=page.shard_count,
    )


def row_page(message: pb.RowPage) -> RowPage:
    """A page of rows."""
    return RowPage(
        versions={parse_id(one, what="execution_id"): version for one, version in message.versions.items()},
        rows=tuple(
            StoredRow(
                execution_id=parse_id(one.execution_id, what="execution_id"),
                surface=Surface(one.surface),
                key=one.key,
                data=one.row,
            )
            for one in message.rows
        ),
        following=RowPlace.from_token(message.next_page_token),
        upcasters={parse_id(one, what="execution_id"): digest for one, digest in message.upcasters.items()},
        columns={
            parse_id(one, what="execution_id"): ExecutionColumns(
                shard=told.shard,
                next_deadline=moment(told.next_deadline) if told.HasField("next_deadline") else None,
            )
            for one, told in message.columns.items()
        },
        shard_count=message.shard_count,
    )


def column_page_message(page: ColumnPage) -> pb.CheckColumnsResponse:
    """What differs, as a message."""
    return pb.CheckColumnsResponse(
        findings=[
            pb.ColumnFinding(
                execution_id=str(execution_id),
                stream_version=one.stream_version,
                event_id=one.event_id,
                event_type=one.event_type,
                message=one.message,
            )
            for execution_id, one in page.findings
        ],
        next_page_token="/".join(map(str, page.following)) if page.following is not None else "",
    )


def column_page(message: pb.CheckColumnsResponse) -> ColumnPage:
    """What differs."""
    return ColumnPage(
        findings=tuple(
            (
                parse_id(one.execution_id, what="execution_id"),
                Finding(
                    code="event.column_differs",
                    message=one.message,
                    stream_version=one.stream_version,
                    event_id=one.event_id,
                    event_type=one.event_type,
                ),
            )
            for one in message.findings
        ),
        following=event_place(message.next_page_token),
    )


def event_place(token: str) -> Place | None:
    """The place that a token names; an empty token is the start."""
    if not token:
        return None
    execution_id, slash, version = token.partition("/")
    # A version that the log never gives may be stored all the same: the page after it begins there.
    if not slash or not version.removeprefix("-").isdecimal():
        raise InvalidInput(f"{token!r} is not a page token")
    return parse_id(execution_id, what="page_token"), int(version)
