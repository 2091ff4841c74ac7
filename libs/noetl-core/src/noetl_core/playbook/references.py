"""Know without evaluating it what a template may read, so that the values can be there when it is evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from jinja2 import TemplateSyntaxError, meta, nodes

from noetl_core.playbook.syntax import SANDBOX, descendants, has_template, parse_condition, parse_template

Reference = tuple[str, ...]
"""A name and the constant keys below it: `output.data.rows[0]` is `("output", "data", "rows", "0")`."""


def referenced_paths(template: str) -> frozenset[Reference]:
    """The longest constant chains that start from a free name, in a text with templates."""
    return _references(template, False) if has_template(template) else frozenset()


def condition_paths(condition: str | bool) -> frozenset[Reference]:
    """As `referenced_paths`, for a condition, whose braces may be left out."""
    if isinstance(condition, bool) or not condition.strip():
        return frozenset()
    return _references(condition, True)


def handed_on(text: str) -> Reference | None:
    """The constant chain that a text is nothing but: `{{ a.b }}` hands on what is there, and looks no further."""
    return _sole_chain(text) if has_template(text) else None


@lru_cache(maxsize=2048)
def _sole_chain(text: str) -> Reference | None:
    try:
        tree = parse_template(text)
    except TemplateSyntaxError:
        return None
    node: nodes.Node = tree
    while isinstance(node, nodes.Template | nodes.Output):
        inside = node.body if isinstance(node, nodes.Template) else node.nodes
        if len(inside) != 1:
            return None
        node = inside[0]
    chain, keys = _chain(node), 0
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        node, keys = node.node, keys + 1
    return chain if chain is not None and len(chain) == keys + 1 else None


@lru_cache(maxsize=2048)
def condition_has_text(condition: str, text: str) -> bool:
    """Whether a text stands as a literal in a condition."""
    try:
        tree = parse_condition(condition)
    except TemplateSyntaxError:
        return False
    return any(isinstance(node, nodes.Const) and node.value == text for node in descendants(tree))


@lru_cache(maxsize=2048)
def _references(text: str, is_condition: bool) -> frozenset[Reference]:
    """Templates that do not parse read nothing: they are refused at registration and fail when evaluated."""
    try:
        tree = parse_condition(text) if is_condition else parse_template(text)
        tree.set_environment(SANDBOX)
        undeclared = meta.find_undeclared_variables(tree)
    except TemplateSyntaxError:
        return frozenset()
    bound = {node.name for node in descendants(tree) if isinstance(node, nodes.Name) and node.ctx != "load"}
    # Jinja2 does not count the names of its own functions, which steps and variables may have too.
    free = undeclared | (set(SANDBOX.globals) - bound)
    return frozenset(path for path in _chains(tree) if path[0] in free)


def _chains(tree: nodes.Node) -> Iterator[Reference]:
    pending: list[nodes.Node] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.Call):
            yield from call_chains(node)
            pending.extend(beside_chain(node.node))
            pending.extend(child for child in node.iter_child_nodes() if child is not node.node)
            continue
        chain = _chain(node)
        if chain is not None:
            yield chain
        if isinstance(node, nodes.Getattr | nodes.Getitem):
            pending.extend(beside_chain(node))
        else:
            pending.extend(node.iter_child_nodes())


def call_chains(node: nodes.Call) -> Iterator[Reference]:
    """A method may be shadowed by a key of its name, and needs what it is called on."""
    callee = node.node
    chain = _chain(callee)
    if chain is None or len(chain) == 1:
        return
    yield chain
    first = node.args[0] if node.args else None
    if chain[-1] == "get" and isinstance(first, nodes.Const) and isinstance(first.value, str):
        yield (*chain[:-1], first.value)
    else:
        yield chain[:-1]


def _chain(node: nodes.Node) -> Reference | None:
    """The name and constant keys of a node, up to the first key that is not constant."""
    keys: list[str] = []
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        key = node.attr if isinstance(node, nodes.Getattr) else constant_key(node.arg)
        if key is None:
            keys.clear()
        else:
            keys.append(key)
        node = node.node
    return (node.name, *reversed(keys)) if isinstance(node, nodes.Name) and node.ctx == "load" else None


def beside_chain(node: nodes.Node) -> Iterator[nodes.Node]:
    """What a chain evaluates besides itself: keys that are expressions, and where it does not start from a name."""
    while isinstance(node, nodes.Getattr | nodes.Getitem):
        if isinstance(node, nodes.Getitem):
            yield node.arg
        node = node.node
    if not isinstance(node, nodes.Name):
        yield node


def constant_key(node: nodes.Node) -> str | None:
    """An index from the end is not constant: where it leads depends on the length of the list."""
    if not isinstance(node, nodes.Const) or isinstance(node.value, bool):
        return None
    if isinstance(node.value, int) and node.value >= 0:
        return str(node.value)
    return node.value if isinstance(node.value, str) else None
