"""How payloads look at their beginning, and how they are named on the line."""

import io
import json
import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import click
import pyarrow as pa
import pytest
from noetl_cli.commands.arguments import LOCATOR
from noetl_cli.commands.payload import _appearing_whole
from noetl_cli.commands.payload_gc import SpanType, _document, _lines
from noetl_cli.shown.payload_head import ARROW, head_lines
from noetl_core.collection.report import CollectionReport

JSON = "application/json"
UNKNOWN = "application/octet-stream"


def arrow(rows: list[dict[str, object]]) -> bytes:
    sink = io.BytesIO()
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


ROWS: list[dict[str, object]] = [
    {"id": 1, "name": "Ada", "at": datetime(2026, 1, 2, tzinfo=UTC), "sum": Decimal("1.50")},
    {"id": 2, "name": None, "at": None, "sum": None},
    {"id": 3, "name": "B\x1b[31mob", "at": None, "sum": None},
]


@pytest.mark.parametrize("media_type", [ARROW, UNKNOWN])
def test_arrow_is_shown_as_a_table(media_type: str) -> None:
    lines = list(head_lines(media_type, arrow(ROWS), is_whole=True, rows=10))

    assert lines[0] == "id: int64, name: string, at: timestamp[us, tz=UTC], sum: decimal128(3, 2)"
    assert lines[1].split() == ["id", "name", "at", "sum"]
    assert lines[2].startswith("1   Ada")
    assert "1.50" in lines[2]
    assert "\\x1b" in lines[4]
    assert len(lines) == 5


def test_the_beginning_of_an_arrow_stream_is_shown_as_far_as_it_goes() -> None:
    data = arrow([{"n": n, "text": "x" * 1000} for n in range(100)])

    lines = list(head_lines(ARROW, data[: len(data) // 2], is_whole=False, rows=4))

    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "2", "3"]


@pytest.mark.parametrize("wrap", [lambda rows: rows, lambda rows: {"rows": rows, "row_count": len(rows)}])
def test_rows_of_json_are_a_table(wrap: type) -> None:
    rows = [{"n": n, "tags": ["a", n]} for n in range(12)]

    lines = list(head_lines(JSON, json.dumps(wrap(rows)).encode(), is_whole=True, rows=3))

    assert lines == ["n  tags", '0  ["a", 0]', '1  ["a", 1]', '2  ["a", 2]', "… 9 more rows"]


def test_other_json_is_indented_and_half_of_it_is_text() -> None:
    assert list(head_lines(JSON, b'{"a":[1]}', is_whole=True, rows=2)) == ["{", '  "a": [']
    assert list(head_lines(JSON, b'{"a":[1', is_whole=False, rows=2)) == ['{"a":[1']
    assert list(head_lines(UNKNOWN, b"one\ntwo\xff\nthree", is_whole=True, rows=2)) == ["one", "two\ufffd"]


URI = "noetl://tenant/acme/org/ops/payloads/sha256/" + "0" * 64


@pytest.mark.parametrize(
    "written",
    [
        URI,
        json.dumps({"uri": URI, "ref_id": "noetl://execution/7/result/a/0"}),
        json.dumps({"status": "ok", "reference": {"uri": URI}}),
        json.dumps({"_ref": {"uri": URI}, "row_count": 5}),
    ],
)
def test_a_payload_is_named_by_an_address_or_a_reference(written: str) -> None:
    assert LOCATOR.convert(written, None, None) == URI


@pytest.mark.parametrize("written", ["", "0" * 64, "{}", "[1]", '{"reference": null}', "{"])
def test_what_is_no_reference_is_refused(written: str) -> None:
    with pytest.raises(click.BadParameter):
        LOCATOR.convert(written, None, None)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    with pytest.raises(RuntimeError), _appearing_whole(file) as sink:
        sink.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []

    with _appearing_whole(file) as sink:
        sink.write(b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("1.5h", 5_400.0), ("2m", 120.0), ("7d", 604_800.0), ("3s", 3.0)]
)
def test_spans_of_time_are_written_with_their_unit(text: str, seconds: float) -> None:
    assert SpanType().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "a day", "1w", "-1h", "1h30m", "nan", "1e9"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="span of time"):
        SpanType().convert(text, None, None)


def test_a_collection_says_what_it_did_and_a_dry_run_what_it_would_do() -> None:
    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)
    report = CollectionReport(
        applied=False, grace_seconds=86_400.0, phase="done", marked=3, marked_bytes=30, waiting=1, next_due=noon
    )

    lines = "\n".join(_lines(report))

    assert "would be marked:     3, 30 bytes; grace 24 h 00 min" in lines
    assert "next step from 2026-01-02 12:00:00.000Z" in lines
    assert "--apply" in lines
    report.applied, report.collections = True, (271_828,)
    lines = "\n".join(_lines(report))
    assert "would" not in lines
    assert "noetl events 271828" in lines
    assert _document(report)["collections"] == ["271828"]
    assert _document(report)["next_due"] == "2026-01-02T12:00:00.000000Z"


def test_what_is_no_file_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    with _appearing_whole(pipe) as sink:
        sink.write(b"bytes")

    assert pipe.is_fifo()
    assert os.read(reader, 10) == b"bytes"
    os.close(reader)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)

    with _appearing_whole(link) as sink:
        sink.write(b"new")

    assert link.is_symlink()
    assert target.read_bytes() == b"new"


def test_a_place_that_cannot_be_is_told_plainly(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for impossible in (tmp_path / "file" / "below", tmp_path / "missing" / "below", tmp_path / ("x" * 300)):
        with pytest.raises(click.FileError), _appearing_whole(impossible) as sink:
            sink.write(b"bytes")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff no table", arrow([{"a": 1}])[:20], b"\xff\xff\xff\xff"])
@pytest.mark.parametrize("media_type", [ARROW, UNKNOWN])
def test_what_only_looks_like_a_table_is_shown_as_text(media_type: str, data: bytes) -> None:
    lines = list(head_lines(media_type, data, is_whole=True, rows=3))

    assert 1 <= len(lines) <= 3
    assert "\x00" not in "".join(lines)


def test_values_that_python_cannot_hold_and_texts_that_are_too_deep_end_nothing() -> None:
    sink = io.BytesIO()
    table = pa.table({"n": pa.array([1, 2]), "at": pa.array([1, 2**62], pa.timestamp("s"))})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)

    assert list(head_lines(ARROW, sink.getvalue(), is_whole=True, rows=3)) == ["n: int64, at: timestamp[s]"]
    assert len(list(head_lines(JSON, b"[" * 200_000, is_whole=True, rows=3))) == 1
