"""Read the text of a playbook: one YAML document becomes plain JSON values, within fixed bounds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, TypeAlias

import yaml

from noetl_core.canonical import JsonValue
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.scalars import NotAValue, is_collection_tag, plain_scalar, tagged_scalar

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
"""Below what canonical JSON allows, so that a playbook's values always fit into an event or payload."""

MAX_PROBLEMS = 1_000
"""As many as anybody will read; a document of nothing but mistakes must not make an answer larger than itself."""

MAX_ALIAS_WEIGHT = MAX_BYTES
"""How many values and characters all aliases together may repeat: a bomb of aliases stays a document."""

Path: TypeAlias = tuple[str | int, ...]
"""Where a value stands: map keys and list indexes from the top."""

_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MERGE_KEY = "<<"
_NOT_PRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A document that could be read, with the problems that did not keep it from being read."""

    text: str
    value: JsonValue
    problems: tuple[Problem, ...] = ()


def read_source(document: str | bytes) -> Source:
    """The one value of a YAML document, or `PlaybookInvalid` with the place where reading ended."""
    text = _checked_text(document)
    reader = _Reader()
    try:
        for event in yaml_events(text):
            reader.take(event)
    except _Unreadable as refusal:
        raise PlaybookInvalid([*reader.problems, refusal.problem]) from None
    if reader.documents == 0:
        _refuse("yaml_invalid", "the document is empty")
    return Source(text=text, value=reader.value, problems=tuple(reader.problems))


def yaml_events(text: str) -> Iterator[yaml.Event]:
    """The document piece by piece; nothing is built, so its nesting cannot hurt anybody."""
    try:
        yield from yaml.parse(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        message = ", ".join(part for part in (exc.context, exc.problem) if part)
        suggestion = "indent with spaces, not tabs" if "'\\t'" in message else None
        raise _Unreadable("yaml_invalid", f"not YAML: {message}", mark, suggestion) from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise _Unreadable("yaml_invalid", f"not YAML: {exc}", None) from exc


def format_path(path: Path) -> str:
    """A path as people write it: `workflow[1].next.arcs[0].when`."""
    parts: list[str] = []
    for segment in path:
        if isinstance(segment, int):
            parts.append(f"[{segment}]")
        elif segment.replace("-", "_").isidentifier():
            parts.append(f".{segment}" if parts else segment)
        else:
            parts.append(f"[{segment!r}]")
    return "".join(parts)


class _Place(NamedTuple):
    """A position as YAML's own marks count it: from zero."""

    line: int
    column: int


