"""The fact that something took too long."""

from __future__ import annotations

from noetl_core.catalog import event_type
from noetl_core.values import dataclass


@event_type("deadline.passed")
@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed:
    """The deadline of an execution, a step's activation or a waiting command lies behind PostgreSQL's clock.

    `what` is execution, step or command; of a command, step and activation are those that it belongs to.
    """

    what: str
    deadline: str
    step: str = ""
    activation: int = 0
    command_id: str = ""


DeadlineEvent = DeadlinePassed
