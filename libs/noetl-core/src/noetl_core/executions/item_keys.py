"""The key of an item of a fan-out: the same in every attempt, whatever its place in the collection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from noetl_core.canonical import JsonValue, encode
from noetl_core.executions.names import entry_names
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import Execution
from noetl_core.playbook.expressions import TemplateFailed, ValueWithheld, render
from noetl_core.playbook.model import Loop

MAX_CHARACTERS: Final = 250


def item_key(loop: Loop, names: Mapping[str, object], index: int, *, now: str | None) -> str:
    """§7.1: what `key` gives for an item, else its index; raises `TemplateFailed`."""
    if loop.key is None:
        return str(index)
    value: JsonValue = render(loop.key, dict(names), now=now, path="loop.spec.key")
    text = value if isinstance(value, str) else encode(value).decode()
    if not text or len(text) > MAX_CHARACTERS:
        reason = f"it gives {len(text)} characters, and a key has from 1 to {MAX_CHARACTERS}"
        raise TemplateFailed(reason, expression=loop.key, path="loop.spec.key")
    return text


def told_key(execution: Execution, plan: Plan, *, step: str, index: int, now: str) -> str:
    """The key as the planner can tell it: of an item that it does not have, or that it cannot evaluate, the index.

    Workers use the key itself: what it is for are effects.
    """
    policy, loop = plan.playbook.steps[step].loop, execution.loops.get(step)
    if policy is None or policy.key is None or loop is None or index >= len(loop.items):
        return str(index)
    names = entry_names(execution, plan, cause_step=execution.steps[step].cause_step)
    item = loop.items[index]
    own = {policy.iterator: item, "iter": {policy.iterator: item, "_index": index}, "_index": index}
    try:
        return item_key(policy, {**names, **own}, index, now=now)
    except (TemplateFailed, ValueWithheld):
        return str(index)
