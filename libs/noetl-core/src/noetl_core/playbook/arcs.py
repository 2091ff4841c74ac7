"""Read where a step leads."""

from __future__ import annotations

from typing import TypeAlias

from noetl_core.canonical import JsonValue
from noetl_core.playbook.fields import Fields, type_name
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import Arc, ArcMode, Next
from noetl_core.playbook.source import Path
from noetl_core.playbook.vocabulary import ARC, ARC_MODES, NEXT, NEXT_SPEC, NO_MATCH

Mention: TypeAlias = tuple[str, Path]
"""The name of a step where something leads to it, and where that is written."""


def read_next(value: JsonValue, path: Path, findings: Findings, mentions: list[Mention]) -> Next:
    """The arcs of a step in any of the forms in which they may be written; the steps they lead to are mentioned."""
    if value is None:
        return Next()
    if isinstance(value, str):
        suggestion = f"write {{arcs: [{{step: {value}}}]}}"
        findings.warn("older_form", "`next` is a map with `arcs`", path, suggestion=suggestion)
        mentions.append((value, path))
        return Next(arcs=(Arc(step=value),))
    if isinstance(value, list):
        findings.warn("older_form", "a list under `next` means arcs with `spec: {mode: inclusive}`", path)
        return Next(mode=ArcMode.INCLUSIVE, arcs=_read_arcs(value, path, findings, mentions))
    fields = Fields.read(value, path, findings, title="'next'")
    if fields is None:
        return Next()
    fields.check_keys(NEXT)
    return Next(mode=_mode(fields), arcs=_arcs(fields, mentions))


def _mode(fields: Fields) -> ArcMode:
    spec = fields.below("spec")
    if spec is None:
        return ArcMode.EXCLUSIVE
    spec.check_keys(NEXT_SPEC)
    spec.choice("on_no_match", NO_MATCH)  # both end the branch
    mode = spec.choice("mode", ARC_MODES)
    return ArcMode.EXCLUSIVE if mode is None else ArcMode(ARC_MODES[mode])


def _arcs(fields: Fields, mentions: list[Mention]) -> tuple[Arc, ...]:
    arcs = fields.values.get("arcs")
    if isinstance(arcs, list):
        return _read_arcs(arcs, (*fields.path, "arcs"), fields.findings, mentions)
    if arcs is not None:
        fields.invalid("arcs", f"must be a list, not {type_name(arcs)}")
    elif "step" in fields.values:
        suggestion = "write `arcs: [{step: …}]`"
        fields.findings.error("missing_field", "`next` needs `arcs`", fields.path, suggestion=suggestion)
    return ()


def _read_arcs(values: list[JsonValue], path: Path, findings: Findings, mentions: list[Mention]) -> tuple[Arc, ...]:
    arcs = (_read_arc(value, (*path, index), findings, mentions) for index, value in enumerate(values))
    return tuple(arc for arc in arcs if arc is not None)


def _read_arc(value: JsonValue, path: Path, findings: Findings, mentions: list[Mention]) -> Arc | None:
    if isinstance(value, str):
        findings.warn("older_form", "an arc is a map with `step`", path, suggestion=f"write {{step: {value}}}")
        mentions.append((value, path))
        return Arc(step=value)
    fields = Fields.read(value, path, findings, title="an arc")
    if fields is None:
        return None
    fields.check_keys(ARC)
    when = fields.condition("when")
    step = fields.name("step", title="an arc")
    if step is None:
        return None
    mentions.append((step, (*path, "step")))
    return Arc(step=step, when=when)
