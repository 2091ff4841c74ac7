"""Templates that only put values into text, without all that a template could need: most of what rows render is so.

A shortcut gives what the template gives, or it is not sure; then the template itself is evaluated, as if nobody had
looked. So it knows no errors, no undefined values and no bounds: where one of them could matter, it is not sure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from jinja2 import nodes

from noetl_core.canonical import JsonValue
from noetl_core.playbook.filters import json_line
from noetl_core.playbook.plain import plain
from noetl_core.playbook.views import View, passed_of, whole_of


class Unsure:
    """The template itself has to be evaluated."""


UNSURE: Final = Unsure()

_SHARE_OF_BOUND = 16
"""Of the text that is allowed: what is built on the way is a few times as much as comes out, and less than this."""
_SCALARS = frozenset({str, int, float, bool})
_JSON = frozenset({*_SCALARS, dict, list, type(None)})
_OF_THE_TEMPLATE = "self"
"""A name by which a template means itself, whatever else has it."""


class _Read(NamedTuple):
    """`{{ name.key.key }}`, or the JSON of it."""

    name: str
    keys: tuple[str, ...]
    as_json: bool


class Shortcut(NamedTuple):
    """Texts and values in their order."""

    parts: tuple[str | _Read, ...]
    is_native: bool
    """Whether it is one value, which keeps its type."""

    def value(self, names: Mapping[str, object], *, max_text: int) -> JsonValue | Unsure:
        """What the template gives, if that is sure."""
        left = max_text // _SHARE_OF_BOUND
        pieces: list[str] = []
        try:
            for part in self.parts:
                if isinstance(part, str):
                    piece = part
                else:
                    name, keys, as_json = part
                    value = names[name]
                    for key in keys:
                        if type(value) is dict:
                            value = value[key]
                        elif isinstance(value, View):
                            value = value.lookup(key)
                        else:
                            return UNSURE
                    if as_json:
                        piece = _json_of(value, left)
                    elif self.is_native:
                        return _passed(value, left)
                    elif type(value) in _SCALARS or (value := whole_of(value)) is None or type(value) in _SCALARS:
                        piece = "" if value is None else str(value)
                    else:
                        return UNSURE
                left -= len(piece)
                if left < 0:  # before more is put together than anybody may have
                    return UNSURE
                pieces.append(piece)
        except Exception:  # what is wrong says the template
            return UNSURE
        return "".join(pieces)


def _json_of(value: object, longest: int) -> str:
    data = whole_of(value)
    if type(data) not in _JSON:
        raise TypeError("something that only the template knows")
    if isinstance(data, str | dict | list) and len(data) > longest:
        raise ValueError("too long in any case")
    return json_line(plain(data))


def _passed(value: object, longest: int) -> JsonValue | Unsure:
    data = passed_of(value)
    is_sure = type(data) in _SCALARS and not (isinstance(data, str) and len(data) > longest)
    return plain(data) if is_sure else UNSURE


def shortcut_of(tree: nodes.Template) -> Shortcut | None:
    """That of a template as it was parsed, if it has one."""
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    parts = tuple(_parts(tree.body[0].nodes))
    if any(part is None for part in parts):
        return None
    known = tuple(part for part in parts if part is not None)
    return Shortcut(parts=known, is_native=len(known) == 1 and not isinstance(known[0], str))


def _parts(written: list[nodes.Expr]) -> Iterator[str | _Read | None]:
    for node in written:
        if isinstance(node, nodes.TemplateData):
            yield node.data
        elif isinstance(node, nodes.Filter):
            is_bare = node.name == "tojson" and not (node.args or node.kwargs or node.dyn_args or node.dyn_kwargs)
            yield _read(node.node, as_json=True) if is_bare else None
        else:
            yield _read(node, as_json=False)


def _read(node: nodes.Expr | None, *, as_json: bool) -> _Read | None:
    keys: list[str] = []
    while isinstance(node, nodes.Getattr):
        keys.insert(0, node.attr)
        node = node.node
    if not isinstance(node, nodes.Name) or node.name == _OF_THE_TEMPLATE:
        return None
    return _Read(node.name, tuple(keys), as_json)
