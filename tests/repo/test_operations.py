"""Dashboards, alerts, charts and runbooks say what is so: fresh, and about things that exist."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.deploy import dashboards
from scripts.deploy.crds import problems_of_crds
from scripts.deploy.edges import CALLS, EXECUTOR, problems_of_edges
from scripts.deploy.policy import problems_of

ROOT = Path(__file__).resolve().parents[2]
CHARTS = ROOT / "deploy" / "k8s" / "charts"
SERVICES = ("api", "planner", "projector", "outbox-publisher", "reaper", "worker")
_SUFFIXES = re.compile(r"_(bucket|sum|count)$")


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """Declared metrics, with their labels."""
    declared = yaml.safe_load((ROOT / "telemetry" / "metrics.yaml").read_text(encoding="utf-8"))["metrics"]
    return {metric["name"]: set(metric["labels"]) for metric in declared}


def unknown(expressions: Iterable[str], metrics: dict[str, set[str]]) -> set[str]:
    named = {name for expression in expressions for name in re.findall(r"\bnoetl_[a-z0-9_]+(?![a-z0-9_:])", expression)}
    return {name for name in named if name not in metrics and _SUFFIXES.sub("", name) not in metrics}


def alerts(chart: str) -> list[dict[str, Any]]:
    document = yaml.safe_load((CHARTS / chart / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"] if "alert" in rule]


def expressions(chart: str) -> list[str]:
    """Of alerts, and of what is recorded for them."""
    document = yaml.safe_load((CHARTS / chart / "alerts.yaml").read_text(encoding="utf-8"))
    return [rule["expr"] for group in document["groups"] for rule in group["rules"]]


def test_dashboards_are_fresh() -> None:
    made = dashboards.dashboards()

    assert {file.name: file.read_text(encoding="utf-8") for file in dashboards.DIRECTORY.glob("*.json")} == made


def test_every_metric_of_a_dashboard_is_declared(metrics: dict[str, set[str]]) -> None:
    assert unknown(dashboards.expressions(), metrics) == set()
    assert unknown(["rate(noetl_no_such_total[5m])"], metrics) == {"noetl_no_such_total"}


@pytest.mark.parametrize("chart", SERVICES)
def test_every_metric_of_an_alert_is_declared(chart: str, metrics: dict[str, set[str]]) -> None:
    assert unknown(expressions(chart), metrics) == set()


@pytest.mark.parametrize("chart", SERVICES)
def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not_and_a_runbook(chart: str) -> None:
    tests = yaml.safe_load((CHARTS / chart / "alerts_test.yaml").read_text(encoding="utf-8"))["tests"]
    tried = {test["name"] for test in tests}
    runbook = (ROOT / "docs" / "runbooks" / f"{chart}.md").read_text(encoding="utf-8")

    for rule in alerts(chart):
        assert {f"{rule['alert']} fires", f"{rule['alert']} stays quiet"} <= tried
        assert f"\n## {rule['alert']}\n" in runbook
        assert rule["annotations"]["runbook_url"].endswith(f"{chart}.md#{rule['alert'].lower()}")


@pytest.mark.parametrize("chart", SERVICES)
def test_every_setting_that_a_chart_names_is_documented(chart: str) -> None:
    values = yaml.safe_load((CHARTS / chart / "values.yaml").read_text(encoding="utf-8"))
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")

    assert [name for name in values["settings"] if f"`{name}`" not in settings] == []


def good_pod() -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"name": "p", "annotations": {"a": "1"}},
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "c",
                    "image": "example.com/i:1",
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "readOnlyRootFilesystem": True,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
            ],
        },
    }


def test_the_policy_accepts_a_good_pod() -> None:
    assert problems_of([good_pod()]) == []


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spec.securityContext.runAsNonRoot", False, "runs as root"),
        ("spec.securityContext.runAsUser", 0, "runs as root"),
        ("spec.automountServiceAccountToken", True, "token of the Kubernetes API"),
        ("spec.hostNetwork", True, "hostNetwork"),
        ("spec.containers.0.image", "example.com/i:latest", "not pinned"),
        ("spec.containers.0.image", "example.com:5000/i", "not pinned"),
        ("spec.containers.0.resources.limits", {}, "no limit of memory"),
        ("spec.containers.0.resources.requests", {"cpu": "1"}, "does not say what it needs"),
        ("spec.containers.0.securityContext.readOnlyRootFilesystem", False, "can write to its image"),
        ("spec.containers.0.securityContext.capabilities", {}, "has capabilities"),
        ("metadata.annotations.a", 1, "not text"),
        ("spec.volumes", [{"name": "v", "hostPath": {"path": "/"}}], "directory of the host"),
    ],
)
def test_the_policy_finds_what_must_not_be(path: str, value: Any, said: str) -> None:
    pod = good_pod()
    *parents, last = path.split(".")
    place: Any = pod
    for key in parents:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[last] = value

    (problem,) = problems_of([pod])

    assert said in problem


def test_a_rule_without_groups_and_a_monitor_that_selects_nothing_are_refused() -> None:
    documents = [
        {"kind": "PrometheusRule", "metadata": {"name": "r"}, "spec": {"groups": []}},
        {"kind": "ServiceMonitor", "metadata": {"name": "m"}, "spec": {"selector": {}, "endpoints": []}},
    ]

    assert len(problems_of_crds(documents, ROOT)) == 2


def selector(name: str) -> dict[str, Any]:
    label = {"noetl_io_executor_of": "w"} if name == EXECUTOR else {"app.kubernetes.io/name": f"noetl-{name}"}
    return {"matchLabels": label}


def policies(*, more: tuple[str, str] | None = None, without: tuple[str, str] | None = None) -> list[dict[str, Any]]:
    """A policy for each service that allows what it should, but for one call."""
    edges = {(caller, callee) for caller, callees in CALLS.items() for callee in callees} | ({more} if more else set())
    ports = [{"port": 7700, "protocol": "TCP"}]
    return [
        {
            "kind": "NetworkPolicy",
            "spec": {
                "podSelector": selector(name),
                "egress": [
                    {"to": [{"podSelector": selector(callee)}], "ports": ports}
                    for caller, callee in sorted(edges)
                    if caller == name
                ],
                "ingress": [
                    {"from": [{"podSelector": selector(caller)}], "ports": ports}
                    for caller, callee in sorted(edges)
                    if callee == name and (caller, callee) != without
                ],
            },
        }
        for name in CALLS
    ]


def test_policies_allow_the_edges_of_the_architecture_and_no_others() -> None:
    assert problems_of_edges(policies()) == []
    assert problems_of_edges(policies(more=("worker", "projector"))) == ["worker may call projector"]
    assert problems_of_edges(policies(without=(EXECUTOR, "planner"))) == ["executor cannot call planner"]
