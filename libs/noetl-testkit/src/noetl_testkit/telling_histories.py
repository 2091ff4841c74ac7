"""Histories that tell something to every surface: frames, loops, commands, and objects of their users."""

from __future__ import annotations

import random

from noetl_core.envelope import Draft
from noetl_core.executions.events import PlaybookFailed, StepEntered

from noetl_testkit.frame_histories import drawn_frame_history
from noetl_testkit.histories import EXECUTION, History, abandoned, claimed, completed, issued, started


def telling_history(choose: random.Random, *, execution_id: int = EXECUTION) -> History:
    """Frames first, then commands and what users say of their objects, and sometimes an end that is awkward to hold."""
    history = drawn_frame_history(choose, moves=8, execution_id=execution_id)
    for activation in range(1, 4):
        command = issued(history, "call", activation=activation)
        history.add(StepEntered(step="call", activation=activation, consumes=("",)), command)
        history.add(claimed(command), _of_object(choose, history), started(command))
        history.add(choose.choice((completed, abandoned))(command), _of_object(choose, history))
    if choose.random() < 0.5:
        history.add(PlaybookFailed(error={"code": "x", "message": "zero \u0000", "size": 1e22, "at": [1, None, {}]}))
    return history


def _of_object(choose: random.Random, history: History) -> Draft:
    change = choose.choice(
        (
            {"state": {"total": choose.choice((1, 2.5, 1e22)), "text": "zero \u0000 é"}},
            {"patch": {"total": None, "lines": [{"sku": "a"}]}, "status": "open"},
            {"patch": {"deep": {"er": {"still": choose.randint(0, 9)}}}},
            {"deleted": True},
            {"derived_from": [{"type": "customer", "id": "7"}]},
        )
    )
    identity = {"type": choose.choice(("order", "order-line")), "id": choose.choice(("1", "2", "a/b"))}
    return Draft(
        event_type="order.changed",
        idempotency_key=f"object/{len(history.stored)}/{choose.randint(0, 2**40)}",
        meta={"business_object": {**identity, **change}},
    )
