"""The golden corpus: stored histories give the checksums that were written beside them, in any order of delivery."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from noetl_core.canonical import decode, encode
from noetl_core.envelope import StoredEvent
from noetl_core.events import known_types
from noetl_core.executions.state import ExecutionStatus
from noetl_core.replay.event_lines import read_event_line
from noetl_core.replay.golden import expectation
from noetl_core.replay.history import Replay
from noetl_core.surfaces.shapes import SHAPES, Surface, check_row
from noetl_testkit.golden_runs import RUNS
from noetl_testkit.histories import choices, shuffled_delivery

CORPUS = Path(__file__).parent / "golden"
HISTORIES = sorted(one.name for one in CORPUS.iterdir() if one.is_dir())
ON_PURPOSE = "on purpose? grow FORMAT in surfaces/shapes.py and run python -m scripts.golden_histories expect"


def events_of(name: str) -> list[StoredEvent]:
    return [read_event_line(line) for line in (CORPUS / name / "events.jsonl").read_bytes().splitlines()]


def expected_of(name: str) -> Any:
    return decode((CORPUS / name / "expected.json").read_bytes().rstrip(b"\n"))


def rows_of(name: str, surface: Surface) -> list[Any]:
    lines = [decode(line) for line in (CORPUS / name / "rows.jsonl").read_bytes().splitlines()]
    return [one["row"] for one in lines if isinstance(one, dict) and one["surface"] == surface]


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_gives_what_is_written_beside_it(name: str) -> None:
    expected, rows = expectation(events_of(name))

    stored_rows = [decode(line) for line in (CORPUS / name / "rows.jsonl").read_bytes().splitlines()]
    assert rows == stored_rows, ON_PURPOSE
    assert expected == expected_of(name), ON_PURPOSE


@pytest.mark.parametrize("name", HISTORIES)
def test_and_gives_it_however_it_is_delivered(name: str) -> None:
    events = events_of(name)
    replay = Replay(events[0].envelope().execution_id)

    replay.take(shuffled_delivery(choices(len(name)), events, loss=0.2, doubling=0.5))
    replay.take(events)

    assert replay.result().checksums() == expected_of(name)["positions"][-1]


@pytest.mark.parametrize("name", HISTORIES)
def test_checksums_follow_from_the_rows_without_any_code_of_ours(name: str) -> None:
    lines = [json.loads(line) for line in (CORPUS / name / "rows.jsonl").read_text().splitlines()]
    surfaces = {}
    for surface in Surface:
        rows = [one["row"] for one in lines if one["surface"] == surface]
        rows.sort(key=lambda row: "/".join(row[part] for part in SHAPES[surface].identity).encode())
        for row in rows:
            check_row(surface, row)
        surfaces[str(surface)] = hashlib.sha256(b"".join(encode(row) + b"\n" for row in rows)).hexdigest()
    spelt = json.dumps(surfaces, sort_keys=True, separators=(",", ":")).encode()

    at_the_end = expected_of(name)["positions"][-1]
    assert surfaces == at_the_end["surfaces"]
    assert hashlib.sha256(spelt).hexdigest() == at_the_end["checksum"]


def test_the_corpus_has_rows_of_every_surface() -> None:
    ends = [expected_of(name)["positions"][-1]["rows"] for name in HISTORIES]

    assert all(any(rows[surface] for rows in ends) for surface in Surface)


def test_the_corpus_has_every_type_of_event() -> None:
    told = {event.envelope().event_type for name in HISTORIES for event in events_of(name)}

    assert set(known_types()) - told == set(), "add a history: python -m scripts.golden_histories"


def test_the_corpus_has_every_end_of_an_execution() -> None:
    ends = {row["status"] for name in HISTORIES for row in rows_of(name, Surface.EXECUTION)}

    assert ends == {status.value for status in ExecutionStatus}


def test_the_corpus_has_objects_that_are_gone_and_objects_that_were_made_from_others() -> None:
    objects = {
        f"{row['object_type']}/{row['object_id']}": row
        for row in rows_of("objects_derived_and_deleted", Surface.BUSINESS_OBJECTS)
    }

    assert objects["order/7"]["status"] == "deleted"
    assert [one["type"] for one in objects["invoice/7/1"]["derived_from"]] == ["order", "cart"]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_today_ends_as_its_history_does_and_has_what_it_is_there_for(name: str) -> None:
    run = RUNS[name]

    for events in (events_of(name), run.make()):
        replay = Replay(events[0].envelope().execution_id)
        replay.take(events)
        assert replay.result().state.execution.status is run.status
        assert {event.envelope().event_type for event in events} >= set(run.types)
