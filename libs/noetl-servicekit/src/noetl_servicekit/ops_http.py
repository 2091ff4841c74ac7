"""The operator's port of every service: metrics, liveness and readiness, apart from what users call."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from noetl_servicekit.health import Health
from noetl_servicekit.http_problems import PROBLEM_HANDLERS
from noetl_servicekit.metrics import MetricSet


def ops_app(*, metrics: MetricSet, health: Health, extra_routes: Sequence[BaseRoute] = ()) -> Starlette:
    """`/metrics`, `/health/live`, `/health/ready` (as `/health` too), and what a service adds, such as `/summary`."""

    async def show_metrics(request: Request) -> Response:
        body, content_type = metrics.render()
        return Response(body, headers={"content-type": content_type})

    async def live(request: Request) -> Response:
        return JSONResponse({"status": "live"})  # the event loop answers, which is all that is asked

    async def ready(request: Request) -> Response:
        report = health.report()
        checks = {check.name: {"ok": check.ok, "detail": check.detail} for check in report.checks}
        status = "ready" if report.ready else "not ready"
        return JSONResponse({"status": status, "checks": checks}, status_code=200 if report.ready else 503)

    return Starlette(
        routes=[
            Route("/metrics", show_metrics),
            Route("/health/live", live),
            Route("/health/ready", ready),
            Route("/health", ready),
            *extra_routes,
        ],
        exception_handlers=PROBLEM_HANDLERS,
    )
