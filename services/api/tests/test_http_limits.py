"""More requests than a replica takes at once are sent away at the door, with the time to come again."""

from __future__ import annotations

import asyncio

import httpx
from noetl_api.entrypoints.http.middleware import Observed
from noetl_api.telemetry import ApiMetrics
from noetl_servicekit.metrics import MetricSet
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route


async def test_a_request_without_room_is_answered_429_with_retry_after() -> None:
    go, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> Response:
        begun.set()
        await go.wait()
        return PlainTextResponse("done")

    app = Observed(Starlette(routes=[Route("/slow", slow)]), metrics=ApiMetrics(MetricSet()), max_requests=1)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
        first = asyncio.create_task(client.get("/slow"))
        await begun.wait()
        refused = await client.get("/slow")
        go.set()

        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        assert (refused.json()["code"], refused.json()["retryable"]) == ("overloaded", True)
        assert (await first).text == "done"
        assert (await client.get("/slow")).status_code == 200
