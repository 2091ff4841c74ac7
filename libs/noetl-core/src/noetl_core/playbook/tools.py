"""Read tools: what all kinds have in common, then what each kind has of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from noetl_core.canonical import JsonValue
from noetl_core.playbook.assignments import read_output, read_set
from noetl_core.playbook.calls import read_paginate, read_rate_limit, read_stream
from noetl_core.playbook.fields import Fields, check_templates
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.kinds import KINDS, TOOL
from noetl_core.playbook.loops import read_task_loop
from noetl_core.playbook.rules import read_rules
from noetl_core.playbook.shapes import is_template
from noetl_core.playbook.source import Path
from noetl_core.playbook.support import PLUGIN_KINDS, tool
from noetl_core.playbook.task_model import SetScope, TaskLoop, Tool, ToolKind
from noetl_core.playbook.task_vocabulary import COMMON_KEYS, TOOL_SPEC
from noetl_core.playbook.timeouts import read_timeout
from noetl_core.playbook.tool_config import read_config, refuse_passwords

_RUN_AS_WRITTEN = frozenset({"code", "code_b64", "cmds", "script"})
"""Keys whose templates may be anything: what cannot be rendered there is run as it is."""

_TIMEOUT_KEYS = ("timeout", "timeout_seconds")
_DEFAULT_TIMEOUTS: Mapping[str, float] = {ToolKind.PLAYBOOK: 300.0, ToolKind.SHELL: 600.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTool:
    """A tool, where it stands, and where the actions of its rules do."""

    tool: Tool
    loop: TaskLoop | None
    path: Path
    actions: tuple[Path, ...]


def read_tool(value: JsonValue, path: Path, findings: Findings, *, in_pipeline: bool = False) -> ReadTool | None:
    """The tool, or nothing if it cannot be run; the findings then say why."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        Fields.read(value, path, findings, TOOL, title=None if in_pipeline else "'tool'")
        return None
    kind = str(value["kind"])
    if tool(kind) not in findings.supported or (kind not in KINDS and not kind.strip()):
        _refuse_kind(kind, value, path, findings)
        return None
    if kind == ToolKind.POSTGRES:
        refuse_passwords(value, path, findings)
    value = _with_config_of_spec(value, path, findings)
    fields = Fields.read(value, path, findings, KINDS.get(kind, TOOL))
    return None if fields is None else _read_fields(fields, kind, in_pipeline=in_pipeline)


def _read_fields(fields: Fields, kind: str, *, in_pipeline: bool) -> ReadTool:
    spec = fields.below("spec")
    policy = None if spec is None else spec.below("policy")
    paginate = None if policy is None else read_paginate(policy, kind)
    timeout_seconds, timeout_template = _timeout(fields, spec)
    names_task = kind == ToolKind.WORKBOOK and not in_pipeline and not fields.has("task")
    loop = fields.below("loop")
    rules = () if policy is None else read_rules(policy)
    inputs = {} if "args" in _own_keys(kind) else fields.map("args")
    read = Tool(
        kind=ToolKind(kind) if kind in KINDS else kind,
        label=None if names_task else fields.text("name"),
        input={**inputs, **fields.map("input")},
        config=read_config(fields, kind, _own_keys(kind), names_task=names_task),
        timeout_seconds=timeout_seconds or (None if timeout_template else _DEFAULT_TIMEOUTS.get(kind)),
        timeout_template=timeout_template,
        auth=_auth(fields),
        set=read_set(fields, bare=SetScope.STEP),
        output=read_output(fields),
        rules=tuple(rule for rule, _ in rules),
        paginate=paginate,
        rate_limit=None if policy is None else read_rate_limit(policy),
        stream=None if spec is None else read_stream(spec, kind, is_paginated=paginate is not None),
    )
    return ReadTool(
        tool=read,
        loop=None if loop is None else read_task_loop(loop),
        path=fields.path,
        actions=tuple(path for _, path in rules),
    )


@lru_cache(maxsize=64)
def _own_keys(kind: str) -> frozenset[str]:
    """The keys that only this kind has, or that mean something else for it; nothing is known of a plug-in's."""
    section = KINDS.get(kind, TOOL)
    return frozenset(key for key, described in section.keys.items() if COMMON_KEYS.get(key) is not described)


def _auth(fields: Fields) -> JsonValue:
    if "credential" in fields.values:
        fields.older("credential", "'credential' is now `auth`", suggestion="write `auth`")
    return fields.values.get("auth", fields.values.get("credential"))


def _timeout(fields: Fields, spec: Fields | None) -> tuple[float | None, str | None]:
    """The first that is written: in the spec, on the tool, under the kind's own word."""
    places = [(fields, key) for key in _TIMEOUT_KEYS if fields.has(key)]
    if spec is not None and spec.has("timeout"):
        places.insert(0, (spec, "timeout"))
    return read_timeout(*places[0]) if places else (None, None)


def _refuse_kind(kind: str, values: Mapping[str, JsonValue], path: Path, findings: Findings) -> None:
    kind_path = (*path, "kind")
    if kind in KINDS:
        unless = " unless a plug-in provides it" if kind in PLUGIN_KINDS else ""
        findings.error("unsupported", f"the tool {kind!r} is not supported by this version{unless}", kind_path)
    else:
        suggestion = findings.did_you_mean(kind, KINDS)
        message = f"there is no tool {kind!r}"
        if is_template(kind):
            message, suggestion = f"the kind of a tool cannot be a template: {kind}", None
        findings.error("unknown_tool", message, kind_path, suggestion=suggestion)
    for key, value in values.items():
        if key not in _RUN_AS_WRITTEN | {"kind"}:
            check_templates(value, (*path, key), findings)


def _with_config_of_spec(values: dict[str, JsonValue], path: Path, findings: Findings) -> dict[str, JsonValue]:
    """Older playbooks have the configuration of a tool in its `spec`."""
    spec = values.get("spec")
    if not isinstance(spec, dict):
        return values
    moved = {key: value for key, value in spec.items() if key not in TOOL_SPEC.keys}
    if not moved:
        return values
    for key in moved:
        message = f"{key!r} belongs on the tool, not into its `spec`"
        findings.warn("older_form", message, (*path, "spec", key))
    rest = {key: value for key, value in spec.items() if key in TOOL_SPEC.keys}
    return {**moved, **values, "spec": rest}
