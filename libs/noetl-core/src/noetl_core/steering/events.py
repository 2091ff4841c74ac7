"""Facts about what people do to an execution, and who they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.values import dataclass


@event_type("execution.paused")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPaused:
    """No command is issued or claimed until the execution is resumed; what runs goes on to its end."""

    reason: str
    paused_by: str


@event_type("execution.resumed")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResumed:
    """The execution goes on with what was held back."""

    reason: str
    resumed_by: str


@event_type("execution.inherited")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionInherited:
    """Results of steps and variables of another execution, of which this one is the redrive; several may follow."""

    results: Mapping[str, Any] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    refs: Mapping[str, Any] = field(default_factory=dict)


SteeringEvent = ExecutionPaused | ExecutionResumed | ExecutionInherited
