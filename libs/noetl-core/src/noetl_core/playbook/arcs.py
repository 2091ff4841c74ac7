"""Read where a step leads."""

from __future__ import annotations

from typing import TypeAlias

from noetl_core.canonical import JsonValue
from noetl_core.playbook.assignments import read_set
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.model import Arc, ArcEvent, ArcMode, Next, NoMatch
from noetl_core.playbook.source import Path
from noetl_core.playbook.vocabulary import ARC, ARC_MODES, NEXT

Mention: TypeAlias = tuple[str, Path]
"""The name of a step where something leads to it, and where that is written."""


def read_next(step: Fields, mentions: list[Mention]) -> Next:
    """The arcs of a step in any of the forms in which they may be written; the steps they lead to are mentioned."""
    value = step.values.get("next")
    path = (*step.path, "next")
    if isinstance(value, str):
        step.older("next", "`next` is a map with `arcs`", suggestion=f"write {{arcs: [{{step: {value}}}]}}")
        mentions.append((value, path))
        return Next(arcs=(Arc(step=value),))
    if isinstance(value, list):
        step.older("next", "a list under `next` means arcs with `spec: {mode: inclusive}`")
        return Next(mode=ArcMode.INCLUSIVE, arcs=_read_arcs(value, path, step.findings, mentions))
    if not isinstance(value, dict):
        return Next()
    return _read_map(value, path, step.findings, mentions)


def _read_map(value: dict[str, JsonValue], path: Path, findings: Findings, mentions: list[Mention]) -> Next:
    if "arcs" not in value and "step" in value:
        findings.error("missing_field", "`next` needs `arcs`", path, suggestion="write `arcs: [{step: …}]`")
        return Next()
    fields = Fields.read(value, path, findings, NEXT)
    if fields is None:
        return Next()
    spec = fields.below("spec")
    mode = None if spec is None else spec.text("mode")
    no_match = None if spec is None else spec.text("on_no_match")
    arcs = fields.values.get("arcs")
    return Next(
        mode=ArcMode.EXCLUSIVE if mode is None else ArcMode(ARC_MODES[mode]),
        arcs=_read_arcs(arcs, (*path, "arcs"), findings, mentions) if isinstance(arcs, list) else (),
        on_no_match=NoMatch.COMPLETE if no_match is None else NoMatch(no_match),
    )


def _read_arcs(values: list[JsonValue], path: Path, findings: Findings, mentions: list[Mention]) -> tuple[Arc, ...]:
    arcs = (_read_arc(value, (*path, index), findings, mentions) for index, value in enumerate(values))
    return tuple(arc for arc in arcs if arc is not None)


def _read_arc(value: JsonValue, path: Path, findings: Findings, mentions: list[Mention]) -> Arc | None:
    if isinstance(value, str):
        findings.warn("older_form", "an arc is a map with `step`", path, suggestion=f"write {{step: {value}}}")
        mentions.append((value, path))
        return Arc(step=value)
    fields = Fields.read(value, path, findings, ARC)
    step = None if fields is None else fields.text("step")
    if fields is None or step is None:
        return None
    mentions.append((step, (*path, "step")))
    event = fields.text("on")
    return Arc(
        step=step,
        when=fields.condition("when"),
        set=read_set(fields),
        on=None if event is None else ArcEvent(event),
    )
