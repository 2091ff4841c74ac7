"""`output.py` and `output.pg` as arcs see them: what control expressions name is told, and stored if it is large."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from noetl_core.playbook.control import references_after
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.selection import ResultPath, parse_pointer, result_view
from noetl_core.playbook.views import Key, View, look_into, whole_of

FACTS: Final = "facts"
"""Where the context of a result has what was selected of them, and its reference where they are stored whole."""
KINDS: Final = ("pg", "py")


@lru_cache(maxsize=256)
def fact_paths(playbook: Playbook, step: str) -> frozenset[ResultPath]:
    """Which facts about its call the control expressions after a step read; a loop has items, and no call."""
    described = playbook.steps[step]
    if described.loop is not None:
        return frozenset()
    named = [path[1:] for path in references_after(described) if path[0] == "output"]
    whole = {(kind,) for kind in KINDS} if () in named else set()
    return frozenset({*whole, *(path for path in named if path and path[0] in KINDS)})


def known_facts(result: Mapping[str, Any], paths: frozenset[ResultPath], loaded: object = None) -> dict[str, object]:
    """The facts that an event tells of; reading more than it was asked for fails, where they were not loaded."""
    context = result.get("context") or {}
    facts: dict[str, object] = {kind: context[kind] for kind in KINDS if kind in context}
    told = context.get(FACTS)
    if told is None:
        return facts
    select, unselected = told.get("select") or {}, told.get("unselected") or ()
    view = loaded or result_view(select, unselected, paths)
    kinds = {parse_pointer(place)[0] for place in (*select, *unselected)}
    return {**facts, **{kind: _Facts(view, kind) for kind in kinds}}


class _Facts(View):
    """Facts of one kind, looked for when somebody reads them."""

    def __init__(self, all_facts: object, kind: str) -> None:
        self._all = all_facts
        self._kind = kind

    def lookup(self, key: Key) -> object:
        return look_into(look_into(self._all, self._kind), key)

    def whole(self) -> object:
        return whole_of(look_into(self._all, self._kind))
