"""What the rules of a task make of an outcome: which one applies, and how long a retry waits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from noetl_core.playbook.expressions import TemplateFailed, evaluate_condition, render
from noetl_core.playbook.model import Action, Amount, Do, Rule

MAX_DELAY_SECONDS = 366 * 86_400.0
"""A year: what doubles goes on for ever, and timers do not."""
JITTER_SHARE = 0.1
"""Retries of many items after one outage come back spread over a tenth of their delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a task runs at most, and when again."""

    attempts: int
    delay_seconds: float
    backoff: str | None

    def delay(self, *, run: int, chance: Callable[[], float]) -> float:
        """Seconds before the next run, after `run` runs."""
        delay = self.delay_seconds
        if self.backoff == "linear":
            delay *= run
        elif self.backoff == "exponential":
            delay *= 2.0 ** min(run - 1, 32)
        return min(delay, MAX_DELAY_SECONDS) * (1.0 + JITTER_SHARE * chance())


def choose(rules: Sequence[Rule], names: Mapping[str, object], *, failed: bool, now: str | None) -> Action:
    """The action of the first rule that matches; none: what went well continues, what did not fails."""
    for index, rule in enumerate(rules):
        if evaluate_condition(rule.when, names, now=now, path=f"rules[{index}].when", chance=random.random):
            return rule.then
    return Action(do=Do.FAIL if failed else Do.CONTINUE)


def retry_of(action: Action, names: Mapping[str, object], *, now: str | None) -> Retry:
    """The numbers of a retry, which may be templates; raises `TemplateFailed`."""
    return Retry(
        attempts=max(int(number_of(action.attempts, names, now)), 1),
        delay_seconds=max(number_of(action.delay_seconds, names, now), 0.0),
        backoff=action.backoff,
    )


def number_of(value: Amount, names: Mapping[str, object], now: str | None) -> float:
    """A number that may be written as a template; raises `TemplateFailed`."""
    rendered = render(value, names, now=now)
    try:
        return float(rendered)  # type: ignore[arg-type]  # what is no number is told below
    except (TypeError, ValueError) as exc:
        raise TemplateFailed("this is no number", expression=str(value)) from exc
