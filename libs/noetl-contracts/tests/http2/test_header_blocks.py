import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_contracts.http2.frames import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionBroken
from noetl_contracts.http2.header_blocks import HeaderReader, Headers, HeaderWriter

NAMES = st.sampled_from([":path", ":method", "authorization", "te", "x-a", "x-b", "grpc-timeout", "traceparent"])
VALUES = st.one_of(
    st.sampled_from(["", "POST", "trailers", "/noetl.event.v1.EventService/Append", "v" * 130, "v" * 3_000]),
    st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=40),
)
BLOCKS = st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=8).map(tuple), max_size=30)


def read_by_library(decoder: hpack.Decoder, block: bytes) -> Headers:
    return tuple((str(name), str(value)) for name, value in decoder.decode(block))


@given(BLOCKS, st.integers(0, 8))
def test_what_we_write_is_read_by_the_library_and_by_ourselves(blocks: list[Headers], recurring: int) -> None:
    writer, library, reader = HeaderWriter(), hpack.Decoder(), HeaderReader()
    for headers in blocks:
        block = writer.write(headers[:recurring], headers[recurring:])
        assert read_by_library(library, block) == headers
        assert reader.read(block) == headers


@given(BLOCKS, st.booleans())
def test_what_the_library_writes_we_read(blocks: list[Headers], huffman: bool) -> None:
    library, reader = hpack.Encoder(), HeaderReader()
    for headers in blocks:
        assert reader.read(library.encode(headers, huffman=huffman)) == headers


@given(BLOCKS, st.lists(st.integers(0, 4_096), max_size=30))
def test_a_table_that_changes_its_size_is_followed(blocks: list[Headers], sizes: list[int]) -> None:
    library, reader = hpack.Encoder(), HeaderReader()
    for headers, size in zip(blocks, sizes, strict=False):
        library.header_table_size = size
        assert reader.read(library.encode(headers)) == headers


@given(BLOCKS, st.integers(0, 4_095), st.integers(0, 10))
def test_who_keeps_less_is_written_to_without_a_table(blocks: list[Headers], size: int, after: int) -> None:
    writer, library = HeaderWriter(), hpack.Decoder()
    for place, headers in enumerate(blocks):
        if place == after:
            writer.limit_table(size)
            library.max_allowed_table_size = size
        assert read_by_library(library, writer.write(headers)) == headers


def test_a_block_that_was_written_once_means_the_same_for_as_long_as_its_generation() -> None:
    writer, reader = HeaderWriter(), HeaderReader()
    first = ((":path", "/a"), ("authorization", "Bearer t"))
    reader.read(writer.write(first))
    generation, again = writer.generation, writer.write(first)
    assert writer.generation == generation
    assert len(again) == 2  # both are in the table
    for number in range(3):
        assert reader.read(again) == first
        reader.read(writer.write((("x-once", str(number)),), (("x-other", "1"),)))
        assert writer.generation != generation  # so nobody would write the old block now
        generation, again = writer.generation, writer.write(first)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_block_are_refused_and_nothing_else_happens(block: bytes) -> None:
    reader = HeaderReader()
    try:
        headers = reader.read(block)
    except ConnectionBroken as exc:
        assert exc.code in (COMPRESSION_ERROR, ENHANCE_YOUR_CALM)
    else:
        assert isinstance(headers, tuple)


def test_a_small_block_does_not_become_a_large_list() -> None:
    reader = HeaderReader()
    reader.read(HeaderWriter().write((("x", "v" * 3_000),)))

    with pytest.raises(ConnectionBroken, match="headers in a block"):
        reader.read(b"\xbe" * 10_000)
