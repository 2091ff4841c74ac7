"""Payload references: complete, consistent with their address, and able to tell other bytes from their own."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.errors import Corrupt, InvalidInput
from noetl_core.payloads import PayloadRef, refer_to, verify

DIGEST = hashlib.sha256(b"{}").hexdigest()
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text not in {".", ".."})


def reference() -> PayloadRef:
    return refer_to(b"{}", tenant_id="acme", organization_id="care", media_type="application/json")


def test_a_reference_follows_from_the_bytes_and_their_owner() -> None:
    assert reference().to_json() == {
        "uri": f"noetl://tenant/acme/org/care/payloads/sha256/{DIGEST}",
        "sha256": DIGEST,
        "media_type": "application/json",
        "kind": "payload_store",
        "bytes": 2,
    }


@settings(deadline=None, derandomize=True)
@given(st.binary(), NAMES, NAMES)
def test_a_reference_survives_in_the_body_of_an_event(data: bytes, tenant: str, organization: str) -> None:
    ref = refer_to(data, tenant_id=tenant, organization_id=organization, media_type="text/plain")

    assert PayloadRef.from_json(decode(encode(ref.to_json()))) == ref
    assert (ref.tenant_id, ref.organization_id) == (tenant, organization)


@pytest.mark.parametrize(
    "change",
    [
        {"uri": f"noetl://tenant/acme/org/care/payloads/sha256/{'0' * 64}"},
        {"uri": f"noetl://tenant/acme/payloads/sha256/{DIGEST}"},
        {"uri": f"noetl://tenant/acme/org/care/payloads/sha256/{DIGEST}/stage/s"},
        {"uri": "file:///cache/payload"},
        {"uri": None},
        {"sha256": DIGEST.upper()},
        {"sha256": "abc", "uri": "noetl://tenant/acme/org/care/payloads/sha256/abc"},
        {"media_type": ""},
        {"media_type": "json"},
        {"media_type": 7},
        {"kind": "cache"},
        {"bytes": -1},
        {"bytes": "2"},
        {"bytes": True},
        {"bytes": 2.0},
        {"path": "cache/payload"},
    ],
)
def test_a_reference_that_is_not_consistent_is_refused(change: JsonObject) -> None:
    with pytest.raises(InvalidInput):
        PayloadRef.from_json(reference().to_json() | change)


@pytest.mark.parametrize("field", ["uri", "sha256", "media_type", "kind", "bytes"])
def test_a_reference_that_lacks_a_field_is_refused(field: str) -> None:
    value = reference().to_json()
    del value[field]
    with pytest.raises(InvalidInput, match="exactly the fields"):
        PayloadRef.from_json(value)


@pytest.mark.parametrize("value", [None, [], "noetl://tenant/acme", 1])
def test_what_is_no_object_is_no_reference(value: object) -> None:
    with pytest.raises(InvalidInput):
        PayloadRef.from_json(value)


@pytest.mark.parametrize("media_type", ["application/vnd.apache.arrow.stream", "text/plain; charset=utf-8"])
def test_media_types_with_vendors_and_parameters_are_accepted(media_type: str) -> None:
    assert refer_to(b"", tenant_id="t", organization_id="o", media_type=media_type).media_type == media_type


def test_bytes_are_verified_against_their_digest() -> None:
    ref = reference()

    assert verify(ref, b"{}") == b"{}"
    with pytest.raises(Corrupt) as refusal:
        verify(ref, b"[]")
    assert refusal.value.facts["uri"] == ref.uri
