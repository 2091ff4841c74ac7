"""Read what a tool kind has of its own, and refuse what no call could be made with."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping

from noetl_core.canonical import JsonValue
from noetl_core.playbook.fields import Fields, check_templates, type_name
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.kinds import KINDS, NATS_OPERATION_PREFIXES, NATS_OPERATIONS, PASSWORD_KEYS
from noetl_core.playbook.shapes import is_template
from noetl_core.playbook.source import Path
from noetl_core.playbook.support import Feature
from noetl_core.playbook.task_model import ToolKind
from noetl_core.playbook.task_vocabulary import COMMON_KEYS

_NOT_CONFIG = frozenset({"credential", "timeout_seconds"})


def read_config(
    fields: Fields, kind: str, own_keys: frozenset[str], *, names_task: bool = False
) -> Mapping[str, JsonValue]:
    """The keys of the kind with their values as they are written; of a plug-in's kind, all that are not common."""
    if kind not in KINDS:
        return {key: value for key, value in fields.values.items() if key not in COMMON_KEYS}
    config = {key: _cleaned(fields, key) for key in fields.values if key in own_keys and key not in _NOT_CONFIG}
    if names_task and fields.has("name"):
        config["task"] = fields.text("name")
    finish = _KINDS.get(ToolKind(kind))
    if finish is not None:
        finish(fields, config)
    return config


def refuse_passwords(values: Mapping[str, JsonValue], path: Path, findings: Findings) -> None:
    """A playbook is stored and shown, so that a password in it is one no longer."""
    spec = values.get("spec")
    places = [(values, path)] + ([(spec, (*path, "spec"))] if isinstance(spec, dict) else [])
    for place, where in places:
        for key in sorted(PASSWORD_KEYS & place.keys()):
            message = f"{key!r} must not stand in a playbook"
            suggestion = "store a credential and write its name under `auth`"
            findings.error("tool_config", message, (*where, key), suggestion=suggestion)


def _cleaned(fields: Fields, key: str) -> JsonValue:
    """A value without what is not known in it."""
    below = fields.below(key) if isinstance(fields.values[key], dict) else None
    return fields.values[key] if below is None else {name: _cleaned(below, name) for name in below.values}


def _python(fields: Fields, config: dict[str, JsonValue]) -> None:
    config.pop("libs", None)
    if "code_b64" in config:
        code = _decoded(fields, str(config["code_b64"]))
        if code is not None:
            del config["code_b64"]
            config["code"] = code
            check_templates(code, (*fields.path, "code_b64"), fields.findings, only_warn=True)
    libs = _libs(fields)
    if libs:
        config["libs"] = libs


def _decoded(fields: Fields, text: str) -> str | None:
    if is_template(text):
        fields.findings.supports(Feature.CODE_B64_TEMPLATE, (*fields.path, "code_b64"))
        return None
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        fields.invalid("code_b64", f"is not text in base64: {exc}")
        return None


def _libs(fields: Fields) -> dict[str, JsonValue]:
    value = fields.values.get("libs")
    if isinstance(value, list):
        fields.older("libs", "a list of `libs` has no effect; write a map of names to modules")
    if not isinstance(value, dict):
        return {}
    for alias, target in value.items():
        is_from_import = (
            isinstance(target, dict)
            and target.keys() == {"from", "import"}
            and all(isinstance(part, str) for part in target.values())
        )
        path = (*fields.path, "libs", alias)
        if not alias.isidentifier():
            fields.findings.error("invalid_field", f"{alias!r} is not a name that python can use", path)
        elif not isinstance(target, str) and not is_from_import:
            message = f"{alias!r} must be a module or {{from, import}}, not {type_name(target)}"
            fields.findings.error("invalid_field", message, path)
    return dict(value)


def _http(fields: Fields, config: dict[str, JsonValue]) -> None:
    endpoint = config.pop("endpoint", None)
    if "url" not in config and endpoint is not None:
        config["url"] = endpoint


def _workbook(fields: Fields, config: dict[str, JsonValue]) -> None:
    if "task" not in config and "task" not in fields.written:
        fields.missing("task")


def _nats(fields: Fields, config: dict[str, JsonValue]) -> None:
    operation = config.get("operation")
    if not isinstance(operation, str) or is_template(operation) or operation.startswith(NATS_OPERATION_PREFIXES):
        return
    if operation not in NATS_OPERATIONS:
        words = ", ".join([*NATS_OPERATIONS, *(f"{prefix}…" for prefix in NATS_OPERATION_PREFIXES)])
        suggestion = fields.findings.did_you_mean(operation, NATS_OPERATIONS)
        fields.invalid("operation", f"must be one of {words}, not {operation!r}", suggestion=suggestion)


def _transfer(fields: Fields, config: dict[str, JsonValue]) -> None:
    mode, target = config.pop("mode", None), config.get("target")
    if mode is not None and isinstance(target, dict):
        config["target"] = {"mode": mode, **target}


def _artifact(fields: Fields, config: dict[str, JsonValue]) -> None:
    # An input may also come from the step, which is not known here; what cannot be found fails when it runs.
    config.setdefault("action", "get")


def _script(fields: Fields, config: dict[str, JsonValue]) -> None:
    """A name is as good as a map that has nothing else."""
    uri = config.pop("uri", None)
    if uri is not None and "script" in fields.written:
        fields.invalid("uri", "says the same as `script`: write one of them", code="tool_config")
    name = config.get("script", uri)
    if isinstance(name, str):
        if uri is None:
            check_templates(name, (*fields.path, "script"), fields.findings, only_warn=True)
        config["script"] = {"uri": name}


_KINDS: Mapping[ToolKind, Callable[[Fields, dict[str, JsonValue]], None]] = {
    ToolKind.PYTHON: _python,
    ToolKind.HTTP: _http,
    ToolKind.WORKBOOK: _workbook,
    ToolKind.NATS: _nats,
    ToolKind.SCRIPT: _script,
    ToolKind.TRANSFER: _transfer,
    ToolKind.ARTIFACT: _artifact,
}
