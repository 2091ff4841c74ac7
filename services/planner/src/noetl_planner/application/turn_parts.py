"""What a turn is made of: the rules that the operator sets, and what one append will carry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from noetl_core.append import Fence, Hint
from noetl_core.envelope import Draft
from noetl_core.errors import NoetlError
from noetl_core.fold import State
from noetl_core.ports.commands import GrantedCommand

from noetl_planner.application.asks import Ask, refuse
from noetl_planner.application.waiting_workers import Waiter, WaitingWorkers, nobody_waits

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRules:
    """What the operator sets: how long claims last, where wake-ups go, and the clock that dates events."""

    lease_seconds: float
    now: Callable[[], datetime]
    work_subject: Callable[[str, str], str]
    waiting: WaitingWorkers = field(default_factory=nobody_waits)


@dataclass(slots=True, kw_only=True)
class Turn:
    """What one append will carry, and how each ask is answered once it has succeeded."""

    state: State
    now: datetime
    """When what is asked happened: the time of its events, and what `now()` gives where they are decided on."""
    asked_by: Fence | None = None
    """Of an elected asker: nothing of this turn is appended once his lease is over."""
    drafts: list[Draft] = field(default_factory=list)
    hints: list[Hint] = field(default_factory=list)
    answers: list[tuple[Ask, Callable[[], Any]]] = field(default_factory=list)
    refusals: list[tuple[Ask, NoetlError]] = field(default_factory=list)
    handed: list[tuple[Waiter, GrantedCommand]] = field(default_factory=list)
    """What is claimed for workers that wait; each is told once the append has succeeded."""
    left: Sequence[Ask] = ()
    """What was not looked at, because the append has become large."""


def constant(value: Answer) -> Callable[[], Answer]:
    """An answer that is known when the turn is planned."""
    return lambda: value


def tell(turn: Turn) -> None:
    """Answer everything that a turn has dealt with."""
    for ask, answer in turn.answers:
        if not ask.answer.done():
            ask.answer.set_result(answer())
    for ask, refusal in turn.refusals:
        refuse(ask, refusal)
