import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.status import error_from_rpc
from noetl_core.errors import NotFound, Unavailable
from noetl_servicekit.env import Address
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens, token_sha256

SERVICE = "noetl.test.v1.Slow"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
Context = grpc.aio.ServicerContext[bytes, bytes]


class Slow:
    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.proceed = asyncio.Event()

    async def work(self, request: bytes, context: Context) -> bytes:
        self.arrived.set()
        await self.proceed.wait()
        return request

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Work": grpc.unary_unary_rpc_method_handler(self.work)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@pytest.fixture
async def slow() -> Slow:
    return Slow()


@pytest.fixture
def health() -> Health:
    return Health()


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    path = tmp_path / "tokens.json"
    digest = token_sha256("s")
    path.write_text(
        f'{{"tokens": [{{"name": "svc", "token_sha256": "{digest}", "tenant_id": "*", '
        '"organization_id": "*", "role": "service"}]}'
    )
    return Tokens(path)


@pytest.fixture
def server(slow: Slow, health: Health, tokens: Tokens) -> AbstractAsyncContextManager[Address]:
    return serve_grpc(
        Address(host="127.0.0.1", port=0),
        register=slow.register,
        service_names=[SERVICE],
        tokens=tokens,
        metrics=GrpcServerMetrics(MetricSet()),
        health=health,
        drain_seconds=5,
    )


@pytest.fixture
async def anonymous(server: AbstractAsyncContextManager[Address]) -> AsyncIterator[grpc.aio.Channel]:
    async with server as address, open_channel(str(address), token=None) as channel:
        yield channel


def work(channel: grpc.aio.Channel) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/{SERVICE}/Work")


async def test_health_follows_readiness_and_asks_for_no_token(anonymous: grpc.aio.Channel, health: Health) -> None:
    stub = health_pb2_grpc.HealthStub(anonymous)
    postgres = health.condition("postgres")

    for service in ("", SERVICE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == NOT_SERVING
    postgres.up()
    for service in ("", SERVICE):
        assert (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status == SERVING
    listed = await stub.List(health_pb2.HealthListRequest())
    assert {name: answer.status for name, answer in listed.statuses.items()} == {"": SERVING, SERVICE: SERVING}


async def test_health_of_a_service_that_is_not_here_is_not_found(anonymous: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(anonymous)

    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await stub.Check(health_pb2.HealthCheckRequest(service="noetl.other.v1.Other"))

    assert isinstance(error_from_rpc(failure.value), NotFound)


async def test_who_watches_health_is_told_of_changes_until_the_server_drains(
    anonymous: grpc.aio.Channel, health: Health
) -> None:
    stub = health_pb2_grpc.HealthStub(anonymous)
    loop = health.condition("loop")
    watch = aiter(stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE), timeout=30))

    assert (await anext(watch)).status == NOT_SERVING
    loop.up()
    assert (await anext(watch)).status == SERVING
    health.drain()
    assert [answer.status async for answer in watch] == [NOT_SERVING]


async def test_reflection_lists_what_is_served(anonymous: grpc.aio.Channel) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(anonymous)

    async def question() -> AsyncIterator[object]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    answers = [answer async for answer in stub.ServerReflectionInfo(question(), timeout=60)]

    assert {service.name for service in answers[0].list_services_response.service} == {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_a_call_under_way_is_finished_while_new_ones_are_refused(
    server: AbstractAsyncContextManager[Address], slow: Slow, health: Health
) -> None:
    address = await server.__aenter__()
    async with open_channel(str(address), token="s") as channel:
        under_way = asyncio.ensure_future(work(channel)(b"x"))
        await slow.arrived.wait()
        stopping = asyncio.create_task(server.__aexit__(None, None, None))
        while not health.draining:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await work(channel)(b"y", timeout=1)
        assert isinstance(error_from_rpc(refusal.value), Unavailable)
        assert not health.report().ready

        slow.proceed.set()
        assert await under_way == b"x"
        await stopping


async def test_a_port_that_is_taken_is_refused(
    server: AbstractAsyncContextManager[Address], slow: Slow, tokens: Tokens
) -> None:
    async with server as taken:
        second = serve_grpc(
            taken,
            register=slow.register,
            service_names=[SERVICE],
            tokens=tokens,
            metrics=GrpcServerMetrics(MetricSet()),
            health=Health(),
        )
        with pytest.raises(Unavailable, match="cannot listen on"):
            await second.__aenter__()
