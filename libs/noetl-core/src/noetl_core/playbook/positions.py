"""Find paths again in the text of a document: a second reading, made only when there is something to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import yaml

from noetl_core.playbook.source import Path, yaml_events

_BLOCK_STYLES = frozenset({"|", ">"})


class Position(NamedTuple):
    """Where a value stands, counted from one; `text_line` is where the first line of its text is."""

    line: int
    column: int
    text_line: int


@dataclass(slots=True)
class _Level:
    """A list or map on the way to the current place."""

    index: int | None = None
    key: str | None = None
    key_at: tuple[int, int] | None = None

    @property
    def is_list(self) -> bool:
        return self.index is not None


def locate(text: str, paths: Iterable[Path]) -> dict[Path, Position]:
    """The position of every path, or of the nearest thing around it that was written at that place."""
    wanted = set(paths)
    around = {path[:length] for path in wanted for length in range(len(path) + 1)}
    found = _positions(text, around)
    nowhere = Position(1, 1, 1)
    return {
        path: next((found[path[:length]] for length in range(len(path), -1, -1) if path[:length] in found), nowhere)
        for path in wanted
    }


def _positions(text: str, wanted: set[Path]) -> dict[Path, Position]:
    found: dict[Path, Position] = {}
    levels: list[_Level] = []
    path: list[str | int] = []
    for event in yaml_events(text):
        if isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            levels.pop()
            _after_value(levels, path)
        elif isinstance(event, yaml.NodeEvent):
            level = levels[-1] if levels else None
            if level is not None and not level.is_list and level.key is None:
                level.key = str(getattr(event, "value", ""))
                level.key_at = _place(event)
                continue
            if level is not None:
                path.append(level.index if level.index is not None else level.key or "")
            here = tuple(path)
            if here in wanted and here not in found:
                found[here] = _position(event, level)
            if isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
                levels.append(_Level(index=0 if isinstance(event, yaml.SequenceStartEvent) else None))
            else:
                _after_value(levels, path)
    return found


def _after_value(levels: list[_Level], path: list[str | int]) -> None:
    if not levels:
        return
    path.pop()
    level = levels[-1]
    if level.index is not None:
        level.index += 1
    level.key = None


def _position(event: yaml.NodeEvent, level: _Level | None) -> Position:
    """An entry of a map stands where its key does, since that is where an author looks for it."""
    value_at = _place(event)
    line, column = level.key_at if level is not None and level.key_at is not None else value_at
    is_block = getattr(event, "style", None) in _BLOCK_STYLES
    return Position(line, column, value_at[0] + is_block)


def _place(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (1, 1) if mark is None else (mark.line + 1, mark.column + 1)
