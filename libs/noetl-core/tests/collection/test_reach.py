"""Whatever names a payload in an event is seen, in whichever field it stands."""

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, get_type_hints

import pytest
from noetl_core.canonical import sha256_hex
from noetl_core.catalog import EventSpec, known_types, to_draft
from noetl_core.collection.documents import HOLDING_JSON, documents_in, json_media_type
from noetl_core.collection.reach import Reached, digests_in
from noetl_core.envelope import StreamSpelling
from noetl_core.payloads import PayloadRef, refer_to

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REF = refer_to(b"a payload", tenant_id="t", organization_id="o", media_type="application/json")
RESULT = {
    "status": "ok",
    "reference": {"ref_id": "noetl://execution/1/result/a/0123456789abcdef", **REF.to_json()},
    "parent_ref": None,
    "context": {},
}


def fields_that_hold_references() -> list[tuple[EventSpec, str]]:
    """Every field of every declared event that can hold more than a number or a name."""
    return [
        (spec, name)
        for spec in known_types().values()
        for name, kind in get_type_hints(spec.payload).items()
        if any(part in str(kind) for part in ("PayloadRef", "Mapping", "Any"))
    ]


def example(spec: EventSpec, filled: str) -> object:
    """An event of the type, with a reference in one of its fields."""
    values: dict[str, Any] = {}
    for name, kind in get_type_hints(spec.payload).items():
        values[name] = filling(name, str(kind)) if name == filled else blank(name, str(kind))
    return spec.payload(**values)


def filling(name: str, kind: str) -> Any:
    if "PayloadRef" in kind:
        return REF
    if name == "result":
        return RESULT
    return ({"deep": [REF.to_json()]},) if kind.startswith("tuple") else {"deep": {"er": [REF.to_json()]}}


def blank(name: str, kind: str) -> Any:
    for part, value in (("None", None), ("PayloadRef", other()), ("Mapping", {}), ("tuple", ()), ("bool", False)):
        if part in kind:
            return value
    return 1 if "int" in kind or "float" in kind else name


def other() -> PayloadRef:
    return refer_to(b"another payload", tenant_id="t", organization_id="o", media_type="text/plain")


def body_of(content: object, *, holding: bool = False) -> bytes:
    body = _body_of(content)
    return (
        body.replace(b'"media_type":"application/json"', f'"media_type":"{HOLDING_JSON}"'.encode()) if holding else body
    )


def _body_of(content: object) -> bytes:
    spelling = StreamSpelling(tenant_id="t", organization_id="o", execution_id=2, producer="test")
    return spelling.spell(to_draft(content, idempotency_key="k"), 1, NOW).body


@pytest.mark.parametrize(
    ("spec", "field"),
    [pytest.param(spec, name, id=f"{spec.name}-{name}") for spec, name in fields_that_hold_references()],
)
def test_a_reference_in_any_field_of_any_event_is_reached(spec: EventSpec, field: str) -> None:
    assert REF.sha256 in set(digests_in(body_of(example(spec, field))))


@pytest.mark.parametrize(
    ("spec", "field"),
    [pytest.param(spec, name, id=f"{spec.name}-{name}") for spec, name in fields_that_hold_references()],
)
def test_a_document_that_refers_to_payloads_is_found_in_any_field_of_any_event(spec: EventSpec, field: str) -> None:
    plain, holding = body_of(example(spec, field)), body_of(example(spec, field), holding=True)

    assert list(documents_in(plain)) == []
    assert set(documents_in(holding)) == {REF.sha256}


@pytest.mark.parametrize("value", [True, "x", {"sha256": 1}, {"sha256": "../x"}, {"sha256": "A" * 64}])
def test_what_only_looks_like_a_document_is_none(value: Any) -> None:
    spec = known_types()["call.done"]
    logs = {"holds": True, **value} if isinstance(value, dict) else {"holds": value}
    content = dataclasses.replace(example(spec, "logs"), result=None, logs=logs)  # type: ignore[type-var]

    assert list(documents_in(body_of(content))) == []


