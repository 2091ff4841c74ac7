"""Chunks of streams as messages."""

from __future__ import annotations

from noetl.command.v1 import command_pb2 as pb
from noetl_core.payloads import PayloadRef
from noetl_core.ports.commands import ToldChunk
from noetl_core.streams.state import Chunk, Place

from noetl_contracts.mapping.events import payload_ref, payload_ref_message


def told_chunk_message(chunk: ToldChunk) -> pb.Chunk:
    """A chunk that is told, as a message."""
    return pb.Chunk(
        task=chunk.task,
        call=chunk.call,
        chunk_index=chunk.chunk_index,
        row_count=chunk.row_count,
        has_more=chunk.has_more,
        rows=payload_ref_message(chunk.rows),
    )


def told_chunk(message: pb.Chunk) -> ToldChunk:
    """A chunk that is told."""
    return ToldChunk(
        task=message.task,
        call=message.call,
        chunk_index=message.chunk_index,
        row_count=message.row_count,
        has_more=message.has_more,
        rows=payload_ref(message.rows),
    )


def chunk_message(chunk: Chunk | None) -> pb.Chunk | None:
    """The chunk that a command takes, as a message."""
    if chunk is None:
        return None
    return pb.Chunk(
        step=chunk.step,
        task=chunk.task,
        call=chunk.call,
        chunk_index=chunk.chunk_index,
        row_count=chunk.row_count,
        has_more=chunk.has_more,
        rows=payload_ref_message(PayloadRef.from_json(chunk.reference)),
    )


def chunk(message: pb.Command) -> Chunk | None:
    """The chunk that a command takes, if it takes one."""
    if not message.HasField("chunk"):
        return None
    told = message.chunk
    return Chunk(
        step=told.step,
        task=told.task,
        call=told.call,
        chunk_index=told.chunk_index,
        row_count=told.row_count,
        has_more=told.has_more,
        reference=payload_ref(told.rows).to_json(),
    )


def place_message(place: Place) -> pb.StreamPlace:
    """How far streams have come, as a message."""
    return pb.StreamPlace(call=place.call, chunk=place.chunk)


def place(message: pb.Command) -> Place:
    """How far streams have come."""
    return Place(call=message.streamed.call, chunk=message.streamed.chunk)
