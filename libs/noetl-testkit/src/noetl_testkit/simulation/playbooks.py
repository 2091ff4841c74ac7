"""Playbooks for simulated installations: small ones, each for one kind of work, and graphs drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

HEAD = {"apiVersion": "noetl.io/v2", "kind": "Playbook"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one history runs."""

    name: str
    document: str
    others: tuple[str, ...] = ()
    minds_time: bool = False
    """It ends differently when things take longer, rightly."""
    path: str = field(default="")


def call(seconds: float = 0.0, *, gives: Any = None, fails: int = 0, **more: Any) -> dict[str, Any]:
    """The tool of a step."""
    given: dict[str, Any] = {"seconds": seconds, "gives": gives, "fails": fails}
    return {"kind": "python", "code": "sim", "input": {key: value for key, value in given.items() if value}, **more}


def arcs(*steps: str | dict[str, Any], mode: str = "exclusive") -> dict[str, Any]:
    """What follows a step."""
    return {
        "spec": {"mode": mode},
        "arcs": [{"step": step} if isinstance(step, str) else step for step in steps],
    }


def _document(name: str, workflow: list[dict[str, Any]], **root: Any) -> str:
    whole = {**HEAD, "metadata": {"name": f"sim/{name}", "path": f"sim/{name}"}, **root, "workflow": workflow}
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None)


FRAME = {"max_rows": 2, "lease_seconds": 4, "heartbeat_seconds": 1, "max_attempts": 50}
RETRY = {"policy": {"rules": [{"when": "{{ error }}", "then": {"do": "retry", "attempts": 4, "delay": 0.2}}]}}


def _chain() -> Case:
    workflow = [
        {
            "step": "a",
            "tool": call(0.1, gives={"n": 1}),
            "next": arcs({"step": "b", "when": "{{ output.data.n == 1 }}"}),
        },
        {"step": "b", "tool": call(0.3, gives={"n": 2}), "set": {"ctx.seen": "{{ output.data.n }}"}, "next": arcs("c")},
        {"step": "c", "tool": {"kind": "noop"}},
    ]
    return Case(name="chain", document=_document("chain", workflow))


def _join() -> Case:
    workflow = [
        {"step": "a", "tool": call(gives={"rows": [1, 2, 3]}), "next": arcs("b", "c", "n", mode="inclusive")},
        {"step": "b", "tool": call(0.5), "next": arcs("d")},
        {"step": "c", "tool": call(0.1), "next": arcs({"step": "d", "when": "{{ a.rows | sum == 6 }}"})},
        {"step": "n", "tool": {"kind": "noop"}, "next": arcs({"step": "x", "when": "{{ false }}"})},
        {"step": "x", "tool": {"kind": "noop"}, "next": arcs("d")},
        {"step": "d", "tool": {"kind": "noop"}, "set": {"ctx.total": "{{ a.rows | sum }}"}},
    ]
    return Case(name="join", document=_document("join", workflow))


def _again() -> Case:
    workflow = [
        {
            "step": "a",
            "tool": call(0.1),
            "set": {"ctx.n": "{{ (n | default(0)) + 1 }}"},
            "next": arcs({"step": "a", "when": "{{ n < 3 }}"}, "b"),
        },
        {"step": "b", "tool": {"kind": "noop"}},
    ]
    return Case(name="again", document=_document("again", workflow))


def _loop(mode: str, *, seconds: float, count: int) -> Case:
    workflow = [
        {
            "step": "l",
            "loop": {"in": f"{{{{ range({count}) | list }}}}", "spec": {"mode": mode, "max_in_flight": 3}},
            "tool": call(seconds, gives={"n": "{{ item }}"}),
            "next": arcs({"step": "z", "when": f"{{{{ output.data.stats.success == {count} }}}}"}),
        },
        {"step": "z", "tool": {"kind": "noop"}},
    ]
    return Case(name=mode, document=_document(mode, workflow))


def _frames(*, fails: bool) -> Case:
    spec: dict[str, Any] = {"mode": "parallel", "max_in_flight": 2, "engine": "inline", "frame": dict(FRAME)}
    given: dict[str, Any] = call(0.3)
    if fails:
        spec |= {"failure_budget": {"count": 9}, "frame": {**FRAME, "max_attempts": 2, "on_failure": "bisect"}}
        given["input"]["fails"] = "{{ 9 if item == 3 else 0 }}"
    workflow = [
        {"step": "l", "loop": {"in": "{{ range(7) | list }}", "spec": spec}, "tool": given, "next": arcs("z")},
        {"step": "z", "tool": {"kind": "noop"}},
    ]
    name = "bisected" if fails else "frames"
    return Case(name=name, document=_document(name, workflow), minds_time=fails)


def _errors() -> Case:
    workflow = [
        {"step": "a", "tool": call(0.1, fails=2, spec=RETRY), "next": arcs("b")},
        {"step": "b", "tool": call(0.1, fails=9), "next": arcs({"step": "c", "when": "{{ error }}"})},
        {"step": "c", "tool": call(0.2, fails=9)},
    ]
    return Case(name="errors", document=_document("errors", workflow))


