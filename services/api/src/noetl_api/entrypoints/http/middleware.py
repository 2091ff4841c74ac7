"""What happens around every HTTP request: its trace goes on, it is counted, and it is not too large."""

from __future__ import annotations

import time
from typing import Final

from noetl_core.errors import Overloaded
from noetl_servicekit.http_problems import problem_response
from noetl_servicekit.interceptors import RETRY_SECONDS
from noetl_servicekit.tracing import span
from opentelemetry.trace import SpanKind, Status, StatusCode
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noetl_api.telemetry import ApiMetrics

MAX_BODY_BYTES: Final = 8 * 1024 * 1024
MAX_REQUESTS: Final = 2_000
"""Under way at once: more than that are sent away with the time to come again, and cost nothing here."""
UNROUTED: Final = "unrouted"


class Observed:
    """Continues the caller's trace, and measures by route: paths have no bound, routes do."""

    def __init__(self, app: ASGIApp, *, metrics: ApiMetrics, max_requests: int = MAX_REQUESTS) -> None:
        self._app = app
        self._metrics = metrics
        self._max_requests = max_requests
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._under_way >= self._max_requests:
            refusal = Overloaded(f"{self._under_way} requests are under way already", retry_seconds=RETRY_SECONDS)
            self._metrics.http_handled.labels(scope["method"], UNROUTED, "429").inc()
            await (await problem_response(Request(scope), refusal))(scope, receive, send)
            return
        self._under_way += 1
        try:
            await self._observe(scope, receive, send)
        finally:
            self._under_way -= 1

    async def _observe(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        status = 500

        async def observing_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        method = scope["method"]
        with span(
            "http.server",
            parent=_header(scope, b"traceparent"),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": method},
        ) as current:
            try:
                await self._app(scope, _bounded(scope, receive), observing_send)
            finally:
                route = getattr(scope.get("route"), "path", UNROUTED)
                current.update_name(f"{method} {route}")
                current.set_attribute("http.route", route)
                current.set_attribute("http.response.status_code", status)
                if status >= 500:
                    current.set_status(Status(StatusCode.ERROR))
                self._metrics.http_handled.labels(method, route, str(status)).inc()
                self._metrics.http_seconds.labels(method, route).observe(time.perf_counter() - started_at)


def _bounded(scope: Scope, receive: Receive) -> Receive:
    """Stops reading a body that is too large, whatever its headers say."""
    seen = 0

    async def bounded_receive() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise HTTPException(413, f"a request has at most {MAX_BODY_BYTES} bytes")
        return message

    return bounded_receive


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)
