"""Configuration of a NATS server as text: JSON, which the server reads, but for variables of its environment."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

Value = "str | int | bool | Variable | Mapping[str, Value] | Sequence[Value]"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of the environment, which the server puts in; quoted it would be plain text."""

    name: str


def as_text(config: Mapping[str, object]) -> str:
    """One setting a line, so that people can read what a ConfigMap holds."""
    return "\n".join(f"{key}: {_value(value, 0)}" for key, value in config.items()) + "\n"


def _value(value: object, depth: int) -> str:
    inner, outer = "  " * (depth + 1), "  " * depth
    if isinstance(value, Variable):
        return f"${value.name}"
    if isinstance(value, Mapping):
        lines = [f"{inner}{key}: {_value(one, depth + 1)}" for key, one in value.items()]
        return "{\n" + "\n".join(lines) + f"\n{outer}}}" if lines else "{}"
    if isinstance(value, list | tuple):
        lines = [f"{inner}{_value(one, depth + 1)}" for one in value]
        return "[\n" + "\n".join(lines) + f"\n{outer}]" if lines else "[]"
    return json.dumps(value)
