"""Evaluate templates and conditions: text in, JSON values out, and every failure named with its expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import TracebackType
from typing import Any, NamedTuple, cast

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.runtime import Context

from noetl_core.canonical import JsonValue
from noetl_core.errors import InvalidInput
from noetl_core.playbook.filters import CHANCE
from noetl_core.playbook.metering import MAX_WORK_PER_TEXT, Meter, TooMuch
from noetl_core.playbook.plain import holds, plain
from noetl_core.playbook.shortcuts import UNSURE, Shortcut, Unsure, shortcut_of
from noetl_core.playbook.syntax import (
    DATA_WANTED,
    SANDBOX,
    VALUE_NAME,
    descendants,
    executable,
    has_template,
    parse_condition,
    parse_template,
)
from noetl_core.playbook.views import NotInView

MAX_TEXT_CHARACTERS = 1_048_576
MAX_CONFIG_CHARACTERS = 16 * MAX_TEXT_CHARACTERS
"""Of text for a tool: statements and bodies hold data, and nothing but the tool sees them."""
MAX_TURNS = MAX_WORK_PER_TEXT * MAX_TEXT_CHARACTERS
_MAX_CACHED_CHARACTERS = 16_384
_SHOWN_CHARACTERS = 200
_TEMPLATE_FILE = "<template>"


class TemplateFailed(InvalidInput):
    """An expression that has no value: what it was, and where in the text and document it stands."""

    code = "template.error"

    def __init__(self, reason: str, *, expression: str, line: int | None = None, path: str = "") -> None:
        shown = expression.strip()
        if len(shown) > _SHOWN_CHARACTERS:
            shown = f"{shown[:_SHOWN_CHARACTERS]}…"
        where = f" in {path}" if path else ""
        at_line = f", line {line}" if line is not None and "\n" in expression.strip() else ""
        super().__init__(
            f"{reason}: {shown}{where}{at_line}",
            expression=shown,
            line="" if line is None else str(line),
            path=path,
        )
        self.reason = reason
        self.expression = expression
        self.line = line
        self.path = path


class ValueWithheld(TemplateFailed):
    """The expression reads a value that was too large to be where it is evaluated; elsewhere it may have one."""


def render(
    value: object,
    names: Mapping[str, object],
    *,
    now: str | None = None,
    max_text: int = MAX_TEXT_CHARACTERS,
    wants_data: bool = False,
    path: str = "",
    chance: Callable[[], float] | None = None,
) -> JsonValue:
    """A value with all templates in it evaluated; keys of maps are literal, and `now()` is what the caller says.

    `path` says where the value stands, for whoever has to find what fails in it. Without `chance` there is no `random`.

    `{{ a }}` hands on the view of a large result, unless the caller wants its data, to go through them.
    """
    if isinstance(value, str):
        if not has_template(value):
            return value
        if not wants_data:
            quick = _value_of_shortcut(value, names, max_text)
            if not isinstance(quick, Unsure):
                return quick
        return _evaluate_all(value, _Scope(names, now, chance, max_text, wants_data), path, is_condition=False)
    if is_plain(value):
        return cast(JsonValue, value)
    return _render(value, _Scope(names, now, chance, max_text, wants_data), (path,) if path else ())


def is_plain(value: object) -> bool:
    """Whether there is nothing to evaluate; most of what is configured is so, and is asked for with every call."""
    if value is None:
        return True
    return not has_template(value) if isinstance(value, str) else not isinstance(value, dict | list | tuple | Mapping)


def evaluate_condition(
    condition: str | bool,
    names: Mapping[str, object],
    *,
    now: str | None = None,
    path: str = "",
    chance: Callable[[], float] | None = None,
) -> bool:
    """Whether a condition holds; its braces may be left out."""
    if isinstance(condition, bool):
        return condition
    if not condition.strip():
        return False
    scope = _Scope(names, now, chance, MAX_TEXT_CHARACTERS)
    return holds(_evaluate(condition, scope, path, is_condition=True))


def check_syntax(text: str) -> tuple[str, int] | None:
    """What is wrong with the templates in a text, and in which of its lines; nothing is evaluated."""
    return _problem(text, parse_template) if has_template(text) else None


def check_condition(text: str) -> tuple[str, int] | None:
    """As `check_syntax`, for a condition, whose braces may be left out."""
    return _problem(text, parse_condition) if text.strip() else None


class _Scope(NamedTuple):
    """What templates may use. No dataclass, since every row of a frame makes some."""

    names: Mapping[str, object]
    now: str | None
    chance: Callable[[], float] | None
    max_text: int
    wants_data: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiled:
    template: Template
    is_native: bool
    reads: tuple[str, ...]
    """All names in it: few, of the many that there are to be read."""
    functions: Mapping[str, object]
    """Those of the language that it may mean by them, if nothing else has their name."""

    def context(self, scope: _Scope) -> Context:
        """Only what it reads, without a copy of everything else. Without the globals, which only imports need."""
        names = scope.names
        seen: dict[str, object] = {CHANCE: scope.chance, **self.functions}
        if scope.wants_data:
            seen[DATA_WANTED] = True
        for name in self.reads:
            if name in names:
                seen[name] = names[name]
            elif name == "now":
                seen[name] = _telling(scope.now)
        return Context(SANDBOX, seen, self.template.name, self.template.blocks)


def _render(value: object, scope: _Scope, path: tuple[str | int, ...]) -> JsonValue:
    if isinstance(value, str):
        return _evaluate(value, scope, _path_text(path)) if has_template(value) else value
    if isinstance(value, Mapping):
        return {str(key): _render(child, scope, (*path, key)) for key, child in value.items()}
    if isinstance(value, list | tuple):
        return [_render(child, scope, (*path, index)) for index, child in enumerate(value)]
    return cast(JsonValue, value)


def _evaluate(text: str, scope: _Scope, path: str, *, is_condition: bool = False) -> JsonValue:
    if not is_condition and not scope.wants_data:
        quick = _value_of_shortcut(text, scope.names, scope.max_text)
        if not isinstance(quick, Unsure):
            return quick
    return _evaluate_all(text, scope, path, is_condition=is_condition)


def _value_of_shortcut(text: str, names: Mapping[str, object], max_text: int) -> JsonValue | Unsure:
    shortcut = _shortcut(text) if len(text) <= _MAX_CACHED_CHARACTERS else None
    return UNSURE if shortcut is None else shortcut.value(names, max_text=max_text)


def _evaluate_all(text: str, scope: _Scope, path: str, *, is_condition: bool) -> JsonValue:
    """Whatever it says."""
    with Meter(MAX_WORK_PER_TEXT * scope.max_text, turns=MAX_TURNS):
        template: Template | None = None
        try:
            compiled = _compiled(text, is_condition)
            template = compiled.template
            context = compiled.context(scope)
            pieces = template.root_render_func(context)
            if not compiled.is_native:
                return _bounded_text(pieces, scope.max_text)
            for _ in pieces:
                pass
            return plain(context.vars[VALUE_NAME])
        except TemplateSyntaxError as exc:
            raise TemplateFailed(exc.message or "not a template", expression=text, line=exc.lineno, path=path) from None
        except NotInView as exc:
            raise ValueWithheld(str(exc), expression=text, path=path) from None
        except RecursionError:
            raise TemplateFailed("the template or its value is nested too deeply", expression=text, path=path) from None
        except Exception as exc:
            line = _line_of(template, exc.__traceback__)
            raise TemplateFailed(_reason(exc), expression=text, line=line, path=path) from exc


def _bounded_text(pieces: Any, max_text: int) -> str:
    parts: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        if length > max_text:
            raise TooMuch(f"the text is longer than {max_text} characters")
        parts.append(piece)
    return "".join(parts)


def _compiled(text: str, is_condition: bool) -> _Compiled:
    if len(text) > _MAX_CACHED_CHARACTERS:
        return _compile(text, is_condition)
    return _compile_once(text, is_condition)


def _compile(text: str, is_condition: bool) -> _Compiled:
    tree, is_native = executable(parse_condition(text) if is_condition else parse_template(text))
    reads = dict.fromkeys(node.name for node in descendants(tree) if isinstance(node, nodes.Name | nodes.NSRef))
    return _Compiled(
        template=SANDBOX.from_string(tree),
        is_native=is_native,
        reads=tuple(reads),
        functions={name: function for name, function in SANDBOX.globals.items() if name in reads},
    )


_compile_once = lru_cache(maxsize=1024)(_compile)


@lru_cache(maxsize=1024)
def _shortcut(text: str) -> Shortcut | None:
    try:
        return shortcut_of(parse_template(text))
    except TemplateSyntaxError:
        return None


def _problem(text: str, parse: Callable[[str], nodes.Template]) -> tuple[str, int] | None:
    try:
        parse(text)
    except TemplateSyntaxError as exc:
        return (exc.message or "not a template").rstrip("."), exc.lineno
    return None


def _telling(now: str | None) -> Callable[[], str]:
    """A function that knows nothing else: a template may write out what it is given."""

    def tell_now() -> str:
        if now is None:
            raise ValueError("now() is not available here")
        return now

    return tell_now


def _reason(exc: Exception) -> str:
    return str(exc) or type(exc).__name__


def _line_of(template: Template | None, traceback: TracebackType | None) -> int | None:
    """The line of the template in which it failed: the innermost frame that belongs to its code."""
    line = None
    while template is not None and traceback is not None:
        if traceback.tb_frame.f_code.co_filename == _TEMPLATE_FILE:
            line = template.get_corresponding_lineno(traceback.tb_lineno)
        traceback = traceback.tb_next
    return line


def _path_text(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
