"""A Spark session that somebody else runs: calls go in, results that refer to payloads come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from noetl_core.canonical import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkCall:
    """One query, or one run of user code."""

    call_id: str
    tenant_id: str
    organization_id: str
    execution_id: str
    step: str
    sql: str | None = None
    code: str | None = None
    tables: Mapping[str, JsonObject] = field(default_factory=dict)
    """Inputs by reference: `{_chunks, schema}` by the name of the view."""
    values: Mapping[str, JsonValue] = field(default_factory=dict)
    """Other inputs: parameters of the query, arguments of the code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkTasks:
    """A function of an installed package for tasks to run; each gets a share of what there is to do.

    `function(common, share, task)` is `module:name` and gives something that JSON can carry; `task` names the attempt
    at the task, and no other. One that gives a `left` which is not empty is about to be followed by another.
    """

    call_id: str
    execution_id: str
    step: str
    function: str
    common: JsonObject = field(repr=False)
    """Travels in what is pickled for the tasks, and nowhere else: it may have secrets."""
    shares: Sequence[JsonValue]


SparkWork = SparkCall | SparkTasks


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFailure:
    """Why a call failed, in words for its author; `kind` is one of those that outcomes have."""

    kind: str
    code: str
    message: str
    retryable: bool = False
    lines: str = ""
    """The way through the user's code, if it was theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEnd:
    """How a call ended, and what its code printed."""

    data: JsonValue = None
    failure: SparkFailure | None = None
    stdout: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkProgress:
    """How far the jobs of a call are."""

    stages_done: int
    stages: int
    tasks_done: int
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """What the operator says about the session of a worker."""

    master: str = ""
    """Where tasks run; empty is `local[n]`, with as many threads as there are processors, at least two."""
    memory: str = "1g"
    """Heap of the driver, and of each executor."""
    python_memory: str = ""
    """What each Python process of a task may take, slots of stages included; empty sets no limit."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """More of Spark's own settings; they win over ours."""
    max_calls: int = 4
    start_seconds: float = 180.0
    cancel_seconds: float = 20.0
    """A call that goes on for so long after it was cancelled takes the session with it."""


class SparkSessions(Protocol):
    """The session of this worker, started when it is needed."""

    async def warm(self) -> None:
        """Start it now; raises `Unavailable` when there is no Java, or Spark does not start."""
        ...

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        """Run a call to its end; cancelling stops its jobs. A session that is gone is a failure that may be retried.

        What tasks gave is a list, one entry a task; one that died, whatever the reason, has an `error` instead.
        `began` is told when tasks have got their seats: until then they only wait.
        """
        ...

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        """Nobody waits for what tasks of a call do with these shares: a task that has no others is ended.

        It may be one that stands still, so it is killed. Safe to repeat; nothing happens if there is no such task.
        """
        ...