def test_json_says_whether_digests_stand_in_it() -> None:
    assert json_media_type(b'{"a":1}') == "application/json"
    assert json_media_type(f'{{"a":"{REF.sha256}"}}'.encode()) == HOLDING_JSON
    for before in (4 * 1024 * 1024 - 64, 4 * 1024 * 1024 - 63, 4 * 1024 * 1024 - 1, 4 * 1024 * 1024, 9_000_000):
        assert json_media_type(b" " * before + REF.sha256.encode()) == HOLDING_JSON
        assert json_media_type(b" " * before + REF.sha256[1:].encode() + b" ") == "application/json"
    assert PayloadRef(uri=REF.uri, sha256=REF.sha256, media_type=HOLDING_JSON, bytes=1).media_type == HOLDING_JSON


def test_there_is_a_field_for_references_in_every_kind_of_event_that_has_always_had_one() -> None:
    known = {(spec.name, name) for spec, name in fields_that_hold_references()}

    assert {
        ("playbook.initialized", "payload_ref"),
        ("playbook.initialized", "inherited"),
        ("call.done", "result"),
        ("call.done", "logs"),
        ("call.error", "result"),
        ("call.partial", "payload_ref"),
        ("command.parked", "payload_ref"),
        ("command.issued", "parked"),
        ("ctx.updated", "refs"),
        ("execution.inherited", "results"),
        ("loop.started", "payload_ref"),
        ("loop.done", "result"),
        ("step.enter", "chunk"),
        ("payload.marked", "payload_ref"),
    } <= known


def test_the_view_of_a_large_result_is_reached_by_its_digest_alone() -> None:
    spec = known_types()["call.done"]
    viewed: Mapping[str, Any] = {**RESULT, "reference": {"view": {"sha256": REF.sha256, "bytes": 9}}}
    content = dataclasses.replace(example(spec, "logs"), logs=None, result=viewed)  # type: ignore[type-var]

    assert REF.sha256 in set(digests_in(body_of(content)))


def test_the_digest_of_the_event_itself_is_none_of_a_payload() -> None:
    spec = known_types()["workflow.completed"]

    assert list(digests_in(body_of(spec.payload()))) == []


def test_a_second_digest_under_the_same_name_counts() -> None:
    spec = known_types()["call.done"]
    content = dataclasses.replace(  # type: ignore[type-var]
        example(spec, "logs"), result=None, logs={"content_sha256": REF.sha256}
    )

    assert set(digests_in(body_of(content))) == {REF.sha256}


def test_digests_that_touch_are_both_seen() -> None:
    one, two = sha256_hex(b"1"), sha256_hex(b"2")

    assert {one, two} <= set(digests_in(f"x{one}{two}x".encode()))
    assert list(digests_in(one[:63].encode())) == []
    assert list(digests_in((one * 100_000).encode())) == [], "a dump is no reference"
    assert list(digests_in(one.upper().encode())) == []


def test_what_was_seen_is_never_forgotten() -> None:
    digests = [sha256_hex(str(n).encode()) for n in range(2_000)]
    reached = Reached(salt=12_345, field_bits=12)
    for digest in digests:
        reached.add(digest)

    assert all(digest in reached for digest in digests)


def test_what_was_not_seen_is_rarely_taken_for_seen_and_not_by_everybody() -> None:
    seen = [sha256_hex(str(n).encode()) for n in range(500)]
    others = [sha256_hex(f"other {n}".encode()) for n in range(2_000)]
    mistaken = []
    for salt in (1, 60):
        reached = Reached(salt=salt, field_bits=12)
        for digest in seen:
            reached.add(digest)
        mistaken.append({digest for digest in others if digest in reached})

    assert all(len(found) < 200 for found in mistaken)
    assert mistaken[0] != mistaken[1]
