from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_core.canonical import encode, sha256_hex
from noetl_core.envelope import Draft
from noetl_core.evidence.bundle import artifact, check_index, index_document
from noetl_core.evidence.chain import Head
from noetl_core.evidence.documents import (
    SCHEMA,
    live_checksums_document,
    live_rows_document,
    payload_summary,
    replay_document,
)
from noetl_core.evidence.gates import GATES, Evidence, PayloadFile, judge
from noetl_core.execution_view import late_after
from noetl_core.ports.live_rows import ExecutionColumns
from noetl_core.replay.history import Replay
from noetl_core.sharding import MAX_SHARD_COUNT, shard_of
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.histories import EXECUTION, choices
from noetl_testkit.telling_histories import telling_history

SHARDS = 64


def evidence(seed: int = 1, *, note: Draft | None = None) -> Evidence:
    """Of an execution whose rows are what its log gives."""
    history = telling_history(choices(seed))
    events = (history if note is None else history.add(note)).stored
    replay = Replay(EXECUTION)
    replay.take(events)
    replayed = replay.result()
    payloads: list[Any] = [
        {
            "sha256": use.sha256,
            "uri": uri,
            "media_type": use.media_type,
            "uses": use.uses,
            "status": "present",
            "stored_bytes": use.bytes,
            "included": False,
        }
        for uri, use in replayed.payloads.by_address().items()
    ]
    rows = live_rows_document(
        replayed.rows,
        tenant_id="default",
        organization_id="default",
        execution_id=EXECUTION,
        version=len(events),
        upcasters=replayed.upcasters,
        columns=ExecutionColumns(shard=shard_of(EXECUTION, SHARDS), next_deadline=late_after(replayed.state)),
        shard_count=SHARDS,
        exported_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return Evidence(
        execution_id=EXECUTION,
        head=Head(version=len(events), checksum=events[-1].checksum),
        events=events,
        replay=replay_document(replayed, payloads),
        live_rows=rows,
        live_checksums=live_checksums_document(rows),
        max_payload_bytes=1,
        projector={"quarantined_count": 0, "quarantined": []},
        asks_projector=True,
    )


def found(judged: Evidence) -> dict[str, list[str]]:
    """Codes by gate, of the gates that found something."""
    by_gate = {gate: [one.code for one in judge(gate, judged)] for gate in GATES}
    return {gate: codes for gate, codes in by_gate.items() if codes}


@pytest.mark.parametrize("seed", range(6))
def test_what_nobody_touched_passes_every_gate(seed: int) -> None:
    judged = evidence(seed)

    assert found(judged) == {}
    assert judged.verdict().is_proved
    assert judged.verdict().rows["business_objects"] > 0


def test_live_rows_that_say_something_else_are_named_by_surface_row_and_field() -> None:
    judged = evidence()
    document: Any = copy.deepcopy(judged.live_rows)
    document["rows"]["commands"][0]["attempt"] = 7
    document["rows_checksum"] = sha256_hex(encode(document["rows"]))
    judged.live_rows, judged.live_checksums = document, live_checksums_document(document)

    assert found(judged) == {"projection_parity": ["parity.differs", "parity.row_changed"]}
    differs, row = judge("projection_parity", judged)
    assert differs.surface == row.surface == "commands"
    assert "attempt is 7 and should be 1" in row.message


def with_live(judged: Evidence, **fields: Any) -> Evidence:
    """The same with other live rows, whose checksums are right."""
    document: Any = {**copy.deepcopy(judged.live_rows or {}), **fields}
    document["rows_checksum"] = sha256_hex(encode(document["rows"]))
    judged.live_rows, judged.live_checksums = document, live_checksums_document(document)
    return judged


@pytest.mark.parametrize("registry", ["0" * 64, ""])
def test_rows_that_are_equal_are_proved_whatever_registry_they_were_folded_with(registry: str) -> None:
    judged = with_live(evidence(), upcasters=registry)

    assert found(judged) == {}
    assert judged.verdict().is_proved
    assert judged.verdict().is_of_another_registry
    assert judged.verdict().to_json()["upcasters"] == {
        "replayed": UPCASTERS.digest,
        "live": registry or None,
        "equal": False,
    }


@pytest.mark.parametrize(("registry", "named"), [("0" * 64, "0" * 64), ("", "nobody knows")])
def test_rows_that_differ_are_said_to_be_of_another_registry_before_they_are_listed(registry: str, named: str) -> None:
    judged = evidence()
    rows: Any = copy.deepcopy((judged.live_rows or {})["rows"])
    rows["commands"][0]["attempt"] = 7

    findings = judge("projection_parity", with_live(judged, rows=rows, upcasters=registry))

    assert [one.code for one in findings] == ["parity.other_registry", "parity.differs", "parity.row_changed"]
    assert named in findings[0].message
    assert UPCASTERS.digest in findings[0].message


@pytest.mark.parametrize(
    ("column", "value"), [("shard", 64), ("shard_count", 1), ("next_deadline", "2031-01-01T00:00:00.000000Z")]
)
def test_a_column_beside_the_rows_that_says_something_else_is_named(column: str, value: Any) -> None:
    judged = evidence()
    columns: Any = copy.deepcopy((judged.live_rows or {})["columns"])
    columns[column] = value

    assert found(with_live(judged, columns=columns)) == {"projection_parity": ["parity.column_differs"]}


def test_columns_that_nobody_told_are_not_compared() -> None:
    assert found(with_live(evidence(), columns=None)) == {}


def test_a_state_of_another_registry_names_both() -> None:
    judged = evidence()
    judged.replay = {**(judged.replay or {}), "upcasters": "0" * 64}

    (finding,) = judge("state_integrity", judged)

    assert finding.code == "replay.other_registry"
    assert "0" * 64 in finding.message
    assert UPCASTERS.digest in finding.message


def test_evidence_of_the_first_version_is_judged_by_what_it_says() -> None:
    judged = evidence()
    replay: Any = {**(judged.replay or {}), "schema_version": 1}
    live: Any = {**(judged.live_rows or {}), "schema_version": 1}
    del live["upcasters"], live["columns"]
    judged.schema, judged.replay, judged.live_rows = 1, replay, live
    judged.live_checksums = live_checksums_document(live)

    assert found(judged) == {}
    assert "upcasters" not in judged.live_checksums
    assert found(with_live(judged, upcasters="0" * 64))["live_rows_integrity"] == ["live_rows"]


def test_live_rows_at_another_version_are_not_compared_but_told() -> None:
    behind, ahead = evidence(), evidence()
    scopes: list[Any] = [behind.live_rows, ahead.live_rows]
    scopes[0]["scope"]["stream_version"] -= 1
    scopes[1]["scope"]["stream_version"] += 1

    assert found(behind)["projection_parity"] == ["projection.behind"]
    assert found(ahead)["projection_parity"] == ["projection.ahead"]


@pytest.mark.parametrize(
    ("place", "value", "gate"),
    [
        (("replay", "stream_version"), "21", "state_integrity"),
        (("replay", "stream_version"), True, "state_integrity"),
        (("replay", "event_checksum"), "A" * 64, "state_integrity"),
        (("replay", "more"), 1, "state_integrity"),
        (("replay", "projection_checksums", "more"), "0" * 64, "state_integrity"),
        (("replay", "checksum"), "0" * 64, "state_integrity"),
        (("replay", "rows", "commands"), [], "state_integrity"),
        (("live_rows", "schema_version"), 1, "live_rows_integrity"),
        (("live_rows", "schema_version"), SCHEMA + 1, "live_rows_integrity"),
        (("live_rows", "upcasters"), "of yesterday", "live_rows_integrity"),
        (("live_rows", "upcasters"), None, "live_rows_integrity"),
        (("live_rows", "columns"), {}, "live_rows_integrity"),
        (("live_rows", "columns", "shard"), "1", "live_rows_integrity"),
        (("live_rows", "columns", "shard_count"), MAX_SHARD_COUNT + 1, "live_rows_integrity"),
        (("live_rows", "columns", "next_deadline"), "tomorrow", "live_rows_integrity"),
        (("live_checksums", "upcasters"), "0" * 64, "live_checksums"),
        (("replay", "upcasters"), "0" * 64, "state_integrity"),
        (("live_rows", "exported_at"), "yesterday", "live_rows_integrity"),
        (("live_rows", "row_counts", "loops"), 99, "live_rows_integrity"),
        (("live_rows", "rows", "commands", 0), ["no object"], "live_rows_integrity"),
        (("live_rows", "rows", "commands", 0, "more"), 1, "live_rows_integrity"),
        (("live_rows", "scope", "execution_id"), "7", "live_rows_integrity"),
        (("live_rows", "scope", "tenant_id"), "acme", "live_rows_integrity"),
        (("live_rows", "scope", "organization_id"), "acme", "live_rows_integrity"),
        (("live_rows", "adapter"), "somebody's own", "live_rows_integrity"),
        (("live_checksums", "checksum"), "0" * 64, "live_checksums"),
        (("replay", "payload_summary", "total"), 99, "payload_resolution"),
        (("replay", "payloads", 0, "included"), True, "payload_resolution"),
        (("replay", "payloads", 0, "stored_bytes"), 1, "payload_resolution"),
        (("replay", "payloads", 0, "stored_bytes"), 9_000_000, "payload_resolution"),
        (("replay", "payloads", 0, "media_type"), "text/html", "payload_resolution"),
        (("replay", "payloads", 0, "uses"), 99, "payload_resolution"),
        (
            ("replay", "payloads", 0, "uri"),
            f"noetl://tenant/default/org/x/payloads/sha256/{'0' * 64}",
            "payload_resolution",
        ),
        (("replay", "payloads", 0, "uri"), "noetl://tenant/other/org/x/payloads/sha256/7", "locator"),
        (("projector", "quarantined"), [{"execution_id": str(EXECUTION)}], "projector_summary"),
        (("projector", "quarantined"), None, "projector_summary"),
        (("projector",), None, "projector_summary"),
        (("asks_projector",), False, "projector_summary"),
        (("projector", "quarantined_count"), None, "projector_summary"),
        (("projector", "quarantined_count"), True, "projector_summary"),
    ],
)
def test_a_document_that_is_not_exactly_so_is_refused(place: tuple[Any, ...], value: Any, gate: str) -> None:
    judged = evidence()
    documents: Any = {place[0]: copy.deepcopy(getattr(judged, place[0]))}
    inner = documents
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    setattr(judged, place[0], documents[place[0]])

    assert gate in found(judged)


@pytest.mark.parametrize(("count", "codes"), [(100, []), (101, ["projector.quarantined"])])
def test_a_summary_that_does_not_name_all_that_were_given_up_proves_of_nobody_that_it_was_not(
    count: int, codes: list[str]
) -> None:
    judged = evidence()
    others: list[Any] = [{"execution_id": str(EXECUTION + place)} for place in range(1, 101)]
    judged.projector = {"quarantined_count": count, "quarantined": others}

    assert [one.code for one in judge("projector_summary", judged)] == codes


@pytest.mark.parametrize("status", ["missing", "corrupt"])
def test_payloads_that_are_not_there_or_are_others_fail(status: str) -> None:
    judged = evidence()
    document: Any = copy.deepcopy(judged.replay)
    document["payloads"][0]["status"] = status
    document["payload_summary"] = payload_summary(document["payloads"])
    judged.replay = document

    assert found(judged) == {"payload_resolution": [f"payload.{status}"]}


def test_a_payload_that_nobody_mentions_is_missed() -> None:
    judged = evidence()
    document: Any = copy.deepcopy(judged.replay)
    del document["payloads"][0]
    document["payload_summary"] = payload_summary(document["payloads"])
    judged.replay = document

    assert found(judged)["payload_resolution"] == ["payload.unlisted"]


@pytest.mark.parametrize("status", ["corrupt", "present"])
def test_of_a_payload_one_thing_is_said(status: str) -> None:
    judged = evidence()
    document: Any = copy.deepcopy(judged.replay)
    document["payloads"].insert(0, {**document["payloads"][0], "status": status})
    document["payload_summary"] = payload_summary(document["payloads"])
    judged.replay = document

    assert found(judged)["payload_resolution"][0] == "payload.order"


def with_bytes(came: PayloadFile | None = None, **said: Any) -> Evidence:
    """Evidence with all payloads; of the first one something else may be said, or come."""
    judged = evidence()
    document: Any = copy.deepcopy(judged.replay)
    listed = document["payloads"]
    judged.payload_files = {one["sha256"]: PayloadFile(one["sha256"], one["stored_bytes"]) for one in listed}
    judged.max_payload_bytes = max(one["stored_bytes"] for one in listed)
    for one in listed:
        one.update(status="verified", included=True)
    listed[0].update(said)
    if came is not None:
        judged.payload_files = {**judged.payload_files, listed[0]["sha256"]: came}
    document["payload_summary"] = payload_summary(listed)
    judged.replay = document
    return judged


def test_bytes_that_are_not_too_many_come_along_and_are_what_is_said_of_them() -> None:
    assert found(with_bytes()) == {}

    gone, too_many = with_bytes(), with_bytes()
    gone.payload_files = dict(list(gone.payload_files.items())[1:])
    too_many.max_payload_bytes -= 1
    for judged, codes in (
        (gone, {"payload.corrupt"}),
        (too_many, {"payload.included"}),
        (with_bytes(PayloadFile("0" * 64, 2)), {"payload.corrupt"}),
        (with_bytes(status="present"), {"payload.differs"}),
        (with_bytes(stored_bytes=1), {"payload.differs"}),
        (with_bytes(included=False), {"payload.included", "payload.foreign"}),
    ):
        assert {gate: set(told) for gate, told in found(judged).items()} == {"payload_resolution": codes}


def test_the_first_version_did_not_compare_the_size_of_a_payload_with_what_events_say_of_it() -> None:
    judged = evidence()
    replay: Any = copy.deepcopy(judged.replay)
    replay["payloads"][0]["stored_bytes"] += 1
    judged.replay = replay
    assert found(judged) == {"payload_resolution": ["payload.differs"]}

    judged.schema = 1

    assert judge("payload_resolution", judged) == []


def test_earlier_versions_listed_a_payload_once_however_many_addresses_of_it_events_name() -> None:
    judged = evidence()
    first = judged.history().replayed()
    assert first is not None
    own = min(first.payloads.by_digest().values())
    others = own.uri.replace("/tenant/default/", "/tenant/acme/")
    note = Draft(event_type="user.note", idempotency_key="n", meta={"of": {"uri": others, "sha256": own.sha256}})
    judged = evidence(note=note)
    replay: Any = copy.deepcopy(judged.replay)
    listed = [one for one in replay["payloads"] if one["uri"] != others]
    next(one for one in listed if one["uri"] == own.uri)["uses"] += 1
    judged.replay = {**replay, "payloads": listed, "payload_summary": payload_summary(listed)}

    assert found(judged)["payload_resolution"] == ["payload.unlisted", "payload.differs"]
    judged.schema = 2
    assert judge("payload_resolution", judged) == []


def test_nothing_but_a_whole_history_proves_a_state() -> None:
    judged = evidence()
    judged.events = [*judged.events[:4], *judged.events[5:]]

    assert found(judged)["fetch"][0] == "event.missing"
    assert found(judged)["state_integrity"] == ["replay"]
    assert not judged.verdict().is_proved


def test_an_index_names_every_file_once_and_where_it_belongs() -> None:
    files = [
        artifact(role, path, path.encode())
        for role, path in (
            ("manifest", "manifest.json"),
            ("events", "events.jsonl"),
            ("replay", "replay.json"),
            ("report", "report.json"),
            ("live_rows", "live-rows.json"),
            ("live_checksums", "live-checksums.json"),
        )
    ]
    index = index_document(files)

    def codes(document: Any, there: Any = files) -> set[str]:
        return {one.code for one in check_index(document, there)}

    assert codes(index) == set()
    assert codes(index_document(files[:-1]), files[:-1]) == {"index.roles"}
    assert codes(index_document([*files, files[0]])) == {"index", "index.roles"}
    assert codes(index, files[1:]) == {"bundle.missing"}
    assert codes(index, [*files, artifact("", "more", b"")]) == {"bundle.unlisted"}
    assert codes(index, [artifact("manifest", "manifest.json", b"other"), *files[1:]]) == {"bundle.changed"}
    outside = artifact("report", "../report.json", b"")
    assert codes(index_document([*files[:3], *files[4:], outside]), [*files[:3], *files[4:]]) == {
        "index.path",
        "bundle.missing",
    }