class _Unreadable(Exception):
    """Reading cannot go on; the one problem says why and where."""

    def __init__(self, code: str, message: str, mark: object, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.problem = _problem(code, message, mark, suggestion=suggestion)


@dataclass(slots=True, kw_only=True)
class _Open:
    """A list or map that is being read."""

    items: list[JsonValue] | dict[str, JsonValue]
    anchor: str | None
    key: str | None = None
    key_is_merge: bool = False
    merged: list[dict[str, JsonValue]] = field(default_factory=list)
    weight: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class _Anchored:
    """A value that an alias may repeat, and what that costs."""

    value: JsonValue
    weight: int
    height: int


class _Reader:
    """Builds the value from events with a stack of its own, so that depth is a number and not a crash."""

    def __init__(self) -> None:
        self.value: JsonValue = None
        self.documents = 0
        self.problems: list[Problem] = []
        self._stack: list[_Open] = []
        self._anchors: dict[str, _Anchored] = {}
        self._alias_weight = 0

    def take(self, event: yaml.Event) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open(event)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._close(event)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        elif isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                raise _Unreadable("yaml_invalid", "there is more than one document", event.start_mark)

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        text: str = event.value
        if not text.isascii() and _has_surrogate(text):
            raise _Unreadable("yaml_invalid", "half of a surrogate pair is not text", event.start_mark)
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.items, dict) and top.key is None:
            self._begin_key(top, event)
            return
        try:
            if event.tag is None:
                value = plain_scalar(text) if event.implicit[0] else text
            else:
                value = text if event.tag == "!" else tagged_scalar(event.tag, text)
        except NotAValue as exc:
            raise _Unreadable("yaml_invalid", str(exc), event.start_mark) from None
        self._place(event.anchor, value, weight=1 + len(text), height=0, event=event)

    def _begin_key(self, top: _Open, event: yaml.ScalarEvent) -> None:
        """Keys are text exactly as written, whatever the word would mean as a value."""
        assert isinstance(top.items, dict)  # noqa: S101 - for the type checker; the caller has looked
        key: str = event.value
        top.key = key
        top.key_is_merge = key == _MERGE_KEY and bool(event.implicit[0])
        top.weight += len(key)
        if key in top.items and not top.key_is_merge and len(self.problems) < MAX_PROBLEMS:
            path = format_path(self._path())
            message = f"the key {key!r} stands twice in the same map"
            self.problems.append(_problem("duplicate_key", message, event.start_mark, path=path))

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        self._refuse_as_key(event)
        if len(self._stack) >= MAX_DEPTH:
            raise _Unreadable("yaml_invalid", f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        if event.tag not in {None, "!"} and not is_collection_tag(event.tag, "map" if is_map else "seq"):
            raise _Unreadable("yaml_invalid", f"the tag {event.tag!r} is not allowed", event.start_mark)
        if event.anchor is not None:
            self._anchors.pop(event.anchor, None)
        items: list[JsonValue] | dict[str, JsonValue] = {} if is_map else []
        self._stack.append(_Open(items=items, anchor=event.anchor))

    def _close(self, event: yaml.Event) -> None:
        done = self._stack.pop()
        value = done.items
        if isinstance(value, dict) and done.merged:
            explicit, value = value, {}
            for merged in reversed(done.merged):  # of several, the first one wins
                value |= merged
            value |= explicit
        self._place(done.anchor, value, weight=done.weight, height=done.height, event=event)

    def _alias(self, event: yaml.AliasEvent) -> None:
        self._refuse_as_key(event)
        known = self._anchors.get(event.anchor or "")
        if known is None:
            message = f"the alias *{event.anchor} refers to nothing before it, or to what contains it"
            raise _Unreadable("yaml_invalid", message, event.start_mark)
        self._alias_weight += known.weight
        if self._alias_weight > MAX_ALIAS_WEIGHT:
            raise _Unreadable("too_large", "the aliases repeat too much of the document", event.start_mark)
        if len(self._stack) + known.height > MAX_DEPTH:
            raise _Unreadable("yaml_invalid", f"nested deeper than {MAX_DEPTH} levels", event.start_mark)
        self._place(None, known.value, weight=known.weight, height=known.height, event=event)

    def _place(self, anchor: str | None, value: JsonValue, *, weight: int, height: int, event: yaml.Event) -> None:
        if anchor is not None:
            self._anchors[anchor] = _Anchored(value, weight, height)
        if not self._stack:
            self.value = value
            return
        top = self._stack[-1]
        top.weight += weight
        top.height = max(top.height, height + 1)
        if isinstance(top.items, list):
            top.items.append(value)
            return
        if top.key_is_merge:
            top.merged.extend(_mergeable(value, event))
        elif top.key is not None:
            top.items.setdefault(top.key, value)
        top.key = None
        top.key_is_merge = False

    def _refuse_as_key(self, event: yaml.Event) -> None:
        top = self._stack[-1] if self._stack else None
        if top is not None and isinstance(top.items, dict) and top.key is None:
            raise _Unreadable(
                "yaml_invalid",
                "a key must be text",
                event.start_mark,
                'a template must stand in quotes: "{{ … }}"',
            )

    def _path(self) -> Path:
        return tuple(
            len(opened.items) if isinstance(opened.items, list) else opened.key or "" for opened in self._stack
        )


def _mergeable(value: JsonValue, event: yaml.Event) -> list[dict[str, JsonValue]]:
    maps = value if isinstance(value, list) else [value]
    found = [item for item in maps if isinstance(item, dict)]
    if len(found) != len(maps):
        raise _Unreadable("yaml_invalid", "only maps can be merged with <<", event.start_mark)
    return found


def _checked_text(document: str | bytes) -> str:
    if len(document) > MAX_BYTES:
        _refuse("too_large", f"the document is larger than {MAX_BYTES} bytes")
    try:
        text = document.decode("utf-8") if isinstance(document, bytes) else document
        size = len(text.encode("utf-8"))
    except UnicodeError as exc:
        raise PlaybookInvalid([_problem("yaml_invalid", f"the document is not UTF-8: {exc}", None)]) from exc
    if size > MAX_BYTES:
        _refuse("too_large", f"the document is larger than {MAX_BYTES} bytes")
    text = text.removeprefix("\ufeff")
    strange = _NOT_PRINTABLE.search(text)
    if strange is not None:
        place = _Place(text.count("\n", 0, strange.start()), strange.start() - text.rfind("\n", 0, strange.start()) - 1)
        message = f"the character U+{ord(strange.group()):04X} may not stand in a YAML document"
        raise PlaybookInvalid([_problem("yaml_invalid", message, place)])
    return text


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _refuse(code: str, message: str) -> NoReturn:
    raise PlaybookInvalid([_problem(code, message, None)])


def _problem(code: str, message: str, mark: object, *, path: str = "", suggestion: str | None = None) -> Problem:
    line: int | None = getattr(mark, "line", None)
    column: int | None = getattr(mark, "column", None)
    return Problem(
        code=f"playbook.{code}",
        message=message,
        path=path,
        line=None if line is None else line + 1,
        column=None if column is None else column + 1,
        suggestion=suggestion,
    )
