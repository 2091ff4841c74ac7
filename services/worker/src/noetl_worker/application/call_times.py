"""Where the time of a frame goes: by task, what its tools took and what it took to render for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from noetl_core.canonical import JsonObject


@dataclass(slots=True)
class TaskTime:
    """What one task of a pipeline has taken."""

    kind: str
    calls: int = 0
    task_seconds: float = 0.0
    """From its begin to its end, waiting included."""
    render_seconds: float = 0.0
    tool_seconds: float = 0.0
    """In the calls of its tool, without rendering."""

    def told(self) -> JsonObject:
        """In milliseconds."""
        return {
            "kind": self.kind,
            "calls": self.calls,
            "task_ms": round(self.task_seconds * 1000, 3),
            "render_ms": round(self.render_seconds * 1000, 3),
            "tool_ms": round(self.tool_seconds * 1000, 3),
        }


@dataclass(slots=True)
class CallTimes:
    """Of all tasks of a pipeline, by name; a pipeline has as many as its playbook writes."""

    tasks: dict[str, TaskTime] = field(default_factory=dict)

    def of(self, name: str, kind: str) -> TaskTime:
        """What there is of a task."""
        if name not in self.tasks:
            self.tasks[name] = TaskTime(kind)
        return self.tasks[name]

    def add(self, others: Iterable[CallTimes]) -> CallTimes:
        """With those of other runs of the same pipeline."""
        for other in others:
            for name, time in other.tasks.items():
                mine = self.of(name, time.kind)
                mine.calls += time.calls
                mine.task_seconds += time.task_seconds
                mine.render_seconds += time.render_seconds
                mine.tool_seconds += time.tool_seconds
        return self

    def told(self) -> JsonObject:
        """As a commit tells it."""
        return {name: time.told() for name, time in self.tasks.items()}
