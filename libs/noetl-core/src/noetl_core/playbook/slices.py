"""Know without evaluating it how little of a list a template reads: single items and slices, its ends, its length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from jinja2 import TemplateSyntaxError, nodes

from noetl_core.playbook.references import Reference, beside_chain, call_chains, constant_key
from noetl_core.playbook.syntax import LEAST_FILTERS, has_template, parse_template

Cut = tuple[int | None, int | None]
"""The bounds of a slice, as Python has them."""

_CUTS: Final[Mapping[str, Cut]] = {"first": (0, 1), "last": (-1, None), "length": (0, 0), "count": (0, 0)}
_CHAIN = (nodes.Getattr, nodes.Getitem, nodes.Name)


def cuts_of(text: str) -> Mapping[Reference, frozenset[Cut]]:
    """What is read of the lists at constant paths, where it is never all of them."""
    return _cuts(text) if has_template(text) else {}


def rows_of(cut: Cut, total: int) -> tuple[int, int]:
    """The range of rows that a slice means in a list of this length."""
    wanted = range(total)[cut[0] : cut[1]]
    return (wanted.start, wanted.stop) if wanted else (0, 0)


@lru_cache(maxsize=2048)
def _cuts(text: str) -> Mapping[Reference, frozenset[Cut]]:
    try:
        tree = parse_template(text)
    except TemplateSyntaxError:
        return {}
    found: dict[Reference, set[Cut]] = {}
    whole: set[Reference] = set()
    for path, cut in _uses(tree):
        if cut is None:
            whole.add(path)
        else:
            found.setdefault(path, set()).add(cut)
    return {path: frozenset(cuts) for path, cuts in found.items() if path not in whole}


def _uses(tree: nodes.Node) -> Iterator[tuple[Reference, Cut | None]]:
    pending: list[nodes.Node] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Filter) and node.name in LEAST_FILTERS and isinstance(node.node, _CHAIN):
            yield from _use_of(node.node, _CUTS[node.name])
            pending.extend(beside_chain(node.node))
        elif isinstance(node, nodes.Call):
            yield from ((path, None) for path in call_chains(node))
            pending.extend(beside_chain(node.node))
            pending.extend(child for child in node.iter_child_nodes() if child is not node.node)
        elif isinstance(node, _CHAIN):
            yield from _use_of(node, None)
            pending.extend(beside_chain(node))
        else:
            pending.extend(node.iter_child_nodes())


def _use_of(node: nodes.Node, at_end: Cut | None) -> Iterator[tuple[Reference, Cut | None]]:
    """The constant part of a chain, and what is read of the value there."""
    links: list[nodes.Getattr | nodes.Getitem] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        links.append(node)
        node = node.node
    if not isinstance(node, nodes.Name) or node.ctx != "load":
        return
    path = [node.name]
    for link in reversed(links):
        key = link.attr if isinstance(link, nodes.Getattr) else constant_key(link.arg)
        if key is None:
            yield tuple(path), _cut(link.arg) if isinstance(link, nodes.Getitem) else None
            return
        path.append(key)
    yield tuple(path), at_end


def _cut(argument: nodes.Node) -> Cut | None:
    if isinstance(argument, nodes.Slice):
        start, stop, step = (_bound(one) for one in (argument.start, argument.stop, argument.step))
        is_known = all(isinstance(one, int | None) for one in (start, stop)) and step in (None, 1)
        return (start, stop) if is_known else None  # type: ignore[return-value]  # just looked at
    index = _bound(argument)
    return (index, index + 1 or None) if isinstance(index, int) else None


def _bound(node: nodes.Node | None) -> int | str | None:
    """A constant, nothing, or (as text) what is known only when it is evaluated."""
    if node is None:
        return None
    sign = 1
    if isinstance(node, nodes.Neg):
        sign, node = -1, node.node
    if isinstance(node, nodes.Const) and type(node.value) is int:
        return sign * node.value
    return None if isinstance(node, nodes.Const) and node.value is None else "computed"
