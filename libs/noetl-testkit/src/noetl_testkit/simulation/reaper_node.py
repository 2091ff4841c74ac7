"""The wiring of a reaper, as its bootstrap does it, over simulated neighbours."""

from __future__ import annotations

from typing import Any

from noetl_reaper.application.election import ROLE, Election
from noetl_reaper.application.pass_deadlines import PassDeadlines
from noetl_reaper.application.reclaim_commands import ReclaimCommands
from noetl_reaper.entrypoints.sweep_loop import sweep_regularly
from noetl_servicekit.shard_ownership import ShardOwnership

from noetl_testkit.simulation.clients import PlannerRoute
from noetl_testkit.simulation.network import Node
from noetl_testkit.simulation.nodes import (
    DEADLINE_SECONDS,
    OWNERSHIP,
    REAP_SECONDS,
    SHARDS,
    Installation,
    metrics,
)


async def start_reaper(place: Installation, node: Node) -> None:
    """One reaper, which has to be elected before it works."""
    projector = place.projectors[node.incarnations % len(place.projectors)]
    projections = place.network.remote(projector, "projections")
    planners: Any = PlannerRoute(place.network, place.planners, shard_count=SHARDS)
    told = metrics().reaper
    ownership = ShardOwnership(
        place.api("leases", by=node),
        OWNERSHIP,
        role=ROLE,
        instance=node.name,
        address=node.name,
        metrics=metrics().shards,
        incarnation=f"{node.name}/{node.incarnations}",
        clock=place.loop.time,
    )

    election, reclaimer = Election(ownership), f"urn:noetl:reaper:{node.name}"
    reclaim = ReclaimCommands(
        projections, planners, election=election, reclaimer=reclaimer, concurrency=8, metrics=told
    )
    deadlines = PassDeadlines(
        projections,
        planners,
        place.api("api", by=node),
        election=election,
        reclaimer=reclaimer,
        concurrency=8,
        metrics=told,
        clock=place.loop.time,
    )
    elected = election.fence
    await place.supervise(
        ownership=ownership.run,
        sweep=lambda beat: sweep_regularly(reclaim, elected=elected, every_seconds=REAP_SECONDS, beat=beat),
        deadlines=lambda beat: sweep_regularly(deadlines, elected=elected, every_seconds=DEADLINE_SECONDS, beat=beat),
    )
