"""Descriptions of pools, the objects made of them, and what a pool would do."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from noetl_cli.deploy.commands import deploy
from noetl_cli.deploy.description import DescriptionInvalid
from noetl_cli.deploy.pool import WorkerPool, read_pool, scaled_object
from noetl_cli.deploy.scaling import burst, react, simulate, steady, waves

ROOT = Path(__file__).resolve().parents[4]


def written(directory: Path, text: str) -> Path:
    file = directory / "pool.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["default", "jetstream"])
def test_the_committed_samples_are_what_the_command_writes(name: str) -> None:
    directory = ROOT / "deploy" / "keda"

    result = CliRunner().invoke(deploy, ["keda", str(directory / f"{name}.pool.yaml")], catch_exceptions=False)

    assert result.output == (directory / f"{name}.scaledobject.yaml").read_text(encoding="utf-8")


def test_a_pool_is_scaled_on_what_waits_and_what_runs() -> None:
    (trigger,) = scaled_object(WorkerPool(pool="gpu", slots=2))["spec"]["triggers"]

    assert trigger["metadata"]["query"] == 'sum(noetl_planner_backlog_commands{pool="gpu"})'
    assert trigger["metadata"]["threshold"] == "2"


def test_the_jetstream_trigger_names_the_consumer_that_workers_use() -> None:
    (trigger,) = scaled_object(WorkerPool(pool="gpu.large", trigger="nats-jetstream"))["spec"]["triggers"]

    assert trigger["metadata"]["consumer"] == "pool-gpu_large"
    assert trigger["metadata"]["account"] == "NOETL"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_replica: 3", "did you mean max_replicas?"),
        ("slots: many", "slots must be a whole number"),
        ("slots: true", "slots must be a whole number"),
        ("slots: 0", "slots must be at least 1"),
        ("{min_replicas: 9, max_replicas: 3}", "min_replicas exceeds max_replicas"),
        ("trigger: cpu", "trigger must be one of"),
        ("deployment: Upper Case", "a name that Kubernetes takes"),
        ("[1, 2]", "must hold a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DescriptionInvalid, match=said.replace("?", r"\?")):
        read_pool(written(tmp_path, text))


def test_a_burst_is_met_within_half_a_minute_and_the_pool_goes_back_to_nothing() -> None:
    moments = list(simulate(WorkerPool(), burst(200), command_seconds=10, start_seconds=8))
    reaction = react(moments)

    assert reaction.reaction_seconds is not None
    assert reaction.reaction_seconds < 30
    assert reaction.reversals == 1  # up, then down, once
    assert moments[-1].replicas == 0
    assert reaction.drained_second is not None


def test_no_command_is_lost_and_no_pod_has_more_than_its_slots() -> None:
    pool = WorkerPool(slots=4, max_replicas=3)
    arrivals = waves(50)
    moments = list(simulate(pool, arrivals, command_seconds=7, start_seconds=5))

    assert max(moment.replicas for moment in moments) <= pool.max_replicas
    assert moments[-1].backlog == 0
    for before, after in pairwise(moments):
        assert before.backlog + after.arrived - after.backlog <= pool.slots * pool.max_replicas


def test_a_window_of_stabilization_keeps_a_pool_from_oscillating() -> None:
    calm = WorkerPool(min_replicas=1, stabilization_seconds=300)
    nervous = WorkerPool(min_replicas=1, stabilization_seconds=0)

    settled, restless = (
        react(list(simulate(pool, waves(), command_seconds=10, start_seconds=8))) for pool in (calm, nervous)
    )

    assert settled.reversals < restless.reversals


def test_steady_work_gets_a_pool_that_keeps_up() -> None:
    moments = list(simulate(WorkerPool(), steady(4, seconds=600), command_seconds=10, start_seconds=8))

    assert moments[599].backlog <= 5 * 8  # what five pods run


def test_the_command_shows_what_would_happen(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("0\n5\n0\n", encoding="utf-8")
    pool = written(tmp_path, "{slots: 1, max_replicas: 2}")

    shown = CliRunner().invoke(deploy, ["scaling", str(pool), "--trace-file", str(trace)], catch_exceptions=False)
    told = CliRunner().invoke(deploy, ["scaling", str(pool), "--trace-file", str(trace), "-o", "json"])

    assert "largest size      2 pods" in shown.output
    assert json.loads(told.output)["peak_replicas"] == 2


def test_objects_of_a_supercluster_are_those_of_each_cluster(tmp_path: Path) -> None:
    file = ROOT / "deploy" / "nats" / "two-regions.yaml"

    result = CliRunner().invoke(deploy, ["nats", str(file), "--cluster", "eu"], catch_exceptions=False)
    documents = list(yaml.safe_load_all(result.stdout))

    assert [one["kind"] for one in documents] == [
        *("ConfigMap", "Service", "Service", "PodDisruptionBudget", "StatefulSet")
    ]
    config = documents[0]["data"]["nats.conf"]
    assert 'advertise: "nats-eu.example.com:7222"' in config
    assert "url: $NOETL_NATS_PEER_US" in config
    assert "majority" in result.stderr
    (container,) = documents[-1]["spec"]["template"]["spec"]["containers"]
    variables = {one["name"]: one.get("value") for one in container["env"]}
    assert variables["NOETL_NATS_PEER_US"] == "nats://gateway:$(NOETL_NATS_CLUSTER_PASSWORD)@nats-us.example.com:7222"
