"""What an operator sees at a glance: shards, quarantined executions, the bus, and what is in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from noetl_servicekit.shard_ownership import ShardOwnership
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from noetl_projector.application.known_states import KnownStates
from noetl_projector.application.troubles import Trouble, Troubles

MAX_SHOWN: Final = 100


def summary_route(
    *,
    ownership: Callable[[], ShardOwnership | None],
    troubles: Troubles,
    known: KnownStates,
    bus_is_away: Callable[[], bool],
) -> Route:
    """`/summary` of the operator's port."""

    async def summary(request: Request) -> Response:
        owner = ownership()
        quarantined, behind = troubles.quarantined(), troubles.to_retry()
        return JSONResponse(
            {
                "shards": {str(shard): epoch for shard, epoch in sorted(owner.epochs().items())} if owner else {},
                "live_instances": owner.live_instances if owner else 0,
                "bus_is_away": bus_is_away(),
                "cached_executions": len(known),
                "quarantined_count": len(quarantined),
                "quarantined": _shown(quarantined),
                "behind_count": len(behind),
                "behind": _shown(behind),
            }
        )

    return Route("/summary", summary)


def _shown(troubles: Mapping[int, Trouble]) -> list[Mapping[str, object]]:
    return [
        {
            "execution_id": str(execution_id),
            "shard": trouble.shard,
            "version": trouble.target,
            "failures": trouble.failures,
            "reason": trouble.reason,
        }
        for execution_id, trouble in list(troubles.items())[:MAX_SHOWN]
    ]
