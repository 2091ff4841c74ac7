"""Choose the scalars of a result that routing needs, so that events carry those and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TypeGuard

from noetl_core.canonical import JsonValue
from noetl_core.playbook.control import references_after, references_before
from noetl_core.playbook.model import Playbook
from noetl_core.playbook.references import Reference
from noetl_core.playbook.views import ENVELOPE_KEYS, Key, NotInView, View, look_into

MAX_SELECTED_CHARACTERS = 1024

ResultPath = tuple[str, ...]
"""Keys below a result; the empty path is the result itself."""

_HOPS = frozenset({"data", "result"})


def control_paths(playbook: Playbook, step: str) -> frozenset[ResultPath]:
    """Which parts of a step's result the control expressions of the playbook may read."""
    return _paths_by_step(playbook)[step]


def select_scalars(result: object, paths: Iterable[ResultPath]) -> tuple[dict[str, JsonValue], tuple[str, ...]]:
    """The scalars at these paths by pointer, and pointers of what is there but too large to be carried.

    A path is also sought below the result's `data`, as templates do; both places are told apart by their pointers.
    That there is a `data` or `result` is told in any case: it decides how templates read everything else.
    """
    selected: dict[str, JsonValue] = {}
    unselected: set[str] = set()
    wanted = {candidate for path in paths for candidate in (path, ("data", *path))}
    for path in wanted:
        try:
            reached, value = _reach(result, path)
        except KeyError:
            continue
        if _is_small(value):
            selected[pointer(reached)] = value
        else:
            unselected.add(pointer(path))
    if wanted:
        unselected |= {pointer((hop,)) for hop in _HOPS if _is_there(result, hop) and pointer((hop,)) not in selected}
    return selected, tuple(sorted(unselected))


def nest(selected: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """The selected scalars as maps within maps; list items are under their index as text."""
    nested: dict[str, JsonValue] = {}
    for path, value in sorted((parse_pointer(text), value) for text, value in selected.items()):
        place = nested
        for key in path[:-1]:
            below = place.setdefault(key, {})
            if not isinstance(below, dict):
                break
            place = below
        else:
            if path:
                place[path[-1]] = value
    return nested


def result_view(
    selected: Mapping[str, JsonValue], unselected: Collection[str], paths: Collection[ResultPath]
) -> object:
    """A step's result as far as its events tell it; reading more raises `ValueWithheld`, never a wrong answer."""
    if "" in selected:
        return selected[""]
    root = _Branch(path=(), searched=_searched(paths))
    for text in sorted({*selected, *unselected}):
        root.put(parse_pointer(text), selected.get(text), is_known=text in selected)
    return root


def pointer(path: ResultPath) -> str:
    """A path as a JSON pointer, which no key can be mistaken in: `/a/b`."""
    return "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)


def parse_pointer(text: str) -> ResultPath:
    """The path of a JSON pointer."""
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in text.split("/")[1:])


class _Branch(View):
    """A map or list of which only some parts are known, and what was looked for when they were chosen."""

    def __init__(self, *, path: ResultPath, searched: frozenset[ResultPath]) -> None:
        self._path = path
        self._searched = searched
        self._below: dict[str, object] = {}

    def put(self, path: ResultPath, value: JsonValue, *, is_known: bool) -> None:
        branch = self
        for depth, key in enumerate(path):
            if is_known and depth == len(path) - 1:
                branch._below[key] = value
                return
            below = branch._below.setdefault(key, _Branch(path=(*branch._path, key), searched=branch._searched))
            if not isinstance(below, _Branch):
                return
            branch = below

    def lookup(self, key: Key) -> object:
        name = str(key)
        if name in self._below:
            return self._below[name]
        if (*self._path, name) in self._searched:
            raise KeyError(key)
        raise NotInView(f"{pointer((*self._path, name))} was not selected for routing")

    def whole(self) -> object:
        place = pointer(self._path) or "the result"
        raise NotInView(f"{place} is not a scalar of at most {MAX_SELECTED_CHARACTERS} characters")


@lru_cache(maxsize=256)
def _paths_by_step(playbook: Playbook) -> Mapping[str, frozenset[ResultPath]]:
    found: dict[str, set[ResultPath]] = {name: set() for name in playbook.steps}
    causes = _leading_to(playbook)
    for name, step in playbook.steps.items():
        after, before = references_after(step), references_before(step)
        for path in after:
            found[name].update(_paths_after(path))
        for path in after | before:
            for step_name, below in _named_step(path, found):
                found[step_name].update(_below_step(below))
        for path in before:
            if path[0] == "result":  # of whichever step led here
                for cause in causes[name]:
                    found[cause].add(path[1:])
    return {name: frozenset(paths) for name, paths in found.items()}


def _leading_to(playbook: Playbook) -> Mapping[str, set[str]]:
    causes: dict[str, set[str]] = {name: set() for name in playbook.steps}
    for name, step in playbook.steps.items():
        for arc in step.next.arcs:
            causes[arc.step].add(name)
    return causes


def _paths_after(path: Reference) -> Iterator[ResultPath]:
    match path:
        case ("output",) | ("event",) | ("event", "payload"):
            yield ()
        case ("output", "http", "headers", *below):
            yield ("headers", *below)
        case ("output", "http"):
            yield ("headers",)
        case ("output", key, *_) if key in ENVELOPE_KEYS:
            return
        case ("output", "data", *below) | ("result", *below) | ("event", "payload", *below):
            yield tuple(below)
        case ("output", *below):
            yield tuple(below)


def _named_step(path: Reference, steps: Collection[str]) -> Iterator[tuple[str, ResultPath]]:
    if path == ("steps",):
        yield from ((name, ()) for name in steps)
    elif path[0] == "steps" and path[1] in steps:
        yield path[1], path[2:]
    if path[0] in steps:
        yield path[0], path[1:]


def _below_step(path: ResultPath) -> Iterator[ResultPath]:
    """`step.data.a` is `a` of a result that has no `data`, and `data.a` of one that has."""
    yield path
    if path and path[0] in _HOPS:
        yield path[1:]


def _searched(paths: Collection[ResultPath]) -> frozenset[ResultPath]:
    """Everything that `select_scalars` looked for on the way to these paths."""
    sought = {candidate for path in paths for candidate in (path, ("data", *path))}
    prefixes = {path[:length] for path in sought for length in range(1, len(path) + 1)}
    return frozenset(prefixes | {(hop,) for hop in _HOPS})


def _is_there(result: object, key: str) -> bool:
    try:
        look_into(result, key)
    except KeyError:
        return False
    return True


def _reach(value: object, path: ResultPath) -> tuple[ResultPath, object]:
    """How far a path leads, and what is there: what is below a text is a matter of that text."""
    for depth, key in enumerate(path):
        if isinstance(value, str):
            return path[:depth], value
        value = look_into(value, key)
    return path, value


def _is_small(value: object) -> TypeGuard[bool | int | float | str | None]:
    if isinstance(value, str):
        return len(value) <= MAX_SELECTED_CHARACTERS
    return not isinstance(value, list | dict | View)
