"""The variables with which an execution begins: the playbook's defaults, what the caller gave, and templates once."""

from __future__ import annotations

import random
from collections.abc import Mapping

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.expressions import TemplateFailed, render
from noetl_core.playbook.syntax import has_template


def merged(defaults: Mapping[str, JsonValue], payload: Mapping[str, JsonValue]) -> JsonObject:
    """The payload over the defaults by key, and the keys of its `ctx` map over both."""
    variables = {**defaults, **payload}
    context = payload.get("ctx")
    if isinstance(context, dict):
        del variables["ctx"]
        variables.update(context)
    return variables


def own_templates(defaults: Mapping[str, JsonValue], payload: Mapping[str, JsonValue]) -> tuple[str, ...]:
    """Keys whose values the playbook's author wrote, with templates in them.

    What a caller gave is data, whatever braces it has: rendering it would let the one who fills in a form write
    expressions.
    """
    context = payload.get("ctx")
    given = payload.keys() | (context.keys() if isinstance(context, dict) else set())
    return tuple(key for key, value in defaults.items() if key not in given and _has_template(value))


def rendered(
    variables: JsonObject,
    keys: tuple[str, ...],
    *,
    payload: Mapping[str, JsonValue],
    execution_id: int,
    env: Mapping[str, str],
    now: str,
) -> JsonObject:
    """The variables with the templates of some keys evaluated, in written order; each sees what came before it."""
    result = dict(variables)
    for key in keys:
        names: dict[str, object] = {
            **result,
            "payload": payload,
            "input": payload,
            "execution_id": str(execution_id),
            "env": env,
        }
        result[key] = _render_where_possible(result[key], names, now)
    return result


def _render_where_possible(value: JsonValue, names: Mapping[str, object], now: str) -> JsonValue:
    if isinstance(value, dict):
        return {key: _render_where_possible(child, names, now) for key, child in value.items()}
    if isinstance(value, list):
        return [_render_where_possible(child, names, now) for child in value]
    if not isinstance(value, str):
        return value
    try:
        return render(value, names, now=now, chance=random.random)
    except TemplateFailed:
        return value


def _has_template(value: JsonValue) -> bool:
    if isinstance(value, str):
        return has_template(value)
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_has_template(child) for child in children)
