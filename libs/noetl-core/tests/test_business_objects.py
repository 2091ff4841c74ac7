from __future__ import annotations

from typing import Any

import pytest
from noetl_core.business_objects.events import MAX_CHANGE_BYTES, ObjectChanged, new_change, read_change
from noetl_core.business_objects.fold import merge
from noetl_core.envelope import Draft
from noetl_core.errors import InvalidInput
from noetl_core.fold import empty
from noetl_core.surfaces.shapes import Surface, check_row
from noetl_core.surfaces.surface_fold import SurfaceFold
from noetl_testkit.histories import EXECUTION, WORKLOAD, History, initialized


def folded(*said: dict[str, Any]) -> dict[str, Any]:
    history = History().add(initialized())
    for place, one in enumerate(said):
        draft = Draft(
            event_type="order.told",
            idempotency_key=f"user/{place}",
            meta={"business_object": {"type": "order", "id": "7", **one}},
            payload_ref=WORKLOAD if "state" in one else None,
        )
        history.add(draft)
    folding = SurfaceFold(empty(EXECUTION))
    folding.add_all(history.recorded)
    assert folding.state.unknown_events == 0
    row = dict(folding.changed()[Surface.BUSINESS_OBJECTS]["order/7"])
    check_row(Surface.BUSINESS_OBJECTS, row)
    return row


def test_a_state_replaces_and_a_patch_merges() -> None:
    row = folded({"state": {"a": 1, "b": {"c": 1}}, "status": "open"}, {"patch": {"b": {"d": 2}, "a": None}})

    assert row["attributes"] == {"b": {"c": 1, "d": 2}}
    assert (row["version"], row["status"], row["deleted"], row["payload_refs"]) == (2, "open", False, 1)
    assert folded({"state": {"a": 1}}, {"state": {"b": 2}})["attributes"] == {"b": 2}


def test_what_is_deleted_leaves_its_identity_and_lineage() -> None:
    row = folded({"state": {"a": 1}, "derived_from": [{"type": "cart", "id": "1"}]}, {"deleted": True})

    assert (row["status"], row["deleted"], row["attributes"], row["version"]) == ("deleted", True, {}, 2)
    assert row["derived_from"] == [{"type": "cart", "id": "1"}]
    assert row["deleted_event_id"] == row["last_event_id"] != row["created_event_id"]


def test_what_was_deleted_can_come_back_but_not_by_being_mentioned() -> None:
    mentioned = folded({"state": {"a": 1}}, {"deleted": True}, {"status": "seen"})
    back = folded({"state": {"a": 1}, "status": "open"}, {"deleted": True}, {"patch": {"b": 1}})

    assert (mentioned["deleted"], mentioned["status"], mentioned["version"]) == (True, "deleted", 3)
    assert mentioned["deleted_event_id"] != mentioned["last_event_id"]
    assert (back["deleted"], back["status"], back["attributes"]) == (False, "active", {"b": 1})
    assert "deleted_event_id" not in back


def test_a_patch_that_makes_too_much_of_an_object_is_counted_and_changes_nothing() -> None:
    half = "x" * (MAX_CHANGE_BYTES - 100)

    row = folded(*({"patch": {f"part{i}": half}} for i in range(20)))

    assert row["overflows"] == 4
    assert len(row["attributes"]) == 16
    assert row["version"] == 20


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [  # of RFC 7386, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({"a": "foo"}, None, None),
    ],
)
def test_patches_are_merged_as_rfc_7386_says(target: Any, patch: Any, merged: Any) -> None:
    assert merge(target, patch) == merged


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("order/7", "is an object"),
        ({"type": "or/der", "id": "7"}, "business_object.type"),
        ({"type": "order", "id": ""}, "business_object.id"),
        ({"type": "order", "id": "a\nb"}, "business_object.id"),
        ({"type": "order", "id": "7", "state": {}, "deleted": True}, "at most one"),
        ({"type": "order", "id": "7", "state": [1]}, "business_object.state"),
        ({"type": "order", "id": "7", "patch": {"a": "x" * MAX_CHANGE_BYTES}}, "refer to it"),
        ({"type": "order", "id": "7", "deleted": "yes"}, "true or false"),
        ({"type": "order", "id": "7", "version": 3}, "not version"),
        ({"type": "order", "id": "7", "derived_from": [{"id": "1"}]}, "by type and id"),
        ({"type": "order", "id": "7", "status": 3}, "status"),
    ],
)
def test_what_is_no_change_of_an_object_is_refused_with_the_reason(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_change(value)


def test_a_change_is_read_as_it_was_written() -> None:
    said = {"type": "order", "id": "a/7", "status": "open", "patch": {"n": 1}}

    assert read_change(said) == ObjectChanged(object_type="order", object_id="a/7", status="open", patch={"n": 1})


@pytest.mark.parametrize("said", [{"state": {"n": 1}}, {"patch": {"n": 1}}, {}, {"deleted": False}])
def test_nobody_may_call_an_object_deleted_that_is_not_but_what_was_written_is_read(said: dict[str, Any]) -> None:
    value = {"type": "order", "id": "7", "status": "deleted", **said}

    with pytest.raises(InvalidInput, match="only of what is gone"):
        new_change(value)

    assert read_change(value).status == "deleted"
    assert (folded({"status": "deleted", **said})["status"], folded({"status": "deleted", **said})["deleted"]) == (
        "deleted",
        False,
    )


def test_what_is_gone_may_be_called_deleted() -> None:
    assert new_change({"type": "order", "id": "7", "status": "deleted", "deleted": True}).deleted
