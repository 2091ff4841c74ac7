"""The one spelling of every JetStream stream, subject and header."""

import re
from dataclasses import dataclass

EVENTS_STREAM = "NOETL_EVENTS"
WORK_STREAM = "NOETL_WORK"
CONTROL_STREAM = "NOETL_CONTROL"

EVENTS_SUBJECTS = "noetl.events.>"
WORK_SUBJECTS = "noetl.work.>"
CONTROL_SUBJECTS = "noetl.control.>"

CANCEL_SUBJECT = "noetl.control.cancel"
"""An execution has ended: stop its calls."""
STOP_SUBJECT = "noetl.control.stop"
"""An activation of a step has ended: stop its calls."""

MESSAGE_ID = "Nats-Msg-Id"
STREAM_VERSION = "Noetl-Stream-Version"
AGGREGATE_VERSION = "Noetl-Aggregate-Version"
INGEST_TIME = "Noetl-Ingest-Time"
PREV_CHECKSUM = "Noetl-Prev-Checksum"
CHECKSUM = "Noetl-Checksum"
LOG_BRANCH = "Noetl-Log-Branch"
EVENTS = "Noetl-Events"
"""How many events a message carries, if there are several; its stream version is that of the last of them."""
TRACEPARENT = "traceparent"
OWN_HEADERS = frozenset(
    {STREAM_VERSION, AGGREGATE_VERSION, INGEST_TIME, PREV_CHECKSUM, CHECKSUM, LOG_BRANCH, EVENTS, TRACEPARENT}
)
"""Names of headers that need not be looked at again before they are sent."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def token(text: str) -> str:
    """A name as one subject token; lossy, since the truth is in the message."""
    return _UNSAFE.sub("_", text) or "_"


def event_subject(*, tenant_id: str, organization_id: str, execution_id: int, shard: int) -> str:
    """Where the events of an execution are published."""
    return f"noetl.events.{token(tenant_id)}.{token(organization_id)}.{execution_id}.{shard}"


def shard_filter(shard: int) -> str:
    """What an owner of a shard listens to."""
    return f"noetl.events.*.*.*.{shard}"


def work_subject(*, pool: str, kind: str) -> str:
    """Where wake-ups for a pool of workers are published."""
    return f"noetl.work.{token(pool)}.{token(kind)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """What a JetStream stream must be like; provisioning is idempotent."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool = False
    in_memory: bool = False
    max_age_seconds: float
    duplicate_window_seconds: float = 120.0


STREAMS = (
    StreamSpec(name=EVENTS_STREAM, subjects=(EVENTS_SUBJECTS,), max_age_seconds=86_400.0),
    StreamSpec(name=WORK_STREAM, subjects=(WORK_SUBJECTS,), work_queue=True, max_age_seconds=3_600.0),
    StreamSpec(
        name=CONTROL_STREAM,
        subjects=(CONTROL_SUBJECTS,),
        in_memory=True,
        max_age_seconds=60.0,
        duplicate_window_seconds=60.0,
    ),
)
