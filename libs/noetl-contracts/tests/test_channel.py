import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import pytest
from noetl_contracts.channel import NO_DEADLINE, open_channel

SERVICE = "noetl.test.v1.Echo"
Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True, kw_only=True)
class Echo:
    """Remembers what it was sent, and fails as often as it is told to."""

    failures_left: int = 0
    calls: int = 0
    metadata: dict[str, str | bytes] = field(default_factory=dict)
    seconds_left: float | None = None

    async def unary(self, request: bytes, context: Context) -> bytes:
        self._note(context)
        if self.failures_left > 0:
            self.failures_left -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return request

    async def many(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        self._note(context)
        for _ in range(3):
            yield request

    async def collect(self, requests: AsyncIterator[bytes], context: Context) -> bytes:
        self._note(context)
        return b"".join([request async for request in requests])

    async def both(self, requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        self._note(context)
        async for request in requests:
            yield request

    def _note(self, context: Context) -> None:
        self.calls += 1
        self.metadata = dict(context.invocation_metadata() or ())
        self.seconds_left = context.time_remaining()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def address(echo: Echo) -> AsyncIterator[str]:
    server = grpc.aio.server()
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(echo.unary),
        "Read": grpc.unary_unary_rpc_method_handler(echo.unary),
        "Many": grpc.unary_stream_rpc_method_handler(echo.many),
        "Collect": grpc.stream_unary_rpc_method_handler(echo.collect),
        "Both": grpc.stream_stream_rpc_method_handler(echo.both),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def unary(channel: grpc.aio.Channel, method: str = "Unary") -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(f"/{SERVICE}/{method}")


def many(channel: grpc.aio.Channel) -> grpc.aio.UnaryStreamMultiCallable[bytes, bytes]:
    return channel.unary_stream(f"/{SERVICE}/Many")


def collect(channel: grpc.aio.Channel) -> grpc.aio.StreamUnaryMultiCallable[bytes, bytes]:
    return channel.stream_unary(f"/{SERVICE}/Collect")


def both(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamMultiCallable[bytes, bytes]:
    return channel.stream_stream(f"/{SERVICE}/Both")


async def requests() -> AsyncIterator[bytes]:
    yield b"a"
    yield b"b"


async def test_every_kind_of_call_says_who_calls_and_in_which_trace(echo: Echo, address: str) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    def assert_noted() -> None:
        assert echo.metadata["authorization"] == "Bearer s3cret"
        assert echo.metadata["traceparent"] == trace
        echo.metadata = {}

    async with open_channel(address, token="s3cret", traceparent=lambda: trace) as channel:
        assert await unary(channel)(b"x") == b"x"
        assert_noted()
        assert await collect(channel)(requests(), timeout=60) == b"ab"
        assert_noted()
        assert [response async for response in many(channel)(b"x", timeout=60)] == [b"x"] * 3
        assert_noted()
        assert [response async for response in both(channel)(requests(), timeout=60)] == [b"a", b"b"]
        assert_noted()


async def test_what_the_caller_sets_itself_is_kept(echo: Echo, address: str) -> None:
    async with open_channel(address, token="mine") as channel:
        await unary(channel)(b"x", metadata=(("authorization", "Bearer other"),))

    assert echo.metadata["authorization"] == "Bearer other"
    assert "traceparent" not in echo.metadata


async def test_a_unary_call_always_has_a_deadline(echo: Echo, address: str) -> None:
    async with open_channel(address, token=None) as channel:
        call = unary(channel)
        await call(b"x")
        assert echo.seconds_left is not None
        assert 5 < echo.seconds_left < 11  # rounded up on its way
        await call(b"x", timeout=60)
        assert echo.seconds_left > 50
        with pytest.raises(TypeError, match="/Unary is not a stream"):
            await call(b"x", timeout=NO_DEADLINE)


async def test_a_stream_says_how_long_it_may_last(echo: Echo, address: str) -> None:
    async with open_channel(address, token=None) as channel:
        with pytest.raises(TypeError, match="timeout=NO_DEADLINE"):
            [response async for response in many(channel)(b"x")]
        with pytest.raises(TypeError, match="timeout=NO_DEADLINE"):
            await collect(channel)(requests())
        assert echo.calls == 0

        assert [response async for response in many(channel)(b"x", timeout=NO_DEADLINE)] == [b"x"] * 3
        assert echo.seconds_left is None


async def test_only_methods_named_idempotent_are_tried_again(echo: Echo, address: str) -> None:
    async with open_channel(address, token=None, retryable_methods=[f"/{SERVICE}/Read"]) as channel:
        echo.failures_left = 2
        assert await unary(channel, "Read")(b"x") == b"x"
        assert echo.calls == 3

        echo.calls, echo.failures_left = 0, 2
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await unary(channel)(b"x")
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert echo.calls == 1


@pytest.mark.parametrize("name", ["Read", "/Read", "noetl.test.v1.Echo/", "/"])
async def test_a_retryable_method_that_is_not_a_full_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a full method name"):
        open_channel("127.0.0.1:1", token=None, retryable_methods=[name])


async def test_a_server_that_comes_back_on_its_address_is_found_again(echo: Echo) -> None:
    async def serve(port: int) -> tuple[grpc.aio.Server, int]:
        server = grpc.aio.server()
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Unary": grpc.unary_unary_rpc_method_handler(echo.unary)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        bound = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        return server, bound

    first, port = await serve(0)
    async with open_channel(f"127.0.0.1:{port}", token=None) as channel:
        call = unary(channel)
        assert await call(b"x") == b"x"
        await first.stop(None)
        with pytest.raises(grpc.aio.AioRpcError):
            await call(b"x", timeout=1)
        second, _ = await serve(port)
        async with asyncio.timeout(60):
            assert await call(b"x", timeout=15, wait_for_ready=True) == b"x"
        await second.stop(None)
