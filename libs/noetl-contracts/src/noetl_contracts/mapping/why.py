"""What executions wait for, as messages."""

from __future__ import annotations

from noetl.why.v1 import why_pb2 as pb
from noetl_core.canonical import encode
from noetl_core.why import Reason, ReasonKind

from noetl_contracts.mapping.events import json_object
from noetl_contracts.mapping.times import moment, optional_timestamp


def reason_message(reason: Reason) -> pb.Reason:
    """A reason as a message."""
    return pb.Reason(
        kind=reason.kind.value,
        step=reason.step,
        since=optional_timestamp(reason.since),
        text=reason.text,
        details_json=encode(dict(reason.details)),
    )


def reason(message: pb.Reason) -> Reason:
    """A reason; kinds of later releases are told as `more`."""
    known = {kind.value: kind for kind in ReasonKind}
    return Reason(
        kind=known.get(message.kind, ReasonKind.MORE),
        step=message.step,
        since=moment(message.since) if message.HasField("since") else None,
        text=message.text,
        details=json_object(message.details_json, "details_json"),
    )
