"""The shape of a workflow: which way is forward, what can still be reached, what joins where."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from noetl_core.playbook.model import Arc, Playbook
from noetl_core.playbook.references import condition_has_text, condition_paths

_ERROR_NAMES = (("error",), ("output", "error"), ("output", "status"), ("fanin",))
_ERROR_EVENT = "call.error"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Forward and back edges of a workflow, found once from its entry, depth first, in written order."""

    entry: str
    final: str | None
    forward: Mapping[str, tuple[str, ...]]
    back: Mapping[str, tuple[str, ...]]
    predecessors: Mapping[str, tuple[str, ...]]
    """Forward predecessors that can be reached from the entry; a step with several is a join."""
    unreachable: tuple[str, ...]
    """Steps that no way from the entry leads to, in written order; the final step is not one of them."""
    _number: Mapping[str, int]
    _reach: tuple[int, ...]

    def is_back_edge(self, source: str, target: str) -> bool:
        """Whether an arc from `source` to `target` leads back to a step on its own way, or to itself."""
        return target in self.back[source]

    def is_join(self, step: str) -> bool:
        """Whether several steps lead to it forward."""
        return len(self.predecessors[step]) > 1

    def reaches(self, source: str, target: str) -> bool:
        """Whether there is a way of one or more forward edges."""
        return bool(self._reach[self._number[source]] >> self._number[target] & 1)

    def any_reaches(self, sources: Collection[str], target: str) -> bool:
        """Whether any of the steps can still reach `target` forward."""
        return any(self.reaches(source, target) for source in sources)

    def reachable(self, source: str) -> Iterator[str]:
        """Every step that forward edges lead to, in written order."""
        bits = self._reach[self._number[source]]
        return (step for step, number in self._number.items() if bits >> number & 1)

    def led_to(self, sources: Collection[str]) -> set[str]:
        """Everything that any arcs lead to from these steps, forward or back."""
        found: set[str] = set()
        pending = list(sources)
        while pending:
            step = pending.pop()
            for target in (*self.forward[step], *self.back[step]):
                if target not in found:
                    found.add(target)
                    pending.append(target)
        return found


def build_graph(playbook: Playbook) -> Graph:
    """The graph of a playbook; the final step's own arcs are not part of it, since nobody follows them."""
    targets = {
        name: () if name == playbook.final_step else tuple(dict.fromkeys(arc.step for arc in step.next.arcs))
        for name, step in playbook.steps.items()
    }
    number = {name: index for index, name in enumerate(targets)}
    forward: dict[str, tuple[str, ...]] = {}
    back: dict[str, tuple[str, ...]] = {}
    reach = [0] * len(number)
    # Steps that cannot be reached get edges as well, so that every question has an answer.
    seen_from_entry = 0
    for start in (playbook.entry_step, *targets):
        if start not in forward:
            _explore(start, targets, number=number, forward=forward, back=back, reach=reach)
        seen_from_entry = seen_from_entry or len(forward)
    reached = list(forward)[:seen_from_entry]
    predecessors: dict[str, list[str]] = {name: [] for name in targets}
    for source in reached:
        for target in forward[source]:
            predecessors[target].append(source)
    known = {*reached, playbook.final_step}
    return Graph(
        entry=playbook.entry_step,
        final=playbook.final_step,
        forward=forward,
        back=back,
        predecessors={name: tuple(sorted(sources, key=number.__getitem__)) for name, sources in predecessors.items()},
        unreachable=tuple(name for name in targets if name not in known),
        _number=number,
        _reach=tuple(reach),
    )


def is_error_arc(arc: Arc, *, shadowed: Collection[str] = ()) -> bool:
    """Whether an arc is tried after a failed call: its condition speaks of failure.

    `shadowed` are the names of steps and variables; where one is called `error`, it is meant.
    """
    if isinstance(arc.when, bool):
        return False
    if condition_has_text(arc.when, _ERROR_EVENT):
        return True
    return any(
        path[: len(name)] == name
        for path in condition_paths(arc.when)
        for name in _ERROR_NAMES
        if name != ("error",) or "error" not in shadowed
    )


def _explore(
    start: str,
    targets: Mapping[str, tuple[str, ...]],
    *,
    number: Mapping[str, int],
    forward: dict[str, tuple[str, ...]],
    back: dict[str, tuple[str, ...]],
    reach: list[int],
) -> None:
    """Depth first with a stack of its own; a step's reach is known when everything after it has been seen."""
    on_path = {start}
    pending: list[tuple[str, Iterator[str], list[str], list[str]]] = [(start, iter(targets[start]), [], [])]
    forward[start] = ()  # marks it as seen, in the order of discovery
    while pending:
        step, rest, ahead, behind = pending[-1]
        target = next(rest, None)
        if target is None:
            pending.pop()
            on_path.discard(step)
            forward[step], back[step] = tuple(ahead), tuple(behind)
            bits = 0
            for successor in ahead:
                bits |= reach[number[successor]] | 1 << number[successor]
            reach[number[step]] = bits
        elif target in on_path:
            behind.append(target)
        else:
            ahead.append(target)
            if target not in forward:
                forward[target] = ()
                on_path.add(target)
                pending.append((target, iter(targets[target]), [], []))
