"""Read templates: what is allowed in them, and how they are rewritten so that every turn and value is paid for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import cast

from jinja2 import TemplateSyntaxError, nodes, pass_context
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from noetl_core.playbook.filters import join_text
from noetl_core.playbook.metering import built, spend_turns
from noetl_core.playbook.sandbox import Sandbox
from noetl_core.playbook.views import iterated_of, least_of, passed_of, whole_of

MAX_TEMPLATE_CHARACTERS = 262_144
VALUE_NAME = "_noetl_value"
DATA_WANTED = "data are wanted"
"""A name that no template can spell: where it is, `{{ a }}` gives the data of a large result and not its view."""
_MAX_DEPTH = 60
_MAX_NESTED_LOOPS = 10
"""Deeper templates would overflow Python's own parser when they are compiled."""

_OTHER_TEMPLATES = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
_SHARING = (nodes.Assign, nodes.AssignBlock, nodes.With, nodes.Macro, nodes.CallBlock)
"""Only where a value gets a name can it be put together with itself again and again."""

LEAST_FILTERS = frozenset({"count", "first", "last", "length"})
"""Filters that read little of a list, as slices do: they need not have all of it."""
_ITERATING_FILTERS = frozenset(
    {
        *("batch", "groupby", "join", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse"),
        *("select", "selectattr", "slice", "sort", "sum", "unique"),
    }
)
"""Filters that go through what they are given, as `for` does."""

# No template can spell these names, since they have spaces.
_WHOLE, _PASSED, _EACH, _JOINED, _BUILT = "the whole of", "handed on", "each of", "joined text of", "newly built"
_LEAST, _ITEMS = "the least of", "the items of"


def has_template(text: str) -> bool:
    """Whether a text has anything to evaluate; most have not, and stay as they are."""
    return "{" in text and ("{{" in text or "{%" in text or "{#" in text)


def parse_template(text: str) -> nodes.Template:
    """The tree of a text with templates, or `TemplateSyntaxError` with the line."""
    return _checked(text, lambda: SANDBOX.parse(text))


def parse_condition(text: str) -> nodes.Template:
    """The tree of a condition, whose braces may be left out."""
    if has_template(text):
        return parse_template(text)
    return _checked(text, lambda: _bare_expression(text))


def executable(tree: nodes.Template) -> tuple[nodes.Template, bool]:
    """The template as it is run: loops, joins and new values are paid for, views are asked for the whole.

    One that is nothing but an expression stores its value as `VALUE_NAME`, and so keeps its type: the flag says so.
    """
    gives_names = any(isinstance(node, _SHARING) for node in descendants(tree))
    expression = _sole_expression(tree)
    if expression is not None:
        name = nodes.Name(VALUE_NAME, "store", lineno=1)
        assigned = nodes.Assign(name, expression, lineno=expression.lineno)
        tree = nodes.Template([assigned], lineno=1)
    _Rewriter(charges_literals=gives_names).visit(tree)
    if expression is not None and isinstance(assigned.node, nodes.Filter) and assigned.node.name == _WHOLE:
        assigned.node.name = _PASSED  # nothing but a value is asked for, so it is handed on
    tree.set_environment(SANDBOX)
    return tree, expression is not None


def _sole_expression(tree: nodes.Template) -> nodes.Expr | None:
    if len(tree.body) != 1 or not isinstance(tree.body[0], nodes.Output):
        return None
    parts = tree.body[0].nodes
    return parts[0] if len(parts) == 1 and not isinstance(parts[0], nodes.TemplateData) else None


def descendants(tree: nodes.Node) -> Iterator[nodes.Node]:
    """Every node, the tree itself included, without recursion."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(node.iter_child_nodes())


def _bare_expression(text: str) -> nodes.Template:
    parser = Parser(SANDBOX, text, state="variable")
    expression = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateSyntaxError("the expression goes on after its end", parser.stream.current.lineno)
    return nodes.Template([nodes.Output([expression], lineno=1)], lineno=1)


def _checked(text: str, parse: Callable[[], nodes.Template]) -> nodes.Template:
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise TemplateSyntaxError(f"a template may have at most {MAX_TEMPLATE_CHARACTERS} characters", 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in texts, which are the author's business
            tree = parse()
        _check_nesting(tree)
        _check_nodes(tree)
    except TemplateSyntaxError:
        raise
    except RecursionError:
        raise TemplateSyntaxError("the template is nested too deeply", 1) from None
    except Exception as exc:
        raise TemplateSyntaxError(str(exc), 1) from exc
    return tree


def _check_nesting(tree: nodes.Template) -> None:
    """What Python could not compile is refused here, where it has a line."""
    pending: list[tuple[nodes.Node, int, int]] = [(tree, 0, 0)]
    while pending:
        node, depth, loops = pending.pop()
        loops += isinstance(node, nodes.For)
        if depth > _MAX_DEPTH or loops > _MAX_NESTED_LOOPS:
            raise TemplateSyntaxError("the template is nested too deeply", node.lineno)
        pending.extend((child, depth + 1, loops) for child in node.iter_child_nodes())


def _check_nodes(tree: nodes.Template) -> None:
    for node in descendants(tree):
        if isinstance(node, _OTHER_TEMPLATES):
            raise TemplateSyntaxError("a template cannot use other templates", node.lineno)
        if isinstance(node, nodes.For) and node.recursive:
            raise TemplateSyntaxError("recursive loops are not available", node.lineno)
        if isinstance(node, nodes.Filter) and node.name not in SANDBOX.filters:
            raise TemplateSyntaxError(f"there is no filter {node.name!r}", node.lineno)
        if isinstance(node, nodes.Test) and node.name not in SANDBOX.tests:
            raise TemplateSyntaxError(f"there is no test {node.name!r}", node.lineno)


class _Rewriter(NodeTransformer):
    """Puts internal filters around the places where a template makes something."""

    def __init__(self, *, charges_literals: bool) -> None:
        self._charges_literals = charges_literals

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named by Jinja2
        turn_cost = 1 + sum(_size(child) for part in (node.body, [node.test]) for child in part if child)
        items = self._chained(cast(nodes.Expr, node.iter), _ITEMS)
        node.iter = nodes.Const(None, lineno=node.lineno)
        self.generic_visit(node)
        node.iter = _filtered(items, _EACH, [nodes.Const(turn_cost, lineno=node.lineno)])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), _JOINED)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        callee = node.node
        node.node = nodes.Const(None, lineno=node.lineno)
        self.generic_visit(node)
        node.node = self._inside_chain(callee)
        return node

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802
        return _filtered(node, _WHOLE) if node.ctx == "load" else node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802
        return _filtered(self._inside_chain(node), _WHOLE)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        return _filtered(self._inside_chain(node), _WHOLE)

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        if node.name in LEAST_FILTERS | _ITERATING_FILTERS and node.node is not None:
            given = self._chained(node.node, _LEAST if node.name in LEAST_FILTERS else _ITEMS)
            node.node = nodes.Const(None, lineno=node.lineno)
            self.generic_visit(node)
            node.node = given
        else:
            self.generic_visit(node)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._literal(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._literal(node) if node.ctx == "load" else node

    def _literal(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _BUILT) if self._charges_literals else node

    def _inside_chain(self, node: nodes.Expr) -> nodes.Expr:
        """`a.b.c` is asked for the whole once, at its end."""
        if isinstance(node, nodes.Getattr):
            node.node = self._inside_chain(node.node)
            return node
        if isinstance(node, nodes.Getitem):
            # A slice needs a list, any other key only what is below it.
            is_slice = isinstance(node.arg, nodes.Slice)
            node.node = self._chained(node.node, _LEAST) if is_slice else self._inside_chain(node.node)
            node.arg = self.visit(node.arg)
            return node
        if isinstance(node, nodes.Name):
            return node
        visited: nodes.Expr = self.visit(node)
        return visited

    def _chained(self, node: nodes.Expr, asked_for: str) -> nodes.Expr:
        """`a.b.c` is asked for something else than the whole: its items, or a list that may be here in part."""
        if isinstance(node, nodes.Getattr | nodes.Getitem) or (isinstance(node, nodes.Name) and node.ctx == "load"):
            return _filtered(self._inside_chain(node), asked_for)
        visited: nodes.Expr = self.visit(node)
        return visited


def _filtered(node: nodes.Expr, name: str, args: list[nodes.Expr] | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, args or [], [], None, None, lineno=node.lineno)


def _size(node: nodes.Node) -> int:
    return sum(1 + (len(found.data) if isinstance(found, nodes.TemplateData) else 0) for found in descendants(node))


@pass_context
def _whole(context: Context, value: object) -> object:
    return whole_of(value)


@pass_context
def _least(context: Context, value: object) -> object:
    return least_of(value)


@pass_context
def _items(context: Context, value: object) -> object:
    return iterated_of(value)


@pass_context
def _passed(context: Context, value: object) -> object:
    return iterated_of(value) if DATA_WANTED in context.parent else passed_of(value)


@pass_context
def _each(context: Context, items: Iterable[object], turn_cost: int) -> Iterable[object]:
    if isinstance(items, Sized):
        spend_turns(len(items) * turn_cost)
        return items
    return _paid_turns(items, turn_cost)


def _paid_turns(items: Iterable[object], turn_cost: int) -> Iterator[object]:
    for item in items:
        spend_turns(turn_cost)
        yield item


@pass_context
def _joined(context: Context, pieces: list[object]) -> str:
    return join_text(pieces)


@pass_context
def _built(context: Context, value: object) -> object:
    built(value)
    return value


SANDBOX = Sandbox()
SANDBOX.filters |= {
    _WHOLE: _whole,
    _LEAST: _least,
    _ITEMS: _items,
    _PASSED: _passed,
    _EACH: _each,
    _JOINED: _joined,
    _BUILT: _built,
}
