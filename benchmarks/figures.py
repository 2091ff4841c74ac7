"""What was measured, whether it meets its goal, and how people and programs read it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A bound that is reported as met or missed, never enforced: it depends on the machine."""

    bound: float
    at_least: bool

    def is_met_by(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def __str__(self) -> str:
        return f"{'≥' if self.at_least else '<'} {self.bound:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One line of the report."""

    group: str
    name: str
    value: float
    unit: str
    goal: Goal | None = None
    samples: int = 1

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        return f"goal {self.goal}: {'met' if self.goal.is_met_by(self.value) else 'MISSED'}"

    def to_json(self) -> dict[str, Any]:
        document = asdict(self)
        document["goal"] = None if self.goal is None else str(self.goal)
        document["met"] = None if self.goal is None else self.goal.is_met_by(self.value)
        return document


def latency_figures(group: str, name: str, seconds: Sequence[float], *, goal_ms: float | None = None) -> list[Figure]:
    """Median and 99th percentile in milliseconds; the goal is for the median."""
    goal = None if goal_ms is None else Goal(bound=goal_ms, at_least=False)
    return [
        Figure(
            group=group,
            name=f"{name} {label}",
            value=percentile(seconds, share) * 1000,
            unit="ms",
            goal=goal if label == "p50" else None,
            samples=len(seconds),
        )
        for label, share in (("p50", 0.50), ("p99", 0.99))
    ]


def processor_figures(group: str, what: str, used: Mapping[str, float], count: int) -> list[Figure]:
    """Processor time of each part for one of the things that were done, largest first."""
    unit, factor = ("ms", 1_000) if sum(used.values()) > count / 1_000 else ("µs", 1_000_000)
    total = Figure(group=group, name=f"processor time per {what}", value=sum(used.values()) / count * factor, unit=unit)
    parts = sorted(used.items(), key=lambda item: -item[1])
    return [
        total,
        *(
            Figure(group=group, name=f"  of {part}", value=seconds / count * factor, unit=unit)
            for part, seconds in parts
            if seconds > 0
        ),
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def report(figures: Sequence[Figure], facts: Mapping[str, str]) -> str:
    """The whole report as text."""
    lines = ["", "Machine and settings"]
    width = max(len(name) for name in facts)
    lines += [f"  {name:<{width}}  {value}" for name, value in facts.items()]
    group = ""
    width = max((len(figure.name) for figure in figures), default=0)
    for figure in figures:
        if figure.group != group:
            group = figure.group
            lines += ["", group]
        value = f"{_shown(figure.value):>10} {figure.unit}"
        lines.append(f"  {figure.name:<{width}}  {value:<20} {figure.verdict}".rstrip())
    return "\n".join(lines)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.2f}"
