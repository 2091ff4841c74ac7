"""Read what `set` assigns, and what `output` keeps."""

from __future__ import annotations

from noetl_core.canonical import JsonValue
from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.outputs import parse_path
from noetl_core.playbook.source import Path
from noetl_core.playbook.task_model import Assignment, Output, OutputScope, Selected, SetScope
from noetl_core.playbook.task_vocabulary import OLDER_STORES, SELECTED

_SCOPES = frozenset(SetScope)
_UNSPECIFIC_STORES = frozenset({"auto", "disk", *OLDER_STORES})


def read_set(fields: Fields, *, bare: SetScope = SetScope.CTX) -> tuple[Assignment, ...]:
    """Every assignment in written order; a target without a scope has the one that the place gives it."""
    found: list[Assignment] = []
    for target, value in fields.map("set").items():
        path = (*fields.path, "set", target)
        if target in _SCOPES:
            found.extend(_nested(SetScope(target), value, path, fields.findings))
            continue
        head, _, rest = target.partition(".")
        is_scoped = head in _SCOPES
        scope = SetScope(head) if is_scoped else bare
        assigned = _assignment(scope, rest if is_scoped else target, value, path, fields.findings)
        found.extend([] if assigned is None else [assigned])
    return tuple(found)


def read_output(fields: Fields) -> Output | None:
    """How a result is kept, if anything is said about it."""
    output = fields.below("output")
    select = _select(fields, "output_select")
    if output is None:
        return Output(select=select) if select else None
    store = output.below("store")
    kind = None if store is None else store.text("kind")
    if store is not None and kind is not None and kind not in _UNSPECIFIC_STORES:
        message = f"results are kept in the one store of the installation; {kind!r} is only shown as `_store`"
        store.findings.warn("store_kind", message, (*store.path, "kind"))
    if store is not None and kind in OLDER_STORES:
        store.findings.warn("older_form", f"{kind!r} is now `{OLDER_STORES[kind]}`", (*store.path, "kind"))
    scope = output.text("scope")
    return Output(
        select=(*_select(output, "select"), *_select(output, "output_select"), *select),
        store=None if kind in {None, "auto"} else OLDER_STORES.get(kind or "", kind),
        inline_max_bytes=output.whole("inline_max_bytes"),
        scope=None if scope is None else OutputScope(scope),
    )


def _nested(scope: SetScope, value: JsonValue, path: Path, findings: Findings) -> list[Assignment]:
    if not isinstance(value, dict):
        message = f"a name is missing: write `{scope}.name`"
        findings.error("invalid_field", message, path)
        return []
    assigned = (_assignment(scope, name, child, (*path, name), findings) for name, child in value.items())
    return [one for one in assigned if one is not None]


def _assignment(scope: SetScope, name: str, value: JsonValue, path: Path, findings: Findings) -> Assignment | None:
    parts = tuple(name.split("."))
    if any(not part or part != part.strip() for part in parts):
        findings.error("invalid_field", f"{path[-1]!r} is not a target: write `{scope}.name`", path)
        return None
    if scope is not SetScope.ITER:
        warn_if_shadowing("variable", parts[0], path, findings)
    return Assignment(scope=scope, path=parts, value=value)


def _select(fields: Fields, key: str) -> tuple[Selected, ...]:
    found: list[Selected] = []
    for path, value in fields.items(key):
        selected = _selected(value, path, fields.findings)
        if selected is None:
            continue
        if parse_path(selected.path) is None:
            place = path if isinstance(value, str) else (*path, "path")
            fields.findings.error("invalid_field", f"{selected.path!r} is not a path: write `rows[0].id`", place)
            continue
        found.append(selected)
    return tuple(found)


def _selected(value: JsonValue, path: Path, findings: Findings) -> Selected | None:
    if isinstance(value, str):
        return Selected(path=value)
    fields = Fields.read(value, path, findings, SELECTED)
    where = None if fields is None else fields.text("path")
    return None if fields is None or where is None else Selected(path=where, name=fields.text("as"))
