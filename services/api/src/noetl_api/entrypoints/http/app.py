"""The HTTP application: routes, OpenAPI, health, and problem+json for everything that goes wrong."""

from __future__ import annotations

import importlib.metadata

from fastapi import FastAPI
from noetl_contracts.problem_json import MEDIA_TYPE
from noetl_core.playbook.schema import playbook_schema
from noetl_servicekit.health import Health
from noetl_servicekit.tokens import Tokens
from starlette.responses import JSONResponse, Response

from noetl_api.application.use_cases import UseCases
from noetl_api.entrypoints.http import (
    catalog,
    commands,
    credentials,
    events,
    executions,
    frames,
    logs,
    payload_collection,
    payloads,
    problems,
    replay,
    shards,
    steering,
    variables,
    why,
    workers,
)
from noetl_api.entrypoints.http.middleware import Observed
from noetl_api.telemetry import ApiMetrics

DESCRIPTION = """
Register playbooks, execute them, see what became of them.

Every call needs a token (`Authorization: Bearer …`), which decides the tenant and organization: what belongs to
others does not exist. Ids are text. Every error is `application/problem+json` (RFC 9457) with a stable `code`.
"""

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string", "description": "Stable, for programs."},
        "retryable": {"type": "boolean"},
        "instance": {"type": "string"},
        "problems": {"type": "array", "items": {"type": "object"}},
    },
}


def make_app(*, use_cases: UseCases, tokens: Tokens, health: Health, metrics: ApiMetrics) -> FastAPI:
    """An application over wired use cases."""
    app = FastAPI(
        title="NoETL",
        description=DESCRIPTION,
        version=importlib.metadata.version("noetl-api"),
        openapi_url="/api/openapi.json",
        docs_url="/api/docs",
        redoc_url=None,
        responses={
            "default": {"description": "A problem.", "content": {MEDIA_TYPE: {"schema": _PROBLEM}}},
        },
    )
    app.state.use_cases = use_cases
    app.state.tokens = tokens
    problems.install(app)
    app.add_middleware(Observed, metrics=metrics)
    for module in (
        executions,
        steering,
        why,
        logs,
        payloads,
        payload_collection,
        events,
        replay,
        variables,
        commands,
        frames,
        catalog,
        credentials,
        workers,
        shards,
    ):
        app.include_router(module.router)

    @app.get("/api/playbook.schema.json", tags=["catalog"])
    async def show_schema() -> Response:
        """The JSON Schema of playbooks, for editors; asked without a token."""
        return JSONResponse(playbook_schema(), media_type="application/schema+json")

    @app.get("/api/health", tags=["health"])
    @app.get("/health", tags=["health"])
    async def show_health() -> Response:
        """Whether this replica can do its work; asked without a token."""
        report = health.report()
        checks = {check.name: "ok" if check.ok else check.detail for check in report.checks}
        status = "ok" if report.ready else "unavailable"
        return JSONResponse({"status": status, "checks": checks}, status_code=200 if report.ready else 503)

    return app
