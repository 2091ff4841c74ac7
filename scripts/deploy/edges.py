"""Who may call whom: what rendered NetworkPolicies allow, compared with the edges of the architecture."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

EXECUTOR: Final = "executor"
CALLS: Final[Mapping[str, frozenset[str]]] = {
    "api": frozenset({"planner", "projector"}),
    "planner": frozenset({"api"}),
    "projector": frozenset({"api"}),
    "reaper": frozenset({"api", "planner", "projector"}),
    "worker": frozenset({"api", "planner"}),
    "outbox-publisher": frozenset(),
    EXECUTOR: frozenset({"api", "planner"}),
}
"""By gRPC. An executor of Spark runs frames, and calls whom a worker calls."""

_GRPC: Final = (7700, "grpc")
Edge = tuple[str, str]


def problems_of_edges(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """Both ends have to allow a call: the one that makes it, and the one that takes it."""
    policies = [one for one in documents if one["kind"] == "NetworkPolicy"]
    leaving = {edge for policy in policies for edge in _edges(policy, "egress", "to")}
    entering = {(caller, callee) for policy in policies for callee, caller in _edges(policy, "ingress", "from")}
    wanted = {(caller, callee) for caller, callees in CALLS.items() for callee in callees}
    said = {"cannot call": wanted - (leaving & entering), "may call": (leaving | entering) - wanted}
    return [f"{caller} {what} {callee}" for what, edges in said.items() for caller, callee in sorted(edges)]


def _edges(policy: Mapping[str, Any], direction: str, key: str) -> Iterable[Edge]:
    whose = _name(policy["spec"]["podSelector"])
    for rule in policy["spec"].get(direction, ()):
        if whose is not None and any(port.get("port") in _GRPC for port in rule.get("ports", ())):
            for peer in rule.get(key, ()):
                other = _name(peer.get("podSelector", {}))
                if other is not None:
                    yield whose, other


def _name(selector: Mapping[str, Any]) -> str | None:
    """Of ours; None for pods of others."""
    labels = selector.get("matchLabels", {})
    keys = {one["key"] for one in selector.get("matchExpressions", ())} | set(labels)
    if "noetl_io_executor_of" in keys:
        return EXECUTOR
    name = labels.get("app.kubernetes.io/name", "")
    return name.removeprefix("noetl-") if name.startswith("noetl-") and not name.endswith("-test") else None
