"""A server takes so many calls at once; whoever comes on top is told when to come again, and costs it nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from noetl_contracts.channel import open_channel
from noetl_contracts.room import when_there_is_room
from noetl_contracts.status import raising_noetl_errors
from noetl_core.errors import Overloaded
from noetl_servicekit import grpc_server
from noetl_servicekit.env import Address
from noetl_servicekit.health import Health
from noetl_servicekit.interceptors import RETRY_SECONDS, ServiceCalls
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens, token_sha256

SERVICE = "noetl.test.v1.Narrow"
Context = grpc.aio.ServicerContext[bytes, bytes]


class Narrow:
    """Its calls wait until they are let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.most = self.now = 0

    async def ask(self, request: bytes, context: Context) -> bytes:
        self.now += 1
        self.most = max(self.most, self.now)
        self.begun.release()
        await self.go.wait()
        self.now -= 1
        return request

    async def follow(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        yield request

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Ask": grpc.unary_unary_rpc_method_handler(self.ask),
            "Follow": grpc.unary_stream_rpc_method_handler(self.follow),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@pytest.fixture
async def narrow() -> Narrow:
    return Narrow()


@pytest.fixture
async def channel(narrow: Narrow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[grpc.aio.Channel]:
    path = tmp_path / "tokens.json"
    ada = {"name": "ada", "tenant_id": "acme", "organization_id": "data", "role": "writer"}
    path.write_text(json.dumps({"tokens": [{**ada, "token_sha256": token_sha256("secret-a")}]}))

    def calls(tokens: Tokens, metrics: GrpcServerMetrics) -> ServiceCalls:
        return ServiceCalls(tokens, metrics, max_calls=2, max_streams=2)

    monkeypatch.setattr(grpc_server, "ServiceCalls", calls)
    async with (
        grpc_server.serve_grpc(
            Address(host="127.0.0.1", port=0),
            register=narrow.register,
            service_names=[SERVICE],
            tokens=Tokens(path),
            metrics=GrpcServerMetrics(MetricSet()),
            health=Health(),
            drain_seconds=1,
        ) as address,
        open_channel(str(address), token="secret-a") as channel,
    ):
        yield channel


async def ask(channel: grpc.aio.Channel) -> bytes:
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{SERVICE}/Ask")
    with raising_noetl_errors():
        return await method(b"x", timeout=60)


async def test_who_finds_no_room_is_told_when_to_come_again(narrow: Narrow, channel: grpc.aio.Channel) -> None:
    first = [asyncio.create_task(ask(channel)) for _ in range(2)]
    for _ in first:
        await narrow.begun.acquire()

    with pytest.raises(Overloaded) as refusal:
        await ask(channel)

    assert refusal.value.retry_seconds == RETRY_SECONDS
    follow: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(f"/{SERVICE}/Follow")
    assert [one async for one in follow(b"x", timeout=60)] == [b"x"], "what lasts is counted apart"
    narrow.go.set()
    assert await asyncio.gather(*first) == [b"x", b"x"]
    assert await ask(channel) == b"x"


async def test_a_flood_of_patient_callers_is_worked_off(narrow: Narrow, channel: grpc.aio.Channel) -> None:
    narrow.go.set()

    async def soon(seconds: float) -> None:
        await asyncio.sleep(seconds / 100)

    answers = await asyncio.gather(
        *(when_there_is_room(lambda: ask(channel), patience_seconds=600.0, sleep=soon) for _ in range(100))
    )

    assert answers == [b"x"] * 100
    assert narrow.most <= 2
