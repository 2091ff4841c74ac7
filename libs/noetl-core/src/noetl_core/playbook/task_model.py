"""What a checked playbook says about one call: the tool, its rules, what is kept of its result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from noetl_core.canonical import JsonValue

Condition: TypeAlias = str | bool
"""A template that holds or not, with or without its braces."""

Count: TypeAlias = int | str
"""A whole number, or the template of one."""

Amount: TypeAlias = float | str
"""A number, or the template of one."""


class ToolKind(StrEnum):
    """Every tool of the language; what is not among them is provided by a plug-in."""

    AGENT = "agent"
    ARTIFACT = "artifact"
    CONTAINER = "container"
    DUCKDB = "duckdb"
    DUCKLAKE = "ducklake"
    HTTP = "http"
    NATS = "nats"
    NOOP = "noop"
    PLAYBOOK = "playbook"
    POSTGRES = "postgres"
    PYTHON = "python"
    SCRIPT = "script"
    SHELL = "shell"
    SNOWFLAKE = "snowflake"
    SPARK = "spark"
    SUBSCRIPTION = "subscription"
    TRANSFER = "transfer"
    WORKBOOK = "workbook"


class SetScope(StrEnum):
    """How long an assigned value lives: with the execution, with this item, with this activation."""

    CTX = "ctx"
    ITER = "iter"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One target of `set`: `ctx.a.b` is the key `b` of the execution's variable `a`."""

    scope: SetScope
    path: tuple[str, ...]
    value: JsonValue


class Do(StrEnum):
    """What a rule makes of an outcome."""

    CONTINUE = "continue"
    RETRY = "retry"
    FAIL = "fail"
    BREAK = "break"
    JUMP = "jump"


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """The `then` of a rule: assignments first, then what is done."""

    do: Do
    attempts: int = 3
    """All runs of the task, the first one included."""
    delay_seconds: float = 0.0
    backoff: str | None = None
    """`linear`, `exponential`; with any other word the delay stays the same."""
    to: str | None = None
    """The task that a jump leads to: a label of the same pipeline."""
    set: tuple[Assignment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What to do if a condition on the outcome holds; `else` is a rule whose condition is `True`."""

    when: Condition = True
    then: Action


class PageBy(StrEnum):
    """How the next page is asked for."""

    NEXT_LINK = "next_link"
    CURSOR = "cursor"
    OFFSET = "offset"
    PAGE = "page"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paginate:
    """How an http call goes on to the next page, and when it has all of them."""

    by: PageBy
    param: str | None = None
    items: str | None = None
    """Where the items stand in the body; without it the body is the list."""
    next: str | None = None
    """Where the URL or cursor of the next page stands in the body."""
    start: Count = 0
    size: Count | None = None
    size_param: str | None = None
    stop_when: Condition = False
    max_pages: Count = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """A token bucket that a worker's slots share by key; without a key it belongs to the task."""

    rate: Amount
    per_seconds: Amount = 1.0
    burst: Amount | None = None
    """As many as `rate` if nothing is written."""
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """The call delivers its rows in chunks while it runs."""

    chunk_rows: Count = 1000


class OutputScope(StrEnum):
    """How long a stored result lives."""

    STEP = "step"
    EXECUTION = "execution"
    WORKFLOW = "workflow"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """A part of a result that can be read without loading it, and the name under which it stands."""

    path: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a result is kept; what is not written is the runtime's choice."""

    select: tuple[Selected, ...] = ()
    store: str | None = None
    inline_max_bytes: int | None = None
    scope: OutputScope | None = None


class LoopMode(StrEnum):
    """Who runs the items: one after the other, several at once, a frame for each, slots that claim rows."""

    SEQUENTIAL = "sequential"
    PARALLEL = "parallel"
    FANOUT = "fanout"
    CURSOR = "cursor"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLoop:
    """A loop of one task, nested in place and without events of its own."""

    items: JsonValue
    """The list, or the template of one (`in`)."""
    iterator: str = "item"
    mode: LoopMode = LoopMode.SEQUENTIAL
    max_in_flight: Count = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What is called, and how its outcome is dealt with. `config` has the keys of its kind as they are written."""

    kind: str
    """A `ToolKind`, or the name of a kind that a plug-in provides."""
    label: str | None = None
    input: Mapping[str, JsonValue] = field(default_factory=dict)
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    timeout_seconds: float | None = None
    timeout_template: str | None = None
    """Where the timeout is only known when the call is made."""
    auth: JsonValue = None
    """A name, a template, `{type or source, key}`, or a map of aliases to those."""
    set: tuple[Assignment, ...] = ()
    output: Output | None = None
    rules: tuple[Rule, ...] = ()
    paginate: Paginate | None = None
    rate_limit: RateLimit | None = None
    stream: Stream | None = None

    @property
    def has_timeout(self) -> bool:
        """Whether its calls have a limit of their own."""
        return self.timeout_seconds is not None or self.timeout_template is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One call of a step under the label by which later tasks know it."""

    label: str
    tool: Tool
    loop: TaskLoop | None = None
