"""A step that fails after its call went well: its result is what the call gave, with the failure over it (§8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from noetl_core.playbook.views import Key, View, least_of, look_into, passed_of, whole_of

AMENDED: Final = "amended"
"""In the context of a result: its bytes know nothing of the error that stands beside them."""


def amended(result: Mapping[str, Any], error: Mapping[str, Any]) -> dict[str, Any]:
    """The result as events tell it: the same reference, and why the step has failed."""
    context = {**(result.get("context") or {}), "error": dict(error), AMENDED: True}
    return {"reference": None, "parent_ref": None, **result, "status": "error", "context": context}


def with_failure(value: object, result: Mapping[str, Any]) -> object:
    """The value of a result as templates see it: after a failure of routing, as after `continue` (§5.1)."""
    context = result.get("context") or {}
    if not context.get(AMENDED):
        return value
    failure = {"status": "error", "error": context["error"]}
    return _Failed(value, failure) if isinstance(value, View) else _over(value, failure)


class _Failed(View):
    """A result of which only parts may be here, under the failure of its step."""

    def __init__(self, result: object, failure: Mapping[str, object]) -> None:
        self._result = result
        self._failure = failure

    def lookup(self, key: Key) -> object:
        if isinstance(key, str) and key in self._failure:
            return self._failure[key]
        return look_into(self._result, key)

    def whole(self) -> object:
        return _over(whole_of(self._result), self._failure)

    def least(self) -> object:
        return _over(least_of(self._result), self._failure)

    def passed(self) -> object:
        return _over(passed_of(self._result), self._failure)


def _over(value: object, failure: Mapping[str, object]) -> object:
    """What was kept, plus the failure; what is no map is kept as `data`."""
    if isinstance(value, Mapping):
        return {**value, **failure}
    return {**({} if value is None else {"data": value}), **failure}
