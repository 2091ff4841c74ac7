"""Hints of copies: they travel with references, and change nothing of what those mean."""

from datetime import UTC, datetime
from typing import Any

import pytest
from noetl_core.envelope import check_result_shape
from noetl_core.errors import InvalidInput
from noetl_core.payload_hints import IpcHint, hint_in
from noetl_core.payloads import payload_ref_of, refer_to

HINT = IpcHint(
    node_id="node-1",
    shm_name="noetl-0-abc/def",
    schema_digest="0" * 64,
    valid_until=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)
REF = refer_to(b"x", tenant_id="acme", organization_id="ops", media_type="a/b")
REFERENCE = {"uri": REF.uri, "sha256": REF.sha256, "media_type": REF.media_type, "bytes": REF.bytes}


def test_a_hint_is_read_from_the_reference_that_carries_it() -> None:
    ref = payload_ref_of({**REFERENCE, "ipc": HINT.to_json()})

    assert ref.hint == HINT
    assert HINT.to_json()["valid_until"] == "2026-01-02T03:04:05.000000Z"


def test_a_reference_means_the_same_with_and_without_one() -> None:
    ref = payload_ref_of({**REFERENCE, "ipc": HINT.to_json()})

    assert ref == REF
    assert hash(ref) == hash(REF)
    assert ref.to_json() == REF.to_json()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "here",
        {},
        {**HINT.to_json(), "node_id": 7},
        {**HINT.to_json(), "valid_until": "soon"},
        {**HINT.to_json(), "valid_until": "2026-01-02T03:04:05"},
    ],
)
def test_a_hint_that_cannot_be_read_is_none(value: object) -> None:
    assert hint_in({**REFERENCE, "ipc": value}) is None


@pytest.mark.parametrize("missing", ["uri", "sha256"])
def test_a_result_that_has_only_a_hint_is_refused(missing: str) -> None:
    reference: dict[str, Any] = {**REFERENCE, "ipc": HINT.to_json()}
    check_result_shape({"status": "ok", "reference": reference})
    del reference[missing]

    with pytest.raises(InvalidInput, match="hints at a copy"):
        check_result_shape({"status": "ok", "reference": reference})