def _family() -> Case:
    child = [
        {"step": "p", "tool": call(0.3), "next": arcs("q")},
        {"step": "q", "tool": call(0.1, gives={"n": "{{ n }}"})},
    ]
    calls = {"kind": "playbook", "path": "sim/child", "input": {"n": "{{ item }}"}, "return_step": "q"}
    workflow = [
        {
            "step": "s",
            "tool": {"kind": "playbook", "path": "sim/child", "input": {"n": 5}, "return_step": "q"},
            "next": arcs({"step": "l", "when": "{{ output.data.n == 5 }}"}),
        },
        {
            "step": "l",
            "loop": {"in": [1, 2, 3], "spec": {"mode": "parallel", "max_in_flight": 2}},
            "tool": calls,
            "next": arcs("z"),
        },
        {"step": "z", "tool": {"kind": "noop"}},
    ]
    others = (_document("child", child, workload={"n": 0}),)
    return Case(name="family", document=_document("family", workflow), others=others)


def _brood() -> Case:
    """Children that nobody waits for: what their starts add to the log is news to the planner when their calls end."""
    child = [{"step": "p", "tool": call(0.2)}]
    workflow = [
        {
            "step": "l",
            "loop": {"in": [1, 2, 3], "spec": {"mode": "parallel", "max_in_flight": 2}},
            "tool": {"kind": "playbook", "path": "sim/chick"},
            "next": arcs("z"),
        },
        {"step": "z", "tool": {"kind": "noop"}},
    ]
    return Case(name="brood", document=_document("brood", workflow), others=(_document("chick", child),))


def _late() -> Case:
    workflow = [
        {
            "step": "a",
            "spec": {"timeout": 3},
            "tool": call(60.0),
            "next": arcs({"step": "b", "when": "{{ error.code == 'step.timeout' }}"}),
        },
        {
            "step": "b",
            "spec": {"timeout": 4},
            "loop": {"in": [1, 2, 3], "spec": {"mode": "parallel"}},
            "tool": call(1.5),
            "next": arcs({"step": "z", "when": "{{ error }}"}, "z"),
        },
        {"step": "z", "tool": call(0.1)},
    ]
    return Case(name="late", document=_document("late", workflow), minds_time=True)


def _too_late() -> Case:
    workflow = [
        {"step": "a", "loop": {"in": [1, 2], "spec": {"mode": "parallel"}}, "tool": call(2.0), "next": arcs("b")},
        {"step": "b", "tool": call(3.0)},
    ]
    root = {"executor": {"spec": {"timeout": 4.5}}}
    return Case(name="too_late", document=_document("too_late", workflow, **root), minds_time=True)


HAND_WRITTEN = (
    _chain(),
    _join(),
    _again(),
    _loop("parallel", seconds=0.4, count=5),
    _loop("sequential", seconds=0.2, count=3),
    _frames(fails=False),
    _frames(fails=True),
    _errors(),
    _family(),
    _brood(),
    _late(),
    _too_late(),
)
GENERATED = 24


@lru_cache(maxsize=GENERATED)
def generated(number: int) -> Case:
    """A graph of a few steps, forward arcs between them, and work of any kind in each."""
    chance = random.Random(number)  # noqa: S311 - repeatable, not secret
    names = [f"s{place}" for place in range(chance.randrange(3, 6))]
    workflow: list[dict[str, Any]] = []
    for place, name in enumerate(names):
        step: dict[str, Any] = {"step": name, "tool": call(chance.choice((0.0, 0.1, 0.4)), gives={"n": place})}
        kind = chance.choice(("plain", "plain", "retry", "parallel", "frames"))
        if kind == "retry":
            step["tool"] = call(0.1, fails=chance.randrange(3), spec=RETRY)
        elif kind in ("parallel", "frames"):
            spec: dict[str, Any] = {"mode": "parallel", "max_in_flight": 2}
            if kind == "frames":
                spec |= {"engine": "inline", "frame": dict(FRAME)}
            step["loop"] = {"in": f"{{{{ range({chance.randrange(4)}) | list }}}}", "spec": spec}
        following = names[place + 1 :]
        if following:
            chosen = sorted(chance.sample(following, min(len(following), chance.choice((1, 1, 2)))))
            told: list[str | dict[str, Any]] = [
                {"step": one, "when": "{{ false }}"} if chance.random() < 0.15 else one for one in chosen
            ]
            step["next"] = arcs(*told, mode="inclusive")
        workflow.append(step)
    return Case(name=f"graph-{number}", document=_document(f"graph-{number}", workflow))


def draw_case(chance: random.Random) -> Case:
    """One written by hand, most of the time."""
    if chance.random() < 0.25:
        return generated(chance.randrange(GENERATED))
    return chance.choice(HAND_WRITTEN)
