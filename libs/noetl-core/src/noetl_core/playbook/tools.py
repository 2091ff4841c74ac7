"""Read the tool of a step."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

from noetl_core.canonical import JsonValue
from noetl_core.playbook.fields import Fields, check_templates, type_name
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import Tool, ToolKind
from noetl_core.playbook.source import Path
from noetl_core.playbook.syntax import has_template
from noetl_core.playbook.vocabulary import NOOP, PYTHON, TOOL_KINDS, TOOL_POLICY, TOOL_SPEC

_RUN_AS_WRITTEN = frozenset({"code", "code_b64", "cmds", "script"})
"""Keys whose templates may be anything: what cannot be rendered there is run as it is."""

_SPEC_KEYS = TOOL_SPEC.known()


def read_tool(value: JsonValue, path: Path, findings: Findings) -> Tool | None:
    """The tool, or nothing if it cannot be run; the findings then say why."""
    if isinstance(value, list):
        findings.unsupported("a pipeline (a list of tools)", path)
        return None
    fields = Fields.read(value, path, findings, title="'tool'")
    if fields is None:
        return None
    fields = _with_config_of_spec(fields)
    kind = fields.name("kind", title="a tool")
    if kind is None:
        return None
    if kind not in {ToolKind.PYTHON, ToolKind.NOOP}:
        _refuse_kind(kind, fields)
        return None
    is_python = kind == ToolKind.PYTHON
    fields.check_keys(PYTHON if is_python else NOOP)
    timeout_seconds = _spec_timeout(fields)
    return Tool(
        kind=ToolKind(kind),
        label=fields.text("name"),
        input={**fields.templates("args"), **fields.templates("input")},
        config=_python_config(fields) if is_python else _noop_config(fields),
        timeout_seconds=timeout_seconds or fields.seconds("timeout"),
    )


def _refuse_kind(kind: str, fields: Fields) -> None:
    path = (*fields.path, "kind")
    if kind in TOOL_KINDS:
        fields.findings.unsupported(f"the tool {kind!r}", path)
    else:
        suggestion = fields.findings.did_you_mean(kind, TOOL_KINDS)
        fields.findings.error("unknown_tool", f"there is no tool {kind!r}", path, suggestion=suggestion)
    for key, value in fields.values.items():
        if key not in _RUN_AS_WRITTEN | {"kind"}:
            check_templates(value, (*fields.path, key), fields.findings)


def _with_config_of_spec(fields: Fields) -> Fields:
    """Older playbooks have the configuration of a tool in its `spec`."""
    spec = fields.values.get("spec")
    if not isinstance(spec, dict):
        return fields
    moved = {key: value for key, value in spec.items() if key not in _SPEC_KEYS}
    if not moved:
        return fields
    for key in moved:
        message = f"{key!r} belongs on the tool, not into its `spec`"
        fields.findings.warn("older_form", message, (*fields.path, "spec", key))
    rest = {key: value for key, value in spec.items() if key in _SPEC_KEYS}
    return Fields({**moved, **fields.values, "spec": rest}, fields.path, fields.findings)


def _spec_timeout(fields: Fields) -> float | None:
    spec = fields.below("spec")
    if spec is None:
        return None
    spec.check_keys(TOOL_SPEC)
    policy = spec.below("policy")
    if policy is not None:
        policy.check_keys(TOOL_POLICY)
    return spec.seconds("timeout")


def _noop_config(fields: Fields) -> Mapping[str, JsonValue]:
    if "result" not in fields.values:
        return {}
    result = fields.values["result"]
    check_templates(result, (*fields.path, "result"), fields.findings)
    return {"result": result}


def _python_config(fields: Fields) -> Mapping[str, JsonValue]:
    config: dict[str, JsonValue] = {}
    code = _encoded_code(fields) if fields.values.get("code_b64") is not None else fields.text("code")
    if code is not None:
        config["code"] = code
        check_templates(code, (*fields.path, "code"), fields.findings, only_warn=True)
    elif not {"code", "code_b64", "script"} & fields.values.keys():
        fields.missing("code", "a python tool")
    libs = _libs(fields)
    if libs:
        config["libs"] = libs
    return config


def _encoded_code(fields: Fields) -> str | None:
    text = fields.text("code_b64")
    if text is None:
        return None
    if has_template(text):
        fields.findings.unsupported("a template in `code_b64`", (*fields.path, "code_b64"))
        return None
    try:
        return base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as exc:
        fields.invalid("code_b64", f"is not text in base64: {exc}")
        return None


def _libs(fields: Fields) -> dict[str, JsonValue]:
    value = fields.values.get("libs")
    if isinstance(value, list):
        message = "a list of `libs` has no effect; write a map of names to modules"
        fields.findings.warn("older_form", message, (*fields.path, "libs"))
        return {}
    libs = fields.below("libs")
    if libs is None:
        return {}
    for alias, target in libs.values.items():
        is_from_import = (
            isinstance(target, dict)
            and target.keys() == {"from", "import"}
            and all(isinstance(part, str) for part in target.values())
        )
        if not alias.isidentifier():
            libs.invalid(alias, "is not a name that python can use")
        elif not isinstance(target, str) and not is_from_import:
            libs.invalid(alias, f"must be a module or {{from, import}}, not {type_name(target)}")
    return dict(libs.values)
