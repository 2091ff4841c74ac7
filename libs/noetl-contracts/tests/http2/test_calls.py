import gzip
import math
import zlib

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_contracts.http2.calls import (
    MessageReader,
    MessageRefused,
    ending,
    message_bytes,
    message_text,
    metadata_headers,
    metadata_of,
    refusal,
    timeout_seconds,
    timeout_text,
)


@given(st.lists(st.binary(max_size=50), max_size=8), st.lists(st.integers(1, 40), max_size=60))
def test_messages_come_whole_however_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    reader, data, read = MessageReader(max_bytes=50), b"".join(map(message_bytes, messages)), []
    for cut in cuts:
        read += reader.read(data[:cut]) if data[:cut] else []
        data = data[cut:]
    read += reader.read(data) if data else []

    assert read == messages
    assert reader.is_between_messages


def test_a_message_that_is_too_large_is_refused_as_soon_as_its_size_is_known() -> None:
    for data in (message_bytes(b"x" * 11), message_bytes(b"x" * 11)[:5]):
        with pytest.raises(MessageRefused, match="larger than max") as refused:
            MessageReader(max_bytes=10).read(data)
        assert refused.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_messages_are_read_as_far_as_they_may_grow(encoding: str, compress: object) -> None:
    assert callable(compress)

    def framed(data: bytes) -> bytes:
        return b"\x01" + message_bytes(data)[1:]

    reader = MessageReader(max_bytes=1_000, encoding=encoding)
    assert reader.read(framed(compress(b"a" * 1_000))) == [b"a" * 1_000]
    with pytest.raises(MessageRefused, match="larger than max"):
        reader.read(framed(compress(b"a" * 1_001)))
    for broken in (b"nonsense", compress(b"abc")[:-3]):
        with pytest.raises(MessageRefused):
            MessageReader(max_bytes=1_000, encoding=encoding).read(framed(broken))
    with pytest.raises(MessageRefused, match="not read"):
        MessageReader(max_bytes=1_000).read(framed(b"x"))


@given(st.floats(0, 1e9))
def test_a_deadline_travels_without_getting_shorter_or_much_longer(seconds: float) -> None:
    text = timeout_text(seconds)
    read = timeout_seconds(text)

    assert len(text) <= 9
    assert read is not None
    assert min(seconds, 99_999_999) <= read or math.isclose(read, seconds)
    assert read <= seconds + 1.0


@pytest.mark.parametrize("text", ["", "5", "S", "123456789S", "-1S", "1.5S", "1x"])
def test_a_deadline_that_is_none_is_none(text: str) -> None:
    assert timeout_seconds(text) is None


def test_metadata_comes_back_as_it_was() -> None:
    metadata = (("authorization", "Bearer x"), ("details-bin", b"\x00\xff,\x10"), ("x-bin", b""))

    headers = metadata_headers(metadata)

    assert all(isinstance(value, str) and value.isascii() for _, value in headers)
    assert metadata_of(((":path", "/a"), ("te", "trailers"), ("grpc-status", "0"), *headers)) == metadata


@pytest.mark.parametrize("pair", [("Upper", "x"), ("", "x"), ("x y", "v"), ("x", "line\nbreak"), ("x", "ä")])
def test_metadata_that_headers_cannot_carry_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        metadata_headers((pair,))


@given(st.text())
def test_a_status_message_comes_back_as_it_was(text: str) -> None:
    sent = message_text(text)

    assert sent.isascii()
    assert sent.isprintable()
    told = ending((("grpc-status", "5"), ("grpc-message", sent)))
    assert told == (grpc.StatusCode.NOT_FOUND, text.encode("utf-8", "replace").decode())


def test_an_answer_that_is_no_grpc_is_told_by_its_status() -> None:
    assert refusal(((":status", "200"), ("content-type", "application/grpc+proto"))) is None
    told = refusal(((":status", "503"), ("content-type", "text/html")))
    assert told is not None
    assert told[0] is grpc.StatusCode.UNAVAILABLE
