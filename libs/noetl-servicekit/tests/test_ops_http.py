import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
from noetl_core.errors import NotFound, Unavailable
from noetl_servicekit.env import Address
from noetl_servicekit.health import Health
from noetl_servicekit.http_server import serve_http
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.ops_http import ops_app
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from structlog.testing import capture_logs

ANY_PORT = Address(host="127.0.0.1", port=0)


async def summary(request: Request) -> Response:
    return JSONResponse({"executions": 3})


async def refuse(request: Request) -> Response:
    raise NotFound("execution", 7)


async def away(request: Request) -> Response:
    raise Unavailable("postgres is away")


async def fail(request: Request) -> Response:
    raise RuntimeError("the password is hunter2")


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def metrics() -> MetricSet:
    return MetricSet()


@pytest.fixture
async def client(health: Health, metrics: MetricSet) -> AsyncIterator[httpx.AsyncClient]:
    routes = [
        Route(path, endpoint)
        for path, endpoint in {"/summary": summary, "/refuse": refuse, "/away": away, "/fail": fail}.items()
    ]
    app = ops_app(metrics=metrics, health=health, extra_routes=routes)
    async with (
        serve_http(app, ANY_PORT) as address,
        httpx.AsyncClient(base_url=f"http://{address}", trust_env=False) as client,
    ):
        yield client


async def test_metrics_are_served(client: httpx.AsyncClient, metrics: MetricSet) -> None:
    metrics.gauge("noetl_queue_items", "Items.").set(4)

    answer = await client.get("/metrics")

    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "noetl_queue_items 4.0" in answer.text


async def test_a_process_is_live_while_it_is_not_ready(client: httpx.AsyncClient, health: Health) -> None:
    postgres = health.condition("postgres")
    assert (await client.get("/health/live")).json() == {"status": "live"}

    answer = await client.get("/health/ready")
    assert answer.status_code == 503
    assert answer.json() == {
        "status": "not ready",
        "checks": {"postgres": {"ok": False, "detail": "starting"}},
    }

    postgres.up("16.4")
    answer = await client.get("/health/ready")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "checks": {"postgres": {"ok": True, "detail": "16.4"}}}


async def test_a_service_adds_its_own_routes(client: httpx.AsyncClient) -> None:
    assert (await client.get("/summary")).json() == {"executions": 3}


async def test_errors_are_problem_details(client: httpx.AsyncClient) -> None:
    refused = await client.get("/refuse")
    assert refused.status_code == 404
    assert refused.headers["content-type"] == "application/problem+json"
    assert (refused.json()["code"], refused.json()["instance"]) == ("not_found", "/refuse")

    unavailable = await client.get("/away")
    assert (unavailable.status_code, unavailable.headers["retry-after"]) == (503, "1")


async def test_a_strangers_exception_is_logged_and_not_shown(client: httpx.AsyncClient) -> None:
    with capture_logs() as logs:
        answer = await client.get("/fail")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert "hunter2" not in answer.text
    assert [(line["event"], line["path"]) for line in logs] == [("http.failed", "/fail")]


async def test_stopping_closes_the_port_and_a_second_server_can_take_it(health: Health, metrics: MetricSet) -> None:
    app = ops_app(metrics=metrics, health=health)
    async with serve_http(app, ANY_PORT) as address:
        pass
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection(address.host, address.port)
    async with serve_http(app, address) as again:
        assert again == address


async def test_a_port_that_is_taken_is_refused(health: Health, metrics: MetricSet) -> None:
    app = ops_app(metrics=metrics, health=health)
    async with serve_http(app, ANY_PORT) as taken:
        with pytest.raises(Unavailable, match="cannot listen on"):
            await serve_http(app, taken).__aenter__()
