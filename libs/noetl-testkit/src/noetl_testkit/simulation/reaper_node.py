"""The wiring of a reaper, as its bootstrap does it, over simulated neighbours."""

from __future__ import annotations

from typing import Any

from noetl_reaper.application.pass_deadlines import PassDeadlines
from noetl_reaper.application.reclaim_commands import ReclaimCommands
from noetl_reaper.entrypoints.sweep_loop import sweep_regularly

from noetl_testkit.simulation.clients import PlannerRoute
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    DEADLINE_SECONDS,
    REAP_SECONDS,
    SHARDS,
    Installation,
    metrics,
)


async def start_reaper(place: Installation, node: Node) -> None:
    """One reaper."""
    projector = place.projectors[node.incarnations % len(place.projectors)]
    projections = place.network.remote(projector, "projections")
    planners: Any = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
    leases, told = place.api("leases", by=node), metrics().reaper
    reclaim = ReclaimCommands(projections, planners, reclaimer="urn:noetl:reaper:sim", concurrency=8, metrics=told)
    deadlines = PassDeadlines(
        projections,
        planners,
        place.api("api", by=node),
        concurrency=8,
        metrics=told,
        clock=place.loop.time,
    )
    await place.supervise(
        sweep=lambda beat: sweep_regularly(reclaim, leases, shard_count=SHARDS, every_seconds=REAP_SECONDS, beat=beat),
        deadlines=lambda beat: sweep_regularly(
            deadlines, leases, shard_count=SHARDS, every_seconds=DEADLINE_SECONDS, beat=beat
        ),
    )
