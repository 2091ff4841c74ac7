"""What routing needs to know besides the log: the pinned playbook, its graph, and the execution's variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cached_property

from noetl_core.canonical import JsonValue
from noetl_core.playbook.graph import Graph, build_graph
from noetl_core.playbook.model import Playbook
from noetl_core.steering.state import Inheritance
from noetl_core.values import dataclass


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Immutable for the life of an execution: its playbook version is pinned, its variables are content-addressed."""

    playbook: Playbook
    workload: Mapping[str, JsonValue] = field(default_factory=dict)
    inheritance: Inheritance | None = None
    """What a redriven execution begins with; None once it has begun."""
    max_attempts: int = 3
    pool: str = "default"

    @cached_property
    def graph(self) -> Graph:
        """Edges and reachability of the playbook."""
        return build_graph(self.playbook)


def runs_once(plan: Plan, step: str) -> bool:
    """Whether a step runs once for all arcs that lead to it: a join (§8.3), and the final step (§8.5)."""
    return step == plan.playbook.final_step or plan.graph.is_join(step)
