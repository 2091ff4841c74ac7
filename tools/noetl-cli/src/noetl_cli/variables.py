"""The variables that a playbook is started with: a payload file, and single values set over it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from noetl_core.canonical import encode
from noetl_core.errors import InvalidInput


class VariablesInvalid(InvalidInput):
    """What was given as payload or with --set cannot be the variables of a playbook."""

    code = "execution.invalid_payload"


def read_payload(text: str, *, source: str) -> dict[str, Any]:
    """The JSON object in a payload file."""
    try:
        payload = json.loads(text, parse_constant=_refuse_constant)
    except ValueError as exc:
        raise VariablesInvalid(f"{source} is not JSON: {exc}") from exc
    if not isinstance(payload, dict):
        raise VariablesInvalid(f"{source} must be a JSON object, not {_kind(payload)}")
    return payload


def merge_settings(payload: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The payload with each `a.b=value` set in it, later ones win; refused if no event could carry it."""
    merged = _copy(payload)
    for setting in settings:
        name, separator, raw = setting.partition("=")
        keys = name.split(".")
        if not separator or not all(keys):
            raise VariablesInvalid(f"--set takes NAME=VALUE, such as amount=120 or a.b=text, not {setting!r}")
        _set(merged, keys, _value(raw))
    encode(merged)  # a number too large, say: better said now than when the playbook is registered already
    return merged


def _set(place: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for depth, key in enumerate(keys[:-1], start=1):
        below = place.setdefault(key, {})
        if not isinstance(below, dict):
            raise VariablesInvalid(f"{'.'.join(keys[:depth])!r} is {_kind(below)}, so nothing can be set below it")
        place = below
    place[keys[-1]] = value


def _value(raw: str) -> Any:
    """JSON if it is JSON, else the text as it stands."""
    try:
        return json.loads(raw, parse_constant=_refuse_constant)
    except ValueError:
        return raw


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    """Maps are copied all the way down, since settings are written into them."""
    return {key: _copy(below) if isinstance(below, dict) else below for key, below in value.items()}


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")
