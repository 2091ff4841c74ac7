"""Under which node the facts about a command are told: that of its step, or of the step's pipeline (playbook §5.2).

The name alone cannot tell them apart, because a step may have any name. A fact about a pipeline's command says so, and
facts that were written before pipelines had a node of their own do not: those stand under the step, and always will.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.values import dataclass

PIPELINE_NODE: Final = ":task_sequence"
"""Behind the name of a step: the node of the command that runs its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfCommand:
    """What every fact about a command says of it."""

    command_id: str
    step: str
    pipeline: bool | None = None
    """Whether the tools of its step are a list; the fact is then told under the node `<step>:task_sequence`."""


def node_of(step: str, *, pipeline: bool | None) -> str:
    """The node of a step's command."""
    return f"{step}{PIPELINE_NODE}" if pipeline else step


def step_of(node_name: str, meta: Mapping[str, Any]) -> str:
    """The step of an event, by its node and by what else it says."""
    return node_name.removesuffix(PIPELINE_NODE) if meta.get("pipeline") is True else node_name
