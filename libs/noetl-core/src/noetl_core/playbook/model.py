"""A playbook that has been checked: what the runtime may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from noetl_core.canonical import JsonValue
from noetl_core.playbook.loop_model import (
    Cursor,
    Engine,
    FailureBudget,
    FrameFailure,
    FramePolicy,
    FrameProcess,
    Loop,
    Reduce,
    RetryMode,
)
from noetl_core.playbook.task_model import (
    Action,
    Amount,
    Assignment,
    Condition,
    Count,
    Do,
    LoopMode,
    Output,
    OutputScope,
    PageBy,
    Paginate,
    RateLimit,
    Rule,
    Selected,
    SetScope,
    Stream,
    Task,
    TaskLoop,
    Tool,
    ToolKind,
)

__all__ = [
    "Action",
    "AdmitRule",
    "Amount",
    "Arc",
    "ArcEvent",
    "ArcMode",
    "Assignment",
    "Condition",
    "Count",
    "Cursor",
    "Do",
    "Engine",
    "FailureBudget",
    "FailureMode",
    "FrameFailure",
    "FramePolicy",
    "FrameProcess",
    "KeychainEntry",
    "KeychainScope",
    "Loop",
    "LoopMode",
    "Next",
    "NoMatch",
    "Output",
    "OutputScope",
    "PageBy",
    "Paginate",
    "Playbook",
    "Profile",
    "RateLimit",
    "Reduce",
    "RetryMode",
    "Rule",
    "Selected",
    "SetScope",
    "Step",
    "Stream",
    "Task",
    "TaskLoop",
    "Tool",
    "ToolKind",
    "WorkbookTask",
]


class ArcMode(StrEnum):
    """How many of the arcs whose condition holds are taken: the first one, or all."""

    EXCLUSIVE = "exclusive"
    INCLUSIVE = "inclusive"


class ArcEvent(StrEnum):
    """What an arc waits for, if it is not the end of the step."""

    CALL_PARTIAL = "call.partial"


class NoMatch(StrEnum):
    """How a branch ends where no arc is taken."""

    COMPLETE = "complete"
    QUIET = "quiet"


class FailureMode(StrEnum):
    """After an unhandled failure, other branches run to their end, or the execution ends now."""

    BEST_EFFORT = "best_effort"
    FAIL_FAST = "fail_fast"


class Profile(StrEnum):
    """Where an execution runs."""

    LOCAL = "local"
    DISTRIBUTED = "distributed"
    AUTO = "auto"


class KeychainScope(StrEnum):
    """Who shares what a keychain entry resolves to: all executions, or nobody."""

    GLOBAL = "global"
    LOCAL = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """A way from one step to another, taken if its condition holds; without one it always does."""

    step: str
    when: Condition = True
    set: tuple[Assignment, ...] = ()
    on: ArcEvent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Where a step leads."""

    mode: ArcMode = ArcMode.EXCLUSIVE
    arcs: tuple[Arc, ...] = ()
    on_no_match: NoMatch = NoMatch.COMPLETE


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitRule:
    """Whether a step may start if a condition holds; `else` is a rule whose condition is `True`."""

    when: Condition = True
    allow: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A named place in the workflow with what runs there."""

    name: str
    desc: str = ""
    tool: Tool
    """The tool of a step that has one; of a pipeline, the first."""
    tasks: tuple[Task, ...] = ()
    """What runs, in order: a single tool is a pipeline of one."""
    is_pipeline: bool = False
    """Whether the tools are written as a list; then the result has labels too."""
    input: Mapping[str, JsonValue] = field(default_factory=dict)
    loop: Loop | None = None
    reduce: Reduce | None = None
    set: tuple[Assignment, ...] = ()
    output: Output | None = None
    next: Next = field(default_factory=Next)
    timeout_seconds: float | None = None
    """Of the whole activation."""
    timeout_template: str | None = None
    """Where the timeout is only known when the activation begins."""
    failure_mode: FailureMode = FailureMode.BEST_EFFORT
    admit: tuple[AdmitRule, ...] = ()

    def __post_init__(self) -> None:
        if not self.tasks:
            label = self.tool.label or f"{self.name}_task"
            object.__setattr__(self, "tasks", (Task(label=label, tool=self.tool),))

    def merged_input(self, task: Task | None = None) -> dict[str, JsonValue]:
        """The input templates of a call, the first one if none is named: the tool's own win over those of its step."""
        return {**self.input, **(task.tool if task else self.tool).input}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeychainEntry:
    """A secret under the name by which tools know it; `config` has the keys of its kind."""

    name: str
    kind: str
    scope: KeychainScope = KeychainScope.LOCAL
    auto_renew: bool = False
    config: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkbookTask:
    """A tool that steps call by name."""

    name: str
    desc: str = ""
    tool: Tool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Playbook:
    """A workflow with its default variables; only identical to itself, so that what follows from it can be kept."""

    name: str
    path: str
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    workload: Mapping[str, JsonValue] = field(default_factory=dict)
    profile: Profile = Profile.AUTO
    entry_step: str
    final_step: str | None = None
    no_next_is_error: bool = False
    timeout_seconds: float | None = None
    """Of the whole execution."""
    timeout_template: str | None = None
    """Where the timeout is only known when the execution begins."""
    keychain: Mapping[str, KeychainEntry] = field(default_factory=dict)
    """By name, in written order."""
    workbook: Mapping[str, WorkbookTask] = field(default_factory=dict)
    """By name, in written order."""
    steps: Mapping[str, Step]
    """By name, in written order."""
