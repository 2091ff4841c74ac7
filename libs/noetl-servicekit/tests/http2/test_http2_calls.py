"""Our client and server with each other and with the library's, on both kinds of event loop."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio
import pytest
from noetl_contracts.channel import NO_DEADLINE, open_channel
from noetl_contracts.http2 import client_channel
from noetl_contracts.http2.client_channel import Http2Channel
from noetl_contracts.http2.connection import STREAM_WINDOW_BYTES
from noetl_contracts.http2.frames import PING, PREFACE, goaway_frame, ping_frame, settings_frame
from noetl_contracts.own_channel import OwnChannel
from noetl_servicekit.event_loop import new_fast_loop
from noetl_servicekit.http2.server import Http2Server
from noetl_servicekit.server_call import CallInterceptor, Context, Method, Work

SERVICE = "noetl.test.v1.Echo"
MIB = 1024 * 1024
MAX_BYTES = 16 * MIB


class Straight(CallInterceptor):
    async def run(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        return await work(request, context)


@dataclass(slots=True)
class Echo:
    """Answers in methods of all kinds, and knows how far it has come."""

    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    proceed: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0
    calls: int = 0

    async def same(self, request: bytes, context: Any) -> bytes:
        self.calls += 1
        return request

    async def grow(self, request: bytes, context: Any) -> bytes:
        return bytes(int(request))

    async def wait(self, request: bytes, context: Any) -> bytes:
        self.arrived.set()
        try:
            await self.proceed.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return request

    async def refuse(self, request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nö: 100 %", (("why-bin", b"\x00\x01"), ("who", "me")))
        raise AssertionError

    async def fail(self, request: bytes, context: Any) -> bytes:
        raise RuntimeError("odd")

    async def many(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        count, size = map(int, request.split())
        try:
            for _ in range(count):
                yield b"x" * size
                self.written += size
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise

    async def collect(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        return b"".join([request async for request in requests])

    async def both(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    def register(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, Any] = {
            "Same": grpc.unary_unary_rpc_method_handler(self.same),
            "Grow": grpc.unary_unary_rpc_method_handler(self.grow),
            "Wait": grpc.unary_unary_rpc_method_handler(self.wait),
            "Refuse": grpc.unary_unary_rpc_method_handler(self.refuse),
            "Fail": grpc.unary_unary_rpc_method_handler(self.fail),
            "Many": grpc.unary_stream_rpc_method_handler(self.many),
            "Collect": grpc.stream_unary_rpc_method_handler(self.collect),
            "Both": grpc.stream_stream_rpc_method_handler(self.both),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


LIMITS = (("grpc.max_receive_message_length", MAX_BYTES), ("grpc.max_send_message_length", MAX_BYTES))


def own_server() -> grpc.aio.Server:
    return Http2Server(Straight(), max_message_bytes=MAX_BYTES, max_metadata_bytes=16_384, keepalive_seconds=20)


def library_server() -> grpc.aio.Server:
    return grpc.aio.server(options=LIMITS)


def own_channel(address: str) -> grpc.aio.Channel:
    return open_channel(address, token=None, default_timeout_seconds=60)


def library_channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=LIMITS)


@dataclass(frozen=True, slots=True)
class Pair:
    server: Callable[[], grpc.aio.Server]
    channel: Callable[[str], grpc.aio.Channel]

    @asynccontextmanager
    async def serving(self, echo: Echo) -> AsyncIterator[str]:
        server = self.server()
        echo.register(server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            await server.stop(None)

    @asynccontextmanager
    async def running(self, echo: Echo) -> AsyncIterator[grpc.aio.Channel]:
        async with self.serving(echo) as address, self.channel(address) as channel:
            yield channel


OURS = Pair(own_server, own_channel)
PAIRS = {
    "ours": OURS,
    "our-client": Pair(library_server, own_channel),
    "our-server": Pair(own_server, library_channel),
}
Story = Callable[[grpc.aio.Channel, Echo], Awaitable[None]]


def call(channel: grpc.aio.Channel, method: str) -> Any:
    return channel.unary_unary(f"/{SERVICE}/{method}")


def many(channel: grpc.aio.Channel) -> Any:
    return channel.unary_stream(f"/{SERVICE}/Many")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


def play(pair: Pair, story: Story, *, fast: bool) -> None:
    async def told() -> None:
        echo = Echo()
        async with asyncio.timeout(20), pair.running(echo) as channel:
            await story(channel, echo)

    with asyncio.Runner(loop_factory=new_fast_loop if fast else None) as runner:
        runner.run(told())


async def messages_of_all_sizes(channel: grpc.aio.Channel, echo: Echo) -> None:
    for size in (0, 1, 16_379, 16_380, 65_530, 65_531, 300_000, MIB, 3 * MIB + 7, MAX_BYTES):
        assert await call(channel, "Same")(b"m" * size, timeout=60) == b"m" * size


async def large_ones_beside_many_small_ones(channel: grpc.aio.Channel, echo: Echo) -> None:
    large = [call(channel, "Same")(bytes([n]) * 5 * MIB, timeout=60) for n in range(4)]
    small = [call(channel, "Same")(b"%d" % n, timeout=60) for n in range(500)]
    answers = await asyncio.gather(*(asyncio.ensure_future(_wait(one)) for one in (*large, *small)))
    assert answers[:4] == [bytes([n]) * 5 * MIB for n in range(4)]
    assert answers[4:] == [b"%d" % n for n in range(500)]


async def _wait(one: Awaitable[Any]) -> Any:
    return await one


async def refusals_tell_all_that_was_said(channel: grpc.aio.Channel, echo: Echo) -> None:
    for _ in range(2):  # the second one finds the table of headers filled
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channel, "Refuse")(b"", timeout=60)
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        assert refused.value.details() == "nö: 100 %"
        metadata = {str(key): value for key, value in refused.value.trailing_metadata() or ()}
        assert metadata["why-bin"] == b"\x00\x01"
        assert metadata["who"] == "me"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(channel, "Fail")(b"", timeout=60)
    assert failed.value.code() is grpc.StatusCode.UNKNOWN
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await call(channel, "Nothing")(b"", timeout=60)
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await call(channel, "Same")(b"x", timeout=60) == b"x"


async def messages_that_are_too_large_are_refused(channel: grpc.aio.Channel, echo: Echo) -> None:
    for method, request in (("Same", b"m" * (MAX_BYTES + 1)), ("Grow", b"%d" % (MAX_BYTES + 1))):
        with pytest.raises(grpc.aio.AioRpcError, match="larger than max") as refused:
            await call(channel, method)(request, timeout=60)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert await call(channel, "Same")(b"x", timeout=60) == b"x"


async def streams_come_whole(channel: grpc.aio.Channel, echo: Echo) -> None:
    for count, size in ((0, 1), (1, 0), (1_000, 10), (7, 2 * MIB)):
        answers = [len(one) async for one in many(channel)(b"%d %d" % (count, size), timeout=60)]
        assert answers == [size] * count


async def who_reads_slowly_is_not_flooded(channel: grpc.aio.Channel, echo: Echo) -> None:
    stream = aiter(many(channel)(b"200 %d" % (256 * 1024), timeout=60))
    await anext(stream)
    await asyncio.sleep(0.2)  # to let everything come that may
    assert echo.written < 30 * MIB
    assert len([one async for one in stream]) == 199


async def a_call_that_is_given_up_is_cancelled_at_the_server(channel: grpc.aio.Channel, echo: Echo) -> None:
    waiting = asyncio.ensure_future(_wait(call(channel, "Wait")(b"x", timeout=60)))
    await echo.arrived.wait()
    waiting.cancel()
    await echo.cancelled.wait()
    assert await call(channel, "Same")(b"x", timeout=60) == b"x"


async def a_deadline_ends_both_sides(channel: grpc.aio.Channel, echo: Echo) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await call(channel, "Wait")(b"x", timeout=0.2)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await echo.cancelled.wait()


async def a_stream_that_is_dropped_is_cancelled(channel: grpc.aio.Channel, echo: Echo) -> None:
    stream = many(channel)(b"1000000 100000", timeout=60)
    await anext(aiter(stream))
    if isinstance(channel, OwnChannel):
        del stream
        gc.collect()
    else:  # the library keeps it alive
        stream.cancel()
    await echo.cancelled.wait()


async def a_thousand_calls_at_once(channel: grpc.aio.Channel, echo: Echo) -> None:
    calls = [asyncio.ensure_future(_wait(call(channel, "Wait")(b"%d" % n, timeout=60))) for n in range(1_000)]
    await echo.arrived.wait()
    echo.proceed.set()
    assert await asyncio.gather(*calls) == [b"%d" % n for n in range(1_000)]


async def requests_may_be_streams(channel: grpc.aio.Channel, echo: Echo) -> None:
    async def requests() -> AsyncIterator[bytes]:
        for number in range(50):
            yield b"%d" % number * 10_000

    expected = [b"%d" % number * 10_000 for number in range(50)]
    collect: Any = channel.stream_unary(f"/{SERVICE}/Collect")
    both: Any = channel.stream_stream(f"/{SERVICE}/Both")
    assert await collect(requests(), timeout=60) == b"".join(expected)
    assert [one async for one in both(requests(), timeout=60)] == expected


STORIES: tuple[Story, ...] = (
    messages_of_all_sizes,
    large_ones_beside_many_small_ones,
    refusals_tell_all_that_was_said,
    messages_that_are_too_large_are_refused,
    streams_come_whole,
    who_reads_slowly_is_not_flooded,
    a_call_that_is_given_up_is_cancelled_at_the_server,
    a_deadline_ends_both_sides,
    a_stream_that_is_dropped_is_cancelled,
    a_thousand_calls_at_once,
    requests_may_be_streams,
)


@pytest.mark.parametrize("fast", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS.keys())
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_calls(story: Story, pair: Pair, fast: bool) -> None:
    play(pair, story, fast=fast)


async def test_a_server_that_goes_away_in_the_middle_is_told_from_one_that_answers() -> None:
    echo = Echo()
    server = own_server()
    echo.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        waiting = asyncio.ensure_future(_wait(call(channel, "Wait")(b"x", timeout=60)))
        await echo.arrived.wait()
        await server.stop(None)

        with pytest.raises(grpc.aio.AioRpcError) as gone:
            await waiting
        assert gone.value.code() is grpc.StatusCode.UNAVAILABLE
        assert echo.cancelled.is_set()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(channel, "Same")(b"x", timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "failed to connect" in (refused.value.details() or "")


async def test_who_calls_a_server_that_goes_away_is_sent_elsewhere_and_nothing_is_done_twice() -> None:
    """Calls that the leaving server has not looked at are made again, at the one that takes its place."""
    first, second, echo = own_server(), own_server(), Echo()
    echo.register(first)
    echo.register(second)
    port = first.add_insecure_port("127.0.0.1:0")
    await first.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        waiting = asyncio.ensure_future(_wait(call(channel, "Wait")(b"x", timeout=60)))
        await echo.arrived.wait()
        stopping = asyncio.ensure_future(first.stop(30))
        await asyncio.sleep(0)
        calls = [asyncio.ensure_future(_wait(call(channel, "Same")(b"%d" % n, timeout=60))) for n in range(20)]
        second.add_insecure_port(f"127.0.0.1:{port}")
        await second.start()
        assert await asyncio.gather(*calls) == [b"%d" % n for n in range(20)]
        assert echo.calls == 20
        echo.proceed.set()
        assert await waiting == b"x"
        await stopping
    await second.stop(None)


async def test_nobody_is_kept_by_a_server_that_does_not_answer() -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with own_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await call(channel, "Same")(b"x", timeout=0.2)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await left.wait()


@asynccontextmanager
async def _greeter(say: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> AsyncIterator[str]:
    """A peer that greets as a server does, and then does as the test likes with the one who comes."""
    left = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings_frame({}))
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await say(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await left.wait()


async def _listen_only(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def _answer_pings(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readexactly(len(PREFACE))
    while True:
        head = await reader.readexactly(9)
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if head[3] == PING:
            writer.write(ping_frame(payload, ack=True))


async def test_who_says_nothing_and_does_not_answer_when_asked_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_channel, "KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr(client_channel, "KEEPALIVE_TIMEOUT_SECONDS", 0.05)
    async with _greeter(_listen_only) as address, own_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as left:
            await call(channel, "Wait")(b"x", timeout=60)
    assert left.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "nothing was heard" in str(left.value.details())


async def test_who_says_nothing_but_answers_when_asked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_channel, "KEEPALIVE_SECONDS", 0.01)
    async with _greeter(_answer_pings) as address, own_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await call(channel, "Wait")(b"x", timeout=0.5)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_a_channel_that_is_closed_while_it_connects_ends_its_calls_and_hangs_up() -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        left.set()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        channel = Http2Channel(
            "127.0.0.1",
            server.sockets[0].getsockname()[1],
            authority="silent",
            retryable=("/a.B/C",),
            max_message_bytes=MAX_BYTES,
        )
        calls = [asyncio.ensure_future(channel.call("/a.B/C", b"", (), (), timeout=60)) for _ in range(3)]
        await arrived.wait()
        await channel.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [one.code() for one in results if isinstance(one, grpc.aio.AioRpcError)] == [
            grpc.StatusCode.CANCELLED
        ] * 3
        await left.wait()


async def test_an_address_that_does_not_answer_keeps_nobody_from_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    left = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
        left.set()

    echo = Echo()
    async with await asyncio.start_server(silent, "127.0.0.1", 0) as hole, OURS.serving(echo) as address:
        ports = [hole.sockets[0].getsockname()[1], int(address.rpartition(":")[2])]

        async def addresses(host: str, port: int) -> list[tuple[str, int]]:
            return [("127.0.0.1", each) for each in ports]

        monkeypatch.setattr(client_channel, "addresses_of", addresses)
        async with own_channel(address) as channel:
            assert await call(channel, "Same")(b"x", timeout=8) == b"x"
        await left.wait()


async def test_a_server_of_something_else_is_unavailable() -> None:
    async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(http, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with own_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(channel, "Same")(b"x", timeout=10)
            assert failed.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_channel_that_is_closed_ends_its_calls_and_takes_no_more() -> None:
    echo = Echo()
    async with OURS.running(echo) as channel:
        waiting = asyncio.ensure_future(_wait(call(channel, "Wait")(b"x", timeout=60)))
        await echo.arrived.wait()
        await channel.close()
        with pytest.raises(grpc.aio.AioRpcError) as closed:
            await waiting
        assert closed.value.code() is grpc.StatusCode.CANCELLED
        await echo.cancelled.wait()
        with pytest.raises(grpc.aio.UsageError):
            await call(channel, "Same")(b"x", timeout=1)


@pytest.mark.parametrize("fast", [True, False], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize("how", ["close", "abort", "goaway"])
def test_who_is_hung_up_on_at_once_is_told_so(how: str, fast: bool) -> None:
    """As behind a proxy whose server is away: it accepts, and then it does not want to."""

    async def story() -> None:
        async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if how == "goaway":
                writer.write(settings_frame({}) + goaway_frame(0, 0))
                await reader.read()
            if how == "abort":
                writer.transport.abort()
            writer.close()

        server = await asyncio.start_server(leave, "127.0.0.1", 0)
        async with asyncio.timeout(20), own_channel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}") as channel:
            for _ in range(5):
                with pytest.raises(grpc.aio.AioRpcError) as gone:
                    await call(channel, "Same")(b"x", timeout=10)
                assert gone.value.code() is grpc.StatusCode.UNAVAILABLE
                with pytest.raises(grpc.aio.AioRpcError):
                    await many(channel)(b"1 1", timeout=NO_DEADLINE).read()
        server.close()

    with asyncio.Runner(loop_factory=new_fast_loop if fast else None) as runner:
        runner.run(story())


async def test_a_stop_waits_for_answers_that_are_on_their_way() -> None:
    echo, server = Echo(), own_server()
    echo.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        large = asyncio.ensure_future(_wait(call(channel, "Grow")(b"%d" % (12 * MIB), timeout=60)))
        while not any(one.calls or one.streams for one in server.connections):  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)
        await server.stop(30)
        assert len(await large) == 12 * MIB


async def test_a_stop_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_servicekit.http2.server._CANCEL_SECONDS", 0.1)
    server, proceed, arrived = own_server(), asyncio.Event(), asyncio.Event()

    async def stubborn(request: bytes, context: Any) -> bytes:
        arrived.set()
        while not proceed.is_set():
            with suppress(asyncio.CancelledError):
                await proceed.wait()
        return request

    handlers: dict[str, Any] = {"Same": grpc.unary_unary_rpc_method_handler(stubborn)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        waiting = asyncio.ensure_future(_wait(call(channel, "Same")(b"x", timeout=60)))
        await arrived.wait()
        async with asyncio.timeout(20):
            await server.stop(None)
        with pytest.raises(grpc.aio.AioRpcError):
            await waiting
    proceed.set()
    await asyncio.sleep(0)


async def test_what_a_servicer_says_and_headers_cannot_carry_is_its_own_error() -> None:
    server = own_server()

    async def odd(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("x", "ä"),))
        return request

    async def numbered(request: bytes, context: Any) -> bytes:
        context.set_code(5)
        context.set_details("nothing here")
        return request

    handlers: dict[str, Any] = {
        "Same": grpc.unary_unary_rpc_method_handler(odd),
        "Grow": grpc.unary_unary_rpc_method_handler(numbered),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        for method, code in (("Same", grpc.StatusCode.UNKNOWN), ("Grow", grpc.StatusCode.NOT_FOUND)):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(channel, method)(b"x", timeout=10)
            assert failed.value.code() is code
    await server.stop(None)


async def test_a_stream_that_is_cancelled_while_it_connects_is_never_made() -> None:
    echo = Echo()
    async with OURS.running(echo) as channel:
        stream = many(channel)(b"10 10", timeout=60)
        reading = asyncio.ensure_future(stream.read())
        await asyncio.sleep(0)
        assert stream.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert await call(channel, "Same")(b"x") == b"x"
        assert echo.written == 0


async def test_a_token_that_cannot_be_sent_hurts_no_other_call() -> None:
    tokens = ["good", "b\u20acd", "b\nd"]
    echo = Echo()
    async with OURS.running(echo) as channel:
        assert isinstance(channel, OwnChannel)
        channel._outgoing._token = lambda: tokens[0]
        for _ in range(3):
            assert await call(channel, "Same")(b"x") == b"x"
            tokens.append(tokens.pop(0))
            if tokens[0] != "good":
                with pytest.raises(ValueError, match="token"):
                    await call(channel, "Same")(b"x")
                tokens.insert(0, "good")


async def test_a_channel_tells_its_state() -> None:
    async with OURS.running(Echo()) as channel:
        assert channel.get_state() is grpc.ChannelConnectivity.IDLE
        changes = asyncio.ensure_future(channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE))
        await asyncio.sleep(0)
        await channel.channel_ready()
        await changes
        assert channel.get_state() is grpc.ChannelConnectivity.READY
    assert channel.get_state() is grpc.ChannelConnectivity.SHUTDOWN


async def test_callers_wait_for_room_where_a_server_takes_few_at_once() -> None:
    """The library's server is told so by an option; all are served in the end."""
    server, echo = grpc.aio.server(options=(("grpc.max_concurrent_streams", 3),)), Echo()
    echo.register(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with own_channel(f"127.0.0.1:{port}") as channel:
        await call(channel, "Same")(b"x")  # its settings are here now
        calls = [asyncio.ensure_future(_wait(call(channel, "Wait")(b"%d" % n, timeout=60))) for n in range(20)]
        await echo.arrived.wait()
        calls[7].cancel()
        echo.proceed.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    await server.stop(None)
    assert [answer for place, answer in enumerate(answers) if place != 7] == [b"%d" % n for n in range(20) if n != 7]


async def test_a_slow_reader_holds_about_a_window_here() -> None:
    echo = Echo()
    async with OURS.running(echo) as channel:
        stream = many(channel)(b"100 %d" % (256 * 1024), timeout=60)
        await stream.read()
        await asyncio.sleep(0.1)
        assert stream._call.held_bytes <= 2 * STREAM_WINDOW_BYTES + 256 * 1024


async def test_connecting_is_shared_and_rests_after_a_failure(unused_tcp_port: int) -> None:
    channel = Http2Channel("127.0.0.1", unused_tcp_port, authority="nobody", retryable=(), max_message_bytes=MAX_BYTES)
    results = await asyncio.gather(
        *(channel.call("/a.B/C", b"", (), (), timeout=5) for _ in range(50)), return_exceptions=True
    )
    assert all(isinstance(one, grpc.aio.AioRpcError) and one.code() is grpc.StatusCode.UNAVAILABLE for one in results)
    assert channel.state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
    await channel.close()
