"""A playbook that has been checked: what the runtime may rely on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from noetl_core.canonical import JsonValue


class ToolKind(StrEnum):
    """The tools that this version can run."""

    PYTHON = "python"
    NOOP = "noop"


class ArcMode(StrEnum):
    """How many of the arcs whose condition holds are taken: the first one, or all."""

    EXCLUSIVE = "exclusive"
    INCLUSIVE = "inclusive"


class FailureMode(StrEnum):
    """After an unhandled failure, other branches run to their end, or the execution ends now."""

    BEST_EFFORT = "best_effort"
    FAIL_FAST = "fail_fast"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """What a step calls. `config` has the keys of its kind: `code, libs` for python, `result` for noop."""

    kind: ToolKind
    label: str | None = None
    input: Mapping[str, JsonValue] = field(default_factory=dict)
    config: Mapping[str, JsonValue] = field(default_factory=dict)
    timeout_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """A way from one step to another, taken if its condition holds; without one it always does."""

    step: str
    when: str | bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Where a step leads."""

    mode: ArcMode = ArcMode.EXCLUSIVE
    arcs: tuple[Arc, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A named place in the workflow with the tool that runs there."""

    name: str
    desc: str = ""
    tool: Tool
    input: Mapping[str, JsonValue] = field(default_factory=dict)
    next: Next = field(default_factory=Next)
    failure_mode: FailureMode = FailureMode.BEST_EFFORT

    def merged_input(self) -> dict[str, JsonValue]:
        """The input templates of the call: the tool's own win over those of its step."""
        return {**self.input, **self.tool.input}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Playbook:
    """A workflow with its default variables; only identical to itself, so that what follows from it can be kept."""

    name: str
    path: str
    metadata: Mapping[str, JsonValue] = field(default_factory=dict)
    workload: Mapping[str, JsonValue] = field(default_factory=dict)
    entry_step: str
    final_step: str | None = None
    no_next_is_error: bool = False
    steps: Mapping[str, Step]
    """By name, in written order."""
