"""What a server does with peers that do not keep to the protocol: they are left, and nobody else notices."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from noetl_contracts.channel import open_channel
from noetl_contracts.http2 import frames
from noetl_contracts.http2.calls import message_bytes
from noetl_contracts.http2.frames import frame, header_frames, reset_frame, settings_frame, window_frame
from noetl_contracts.http2.header_blocks import Headers, HeaderWriter
from noetl_servicekit.http2.server import Http2Server
from noetl_servicekit.server_call import CallInterceptor, Context, Method, Work

PATH = "/noetl.test.v1.Echo/Same"
HEADERS: Headers = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", PATH),
    (":authority", "x"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
)
GREETING = frames.PREFACE + settings_frame({})


class Straight(CallInterceptor):
    async def run(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        return await work(request, context)


@dataclass
class Served:
    server: Http2Server
    address: tuple[str, int]
    under_way: int = 0
    most: int = 0
    proceed: asyncio.Event = field(default_factory=asyncio.Event)

    async def same(self, request: bytes, context: Any) -> bytes:
        if request == b"wait":
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            try:
                await self.proceed.wait()
            finally:
                self.under_way -= 1
        return request


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    server = Http2Server(Straight(), max_message_bytes=1_000_000, max_metadata_bytes=16_384, keepalive_seconds=20)
    served = Served(server, ("127.0.0.1", server.add_insecure_port("127.0.0.1:0")))
    handlers: dict[str, Any] = {"Same": grpc.unary_unary_rpc_method_handler(served.same)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("noetl.test.v1.Echo", handlers),))
    await server.start()
    host, port = served.address
    async with open_channel(f"{host}:{port}", token=None) as channel:
        same: Any = channel.unary_unary(PATH)
        assert await same(b"before") == b"before"
        yield served
        assert await same(b"after") == b"after"  # the same connection as before, whatever a neighbour did
    await server.stop(None)


def request(stream_id: int, data: bytes = b"x", headers: Headers = HEADERS) -> bytes:
    block = HeaderWriter().write((), headers)
    return header_frames(stream_id, block, end_stream=False, max_frame_bytes=16_384) + frame(
        frames.DATA, frames.END_STREAM, stream_id, message_bytes(data)
    )


async def told(served: Served, data: bytes) -> tuple[int, bytes]:
    """Send it, and read until the server hangs up: why it went away, and everything else it said."""
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(data)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    at, code = 0, -1
    while at + 9 <= len(answer):
        high, low, kind, _, _ = frames.HEAD.unpack_from(answer, at)
        if kind == frames.GOAWAY:
            code = frames.NUMBER.unpack_from(answer, at + 9 + 4)[0]
        at += 9 + (high << 8 | low)
    return code, answer


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", frames.PROTOCOL_ERROR),
        (frames.PREFACE + frame(frames.PING, 0, 0, b"12345678"), frames.PROTOCOL_ERROR),
        (GREETING + frames.frame_head(2**24 - 1, frames.DATA, 0, 1), frames.FRAME_SIZE_ERROR),
        (GREETING + frame(frames.PING, 0, 0, b"123"), frames.FRAME_SIZE_ERROR),
        (GREETING + frame(frames.SETTINGS, 0, 0, b"123"), frames.FRAME_SIZE_ERROR),
        (GREETING + frame(frames.RST_STREAM, 0, 1, b"1"), frames.FRAME_SIZE_ERROR),
        (GREETING + frame(frames.WINDOW_UPDATE, 0, 0, b"1"), frames.FRAME_SIZE_ERROR),
        (GREETING + frame(frames.GOAWAY, 0, 0, b"1"), frames.FRAME_SIZE_ERROR),
        (GREETING + window_frame(0, 0), frames.FLOW_CONTROL_ERROR),
        (GREETING + window_frame(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (GREETING + settings_frame({frames.INITIAL_WINDOW_SIZE: 2**31}), frames.FLOW_CONTROL_ERROR),
        (GREETING + settings_frame({frames.MAX_FRAME_SIZE: 1}), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.PUSH_PROMISE, 0, 1, b"1234"), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.CONTINUATION, 0, 1, b""), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.HEADERS, 0, 1, b"") + frame(frames.PING, 0, 0, b"12345678"), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.HEADERS, frames.END_HEADERS, 0, b""), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.HEADERS, frames.END_HEADERS, 2, b""), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), frames.COMPRESSION_ERROR),
        (GREETING + frame(frames.HEADERS, frames.END_HEADERS | frames.PADDED, 1, b"\x05a"), frames.PROTOCOL_ERROR),
        (GREETING + frame(frames.DATA, 0, 0, b"x"), frames.PROTOCOL_ERROR),
        (
            GREETING + frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"") * 1_000,
            frames.ENHANCE_YOUR_CALM,
        ),
        (
            GREETING + frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, b"x" * 66_000),
            frames.ENHANCE_YOUR_CALM,
        ),
    ],
)
async def test_who_breaks_the_protocol_is_told_so_and_left(served: Served, data: bytes, code: int) -> None:
    assert (await told(served, data))[0] == code


async def test_metadata_that_is_too_large_is_refused_with_a_status(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(GREETING + request(1, headers=(*HEADERS, ("x-large", "v" * 20_000))) + request(3, b"then"))
    async with asyncio.timeout(20):
        answer = b""
        while b"then" not in answer:
            answer += await reader.read(10_000)
    assert b"metadata is larger" in answer
    writer.close()


async def test_calls_that_are_given_up_at_once_leave_nothing_behind(served: Served) -> None:
    _, writer = await asyncio.open_connection(*served.address)
    writer.write(GREETING)
    for stream_id in range(1, 20_001, 2):
        writer.write(request(stream_id, b"wait") + reset_frame(stream_id, frames.CANCEL))
        if stream_id % 1_001 == 0:
            await writer.drain()
            await asyncio.sleep(0)
    await writer.drain()
    async with asyncio.timeout(20):
        while served.under_way:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)
    writer.close()


async def test_who_asks_and_never_reads_is_heard_no_more_until_he_does(served: Served) -> None:
    reader, writer = await asyncio.open_connection(*served.address, limit=1_000)
    wide = settings_frame({frames.INITIAL_WINDOW_SIZE: 2**31 - 1}) + window_frame(0, 2**31 - 1 - 65_535)
    writer.write(frames.PREFACE + wide)
    number = 1
    with pytest.raises(TimeoutError):
        while True:  # large answers fill what is between us, then the server stops reading
            writer.write(request(number, b"x" * 15_000))
            number += 2
            async with asyncio.timeout(1):
                await writer.drain()
    (connection,) = [one for one in served.server.connections if one.peer.endswith(f":{_port(writer)}")]
    assert connection.transport is not None
    assert connection.transport.get_write_buffer_size() < 1_000_000

    taken = 0
    async with asyncio.timeout(60):
        while taken < (number - 1) // 2:  # now he reads, and all is answered
            data = await reader.readexactly(9)
            high, low, kind, flags, _ = frames.HEAD.unpack(data)
            await reader.readexactly(high << 8 | low)
            taken += kind == frames.HEADERS and bool(flags & frames.END_STREAM)
    writer.close()


def _port(writer: asyncio.StreamWriter) -> int:
    port: int = writer.get_extra_info("sockname")[1]
    return port


async def test_what_comes_after_the_end_of_a_request_runs_nothing_twice(served: Served) -> None:
    for after in (
        frame(frames.DATA, frames.END_STREAM, 1, message_bytes(b"wait")),
        header_frames(1, b"", end_stream=True, max_frame_bytes=16_384),
    ):
        reader, writer = await asyncio.open_connection(*served.address)
        writer.write(GREETING + request(1, b"wait") + after + request(3, b"then"))
        async with asyncio.timeout(20):
            answer = b""
            while b"then" not in answer:
                answer += await reader.read(10_000)
        assert reset_frame(1, frames.STREAM_CLOSED) in answer
        writer.close()
    assert served.most <= 1


async def test_many_messages_where_one_is_wanted_are_not_kept(served: Served) -> None:
    block = HeaderWriter().write((), HEADERS)
    head = header_frames(1, block, end_stream=False, max_frame_bytes=16_384)
    two = frame(frames.DATA, 0, 1, message_bytes(b"a") * 2)  # and no end
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(GREETING + head + two)
    async with asyncio.timeout(20):
        answer = b""
        while b"several messages" not in answer:
            answer += await reader.read(10_000)
    writer.close()


async def test_a_call_that_ends_before_its_first_step_leaves_nothing_behind(served: Served) -> None:
    _, writer = await asyncio.open_connection(*served.address)
    late = (*HEADERS, ("grpc-timeout", "0m"))
    calls = [request(number, b"wait") + reset_frame(number, frames.CANCEL) for number in range(1, 100, 2)]
    calls += [request(number, b"wait", headers=late) for number in range(101, 200, 2)]
    writer.write(GREETING + b"".join(calls))
    async with asyncio.timeout(20):
        while not (  # noqa: ASYNC110 - there is no event to wait for
            found := [one for one in served.server.connections if one.peer.endswith(f":{_port(writer)}")]
        ):
            await asyncio.sleep(0.01)
        while found[0].last_stream_id() < 199 or found[0].calls or found[0].streams:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    writer.close()


async def test_requests_without_a_message_or_with_two_are_refused(served: Served) -> None:
    block = HeaderWriter().write((), HEADERS)
    none = header_frames(1, block, end_stream=True, max_frame_bytes=16_384)
    two = header_frames(3, block, end_stream=False, max_frame_bytes=16_384) + frame(
        frames.DATA, frames.END_STREAM, 3, message_bytes(b"a") * 2
    )
    reader, writer = await asyncio.open_connection(*served.address)
    writer.write(GREETING + none + two + request(5, b"then"))
    async with asyncio.timeout(20):
        answer = b""
        while b"then" not in answer:
            answer += await reader.read(10_000)
    assert b"no whole message" in answer
    assert b"several messages" in answer
    writer.close()


async def test_noise_of_every_kind_hurts_nobody_else(served: Served) -> None:
    """Good requests with bytes changed, left out or put in, in pieces of any size."""
    noise = random.Random(7)
    good = GREETING + b"".join(request(stream_id, b"m" * stream_id) for stream_id in range(1, 60, 2))
    for _ in range(300):
        data = bytearray(good)
        for _ in range(noise.randint(1, 8)):
            place = noise.randrange(len(data))
            match noise.randrange(3):
                case 0:
                    data[place] = noise.randrange(256)
                case 1:
                    del data[place : place + noise.randint(1, 20)]
                case _:
                    data[place:place] = noise.randbytes(noise.randint(1, 20))
        _, writer = await asyncio.open_connection(*served.address)
        while data:
            cut = noise.randint(1, 4_000)
            writer.write(bytes(data[:cut]))
            del data[:cut]
            await asyncio.sleep(0)
        writer.close()
