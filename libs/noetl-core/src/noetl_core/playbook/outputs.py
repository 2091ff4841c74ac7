"""`output` of steps and tools: which parts of a result are readable without loading it, and how it is kept."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from noetl_core.playbook.model import Output, OutputScope, Playbook, Selected, Tool, ToolKind
from noetl_core.playbook.views import Key, View, least_of, look_into, passed_of, whole_of

INLINE_MAX_BYTES = 64 * 1024
"""Up to this size templates see plain data, unless the playbook says otherwise."""

_MAX_MEMORY_BYTES = 10 * 1024
_MAX_KV_BYTES = 1024 * 1024
_PART = re.compile(r"""(?:^|\.)(?P<name>[^.\[\]'"]+)|\[(?P<index>\d+)\]|\[(?P<quote>['"])(?P<key>.*?)(?P=quote)\]""")

ResultPath = tuple[str, ...]


def parse_path(text: str) -> ResultPath | None:
    """The keys of `a.b[0]['c.d']`, of which a leading `$` says nothing; None if it is no path."""
    text = text.strip().removeprefix("$")
    keys: list[str] = []
    position = 0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None and not keys and text.startswith("."):
            position += 1  # `$.a`
            text, position = text[position:], 0
            continue
        if part is None:
            return None
        keys.append(next(value for name, value in part.groupdict().items() if value is not None and name != "quote"))
        position = part.end()
    return tuple(keys) or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One part of a result that is readable without loading it, and the name under which it is besides its place."""

    path: ResultPath
    name: str | None = None
    is_of_task: bool = False
    """Whether the path begins with the label of a task."""

    def find(self, result: object) -> object:
        """The value, sought in the result and below its `data` as templates do; `KeyError` if there is none."""
        try:
            return _walk(result, self.path)
        except KeyError:
            head, tail = (self.path[:1], self.path[1:]) if self.is_of_task else ((), self.path)
            return _walk(result, (*head, "data", *tail))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How the result of one step is kept."""

    selections: tuple[Selection, ...] = ()
    inline_max_bytes: int = INLINE_MAX_BYTES
    store: str | None = None
    scope: OutputScope | None = None

    @property
    def names(self) -> Mapping[str, Selection]:
        """Selections that have a name of their own, by that name."""
        return {one.name: one for one in self.selections if one.name is not None}

    @property
    def paths(self) -> frozenset[ResultPath]:
        """Where selected parts can be read, in terms of what `seen` shows."""
        return frozenset({*(one.path for one in self.selections), *((name,) for name in self.names)})

    def store_of(self, size_bytes: int) -> str:
        """The store that the language names for a result of this size."""
        if self.store is not None:
            return self.store
        if size_bytes <= _MAX_MEMORY_BYTES:
            return "memory"
        return "kv" if size_bytes < _MAX_KV_BYTES else "disk"


PLAINLY_KEPT = Kept()


@lru_cache(maxsize=256)
def kept_output(playbook: Playbook, step: str) -> Kept:
    """What is said about the result of a step, on the step itself and on its tools; the step's own words win."""
    described = playbook.steps[step]
    outputs = [] if described.output is None else [described.output]
    selections = [_selection(selected) for output in outputs for selected in output.select]
    if described.is_pipeline:
        for task in described.tasks:
            for output in _tool_outputs(task.tool, playbook):
                selections += [_selection(selected, label=task.label) for selected in output.select]
    else:
        of_tool = list(_tool_outputs(described.tool, playbook))
        selections += [_selection(selected) for output in of_tool for selected in output.select]
        outputs += of_tool
    limits = [output.inline_max_bytes for output in outputs if output.inline_max_bytes is not None]
    return Kept(
        selections=tuple(selections),
        inline_max_bytes=limits[0] if limits else INLINE_MAX_BYTES,
        store=next((output.store for output in outputs if output.store is not None), None),
        scope=next((output.scope for output in outputs if output.scope is not None), None),
    )


def seen(result: object, kept: Kept) -> object:
    """A result as templates see it: with the names that were given to parts of it, behind its own."""
    return _Named(result, kept.names) if kept.names else result


class _Named(View):
    """A result with names for some of its parts; what it has itself is never hidden by them."""

    def __init__(self, result: object, names: Mapping[str, Selection]) -> None:
        self._result = result
        self._names = names

    def lookup(self, key: Key) -> object:
        try:
            return look_into(self._result, key)
        except KeyError:
            selection = self._names.get(str(key))
            if selection is None:
                raise
            return selection.find(self._result)

    def whole(self) -> object:
        return whole_of(self._result)

    def least(self) -> object:
        return least_of(self._result)

    def passed(self) -> object:
        return passed_of(self._result)


def _tool_outputs(tool: Tool, playbook: Playbook) -> Iterable[Output]:
    """The tool's own, then that of the workbook task that it calls by a literal name."""
    if tool.output is not None:
        yield tool.output
    if tool.kind == ToolKind.WORKBOOK:
        called = playbook.workbook.get(str(tool.config.get("task")))
        if called is not None and called.tool.output is not None:
            yield called.tool.output


def _selection(selected: Selected, *, label: str | None = None) -> Selection:
    path = parse_path(selected.path) or ()
    if label is None:
        return Selection(path=path, name=selected.name)
    return Selection(path=(label, *path), name=selected.name, is_of_task=True)


def _walk(value: object, path: ResultPath) -> object:
    for key in path:
        value = look_into(value, key)
    return value
