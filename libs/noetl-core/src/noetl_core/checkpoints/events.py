"""The fact that everything up to a version has been projected and committed."""

from __future__ import annotations

from noetl_core.catalog import event_type
from noetl_core.values import dataclass


@event_type("checkpoint.committed")
@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """The rows of all surfaces include every event up to `position`, whose event is `last_event_id`.

    Checkpoints of an execution are numbered, and their number is in `epoch_id`: of several that are told at once only
    one can be the next.
    """

    epoch_id: str
    position: int
    last_event_id: str
