"""Documents are found by their addresses, wherever these stand and however they are cut."""

from typing import Any

import pytest
from noetl_core.canonical import encode, sha256_hex
from noetl_core.collection.documents import HOLDING_JSON, LONGEST_ADDRESS, addresses_in, documents_in
from noetl_core.collection.reach import Reached
from noetl_core.collection.worklist import DocumentReading, Worklist
from noetl_core.payloads import refer_to
from noetl_core.ports.event_log import Scope

REF = refer_to(b"a payload", tenant_id="t", organization_id="o", media_type="application/json")
OTHER = sha256_hex(b"another one")
OWNER, NEIGHBOUR = Scope(tenant_id="t", organization_id="o"), Scope(tenant_id="t", organization_id="n")


@pytest.mark.parametrize(
    "value",
    [
        REF.uri,
        [{"deep": f"see {REF.uri}, please"}],
        {REF.uri: "as a key"},
        {"uri": REF.uri},
        {"uri": REF.uri, "sha256": REF.sha256},
        {**REF.to_json(), "media_type": "application/octet-stream"},
        {**REF.to_json(), "sha256": OTHER},
        {**REF.to_json(), "also": f"{REF.uri} "},
        {**REF.to_json(), "media_type": HOLDING_JSON},
        {"sha256": REF.sha256, "holds": True},
    ],
)
def test_what_does_not_say_that_it_names_nothing_is_read(value: Any) -> None:
    assert set(documents_in(encode({"meta": value}))) == {REF.sha256}


@pytest.mark.parametrize("value", [REF.to_json(), {**REF.to_json(), "ref_id": REF.uri}, REF.sha256, "payloads"])
def test_what_says_so_or_is_no_address_is_not(value: Any) -> None:
    assert list(documents_in(encode({"meta": value}))) == []


def test_a_reference_hides_no_other_address() -> None:
    other = REF.uri.replace(REF.sha256, OTHER)

    assert set(documents_in(encode({**REF.to_json(), "media_type": HOLDING_JSON, "uri": other}))) == {REF.sha256, OTHER}


def test_slashes_may_be_escaped() -> None:
    for escaped in ("/", r"\/", r"\\/", r"\\\/"):
        assert list(addresses_in(REF.uri.replace("/", escaped).encode())) == [REF.sha256]


@pytest.mark.parametrize("size", [1, 7, 64, LONGEST_ADDRESS, 10_000])
def test_an_address_is_found_however_it_is_cut(size: int) -> None:
    data = b"." * 100 + REF.uri.replace("/", r"\\\/").encode() + b"." * 100
    reading, reached = DocumentReading(), Reached(field_bits=12)

    found = [reading.take(data[at : at + size], reached) for at in range(0, len(data), size)]

    assert set().union(*found) == {REF.sha256}
    assert REF.sha256 in reached
    assert OTHER not in reached


def test_each_document_of_each_organization_is_handed_out_once() -> None:
    worklist = Worklist()
    worklist.add(OWNER, [REF.sha256, REF.sha256])
    worklist.add(NEIGHBOUR, [REF.sha256])
    first = [worklist.take(), worklist.take(), worklist.take()]
    worklist.add(OWNER, [REF.sha256, OTHER])

    assert set(first) == {(OWNER, REF.sha256), (NEIGHBOUR, REF.sha256), None}
    assert (worklist.take(), worklist.take()) == ((OWNER, OTHER), None)
