"""What a worker opens is closed again, and until then somebody keeps it tidy."""

from __future__ import annotations

from pathlib import Path

from noetl_core.ports.upkeep import Upkeep
from noetl_servicekit.env import Env
from noetl_servicekit.metrics import MetricSet
from noetl_worker.bootstrap.working import open_working
from noetl_worker.settings import WorkSettings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.toolbox import ToolboxSettings


async def test_whoever_opens_the_tools_of_a_worker_hears_of_all_that_has_to_be_done_meanwhile(tmp_path: Path) -> None:
    variables = {
        "NOETL_API_ADDRESS": "127.0.0.1:1",
        "NOETL_PLANNER_ADDRESS": "127.0.0.1:1",
        "NOETL_PAYLOAD_URL": f"file://{tmp_path}",
    }
    env = Env(variables)
    settings, tools = WorkSettings.read(env), ToolboxSettings.read(env, slots=1, python_spares=0)
    env.check()
    upkeep: list[Upkeep] = []

    async with open_working(
        settings,
        tools,
        variables=variables,
        token="t",
        metrics=WorkerMetrics(MetricSet()),
        keep=upkeep.append,
    ) as working:
        assert "postgres" in working.tools.kinds
        for one in upkeep:
            await one.once()

    assert {one.name for one in upkeep} == {"shared-memory", "postgres-pools", "nats-connections"}
