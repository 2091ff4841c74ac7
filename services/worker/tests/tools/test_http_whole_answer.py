"""What is read of an answer without the client's parser is what that would have read."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp.client_proto import ResponseHandler
from hypothesis import example, given
from hypothesis import strategies as st
from noetl_worker.tools.http_address import HttpAddress
from noetl_worker.tools.http_connections import AnsweredConnection
from noetl_worker.tools.http_exchange import Answered
from noetl_worker.tools.http_transport import ArrivingResponse
from noetl_worker.tools.http_whole_answer import AnswerHead, WholeAnswer, answer_head

USUAL = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
_SPACES = st.sampled_from([b"", b" ", b"\t", b"  "])
_NAMES = st.sampled_from(
    [
        *(b"Content-Length", b"content-length", b"Content-Type", b"Connection", b"Transfer-Encoding", b"X-Odd"),
        *(b"Content-Encoding", b"Upgrade", b"Keep-Alive", b"Set-Cookie", b"Date", b"x y", b"", b"X-\xc3\xa9"),
    ]
)
_VALUES = st.sampled_from(
    [
        *(b"0", b"2", b"02", b"+2", b"2, 2", b"-1", b"0x2", b"keep-alive", b"Keep-Alive", b"close", b"chunked"),
        *(b"gzip", b"identity", b"text/plain; charset=latin-1", b"application/json", b"a=b; c=d", b"", b"a\x00b"),
        *(b"h\xc3\xa9", b"a\rb", b"a\nb", b"websocket", b"timeout=5"),
    ]
)
_LINES = st.tuples(_NAMES, st.sampled_from([b":", b": ", b" :", b""]), _VALUES, _SPACES).map(b"".join)
_FIRST_LINES = st.tuples(
    st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"http/1.1", b"HTTP/1.1\t"]),
    st.sampled_from([b" ", b"  "]),
    st.sampled_from([b"200", b"201", b"204", b"304", b"404", b"500", b"100", b"101", b"99", b"2000"]),
    st.sampled_from([b" OK", b" Not Found", b" ", b"", b" \xe9", b" a\tb", b" OK "]),
).map(b"".join)
_ANSWERS = st.tuples(
    _FIRST_LINES,
    st.lists(st.one_of(_LINES, st.sampled_from([b" folded", b"Content-Length: 2", b"Content-Type: text/plain"]))),
    st.sampled_from([b"{}", b"", b"{", b"{}more", b"{}HTTP/1.1 200 OK\r\n\r\n"]),
).map(lambda made: b"\r\n".join([made[0], *made[1], b"", made[2]]))


def asked(connection: ResponseHandler) -> None:
    transport = Mock(spec=asyncio.Transport)
    transport.is_closing.return_value = False
    transport.get_extra_info.return_value = None
    connection.connection_made(transport)


async def read_by_client(said: bytes) -> tuple[int, str, dict[str, str], str, bytes]:
    """As the client reads it, if that is all there is to read, and its connection can be used again."""
    connection = ResponseHandler(asyncio.get_running_loop())
    asked(connection)
    connection.set_response_params(read_until_eof=True, max_line_size=100_000, max_field_size=100_000, max_headers=1000)
    connection.data_received(said)
    message, content = await connection.read()
    assert content.is_eof() and not connection.should_close
    answered = Answered(message.code, message.reason, message.headers, message.raw_headers, content, lambda: None)
    response = ArrivingResponse(answered, HttpAddress.parse("http://example.org/"))
    return (
        *(response.status_code, response.reason, response.headers(), response.encoding),
        (await response.whole(1_000_000))[0],
    )


async def read_at_once(said: bytes) -> WholeAnswer | None:
    connection = AnsweredConnection(asyncio.get_running_loop())
    asked(connection)
    asking = connection.ask(b"", has_body=True)
    connection.data_received(said)
    return await asking


@given(said=_ANSWERS)
@example(said=USUAL)
@example(said=USUAL.replace(b"OK", b""))
@example(said=USUAL.replace(b"json", b"json; charset=utf-16"))
def test_what_is_read_at_once_is_what_the_client_would_have_read(said: bytes) -> None:
    async def compare() -> None:
        whole = await read_at_once(said)
        if whole is not None:
            head = whole.head
            read = (head.status_code, head.reason, head.headers, head.encoding, whole.content)
            assert read == await read_by_client(said)

    asyncio.run(compare())


def test_what_is_usual() -> None:
    assert answer_head(USUAL.partition(b"\r\n\r\n")[0]) == AnswerHead(
        status_code=200,
        reason="OK",
        headers={"content-type": "application/json", "content-length": "2"},
        encoding="utf-8",
        length=2,
    )


@pytest.mark.parametrize(
    "said",
    [
        USUAL[:-1],
        USUAL + b" ",
        USUAL + USUAL,
        USUAL[: USUAL.index(b"\r\n\r\n")],
        USUAL.replace(b"HTTP/1.1", b"HTTP/1.0"),
        USUAL.replace(b"200 OK", b"204 No Content"),
        USUAL.replace(b"200 OK", b"304 Not Modified"),
        USUAL.replace(b"200 OK", b"100 Continue"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nContent-Length: 2"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nTransfer-Encoding: chunked"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nContent-Encoding: gzip"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nConnection: close"),
        USUAL.replace(b"Length: 2", b"Length: +2"),
        USUAL.replace(b"Length: 2", b"Length : 2"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\n more"),
        USUAL.replace(b"Length: 2", b"Length: 2\nX: y"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nX: \xff"),
        USUAL.replace(b"Length: 2", b"Length: 2\r\nX: " + b"y" * 9000),
        USUAL.replace(b"Content-Length: 2", b"X: y"),
    ],
)
async def test_everything_else_is_for_the_client(said: bytes) -> None:
    connection = AnsweredConnection(asyncio.get_running_loop())
    asked(connection)
    asking = connection.ask(b"", has_body=True)
    connection.data_received(said)

    assert await asking is None


async def test_the_same_head_with_another_body_is_read_again_as_far_as_it_differs() -> None:
    connection = AnsweredConnection(asyncio.get_running_loop())
    asked(connection)
    contents = []
    for said in (USUAL, USUAL.replace(b"{}", b"[]"), USUAL.replace(b"Length: 2\r\n\r\n{}", b"Length: 3\r\n\r\n[1]")):
        asking = connection.ask(b"", has_body=True)
        connection.data_received(said)
        whole = await asking
        contents.append(whole and whole.content)

    assert contents == [b"{}", b"[]", b"[1]"]


@pytest.mark.parametrize(
    "kind", [b"text/html; charset*", b"a/b; charset*=\"''", b"text/plain; x*", b'a@b(; charset*\t="x']
)
async def test_a_type_that_cannot_be_made_sense_of_is_of_no_account(kind: bytes) -> None:
    whole = await asyncio.wait_for(read_at_once(USUAL.replace(b"application/json", kind)), 30)

    assert whole is not None
    assert (whole.head.encoding, whole.content) == ("utf-8", b"{}")


async def test_what_comes_before_it_was_asked_for_is_for_the_client() -> None:
    """A server without time for requests may say so at once, and the loop may have read it before anybody asks."""
    connection = AnsweredConnection(asyncio.get_running_loop())
    asked(connection)
    connection.data_received(USUAL.replace(b"200 OK", b"503 Full"))

    assert await asyncio.wait_for(connection.ask(b"", has_body=True), 30) is None
    message, _ = await asyncio.wait_for(connection.read(), 30)
    assert (message.code, message.reason) == (503, "Full")
