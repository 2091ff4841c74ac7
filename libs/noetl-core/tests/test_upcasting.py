"""Old versions of events, read as today's: by strictly advancing steps that are known by their digest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from noetl_core import catalog
from noetl_core.canonical import encode, sha256_hex
from noetl_core.catalog import known_types
from noetl_core.envelope import Envelope, StoredEvent, parse_body
from noetl_core.errors import Corrupt
from noetl_core.events import typed
from noetl_core.executions.events import StepEntered
from noetl_core.fold import empty, fold_all
from noetl_core.recorded import record
from noetl_core.upcasting.registry import Upcaster, Upcasters
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.histories import EXECUTION, History, two_steps


def renamed(envelope: Envelope) -> Envelope:
    """Once upon a time activations were called visits, and counted from zero."""
    meta = dict(envelope.meta)
    visit = meta.pop("visit")
    assert isinstance(visit, int)
    meta["activation"] = visit + 1
    return replace(envelope, meta=meta)


OLD_ENTER = Upcaster(event_type="step.entered", from_version=1, to_version=2, change=renamed, to_type="step.enter")
BACK_TO_ONE = Upcaster(event_type="step.enter", from_version=2, to_version=3, change=lambda envelope: envelope)


def as_it_was(stored: StoredEvent) -> StoredEvent:
    """The same event, in the words of a release that never was."""
    body = stored.body.replace(b'"event_type":"step.enter"', b'"event_type":"step.entered"')
    body = body.replace(b'"activation":1', b'"visit":0')
    return stored._replace(body=body)


def test_an_old_event_is_read_as_todays_before_it_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    history = two_steps(History()).stored
    old = [as_it_was(one) if one.envelope().event_type == "step.enter" else one for one in history]
    monkeypatch.setitem(catalog._BY_NAME, "step.enter", replace(known_types()["step.enter"], schema_version=2))

    unread = fold_all(empty(EXECUTION), [record(one) for one in old])
    read = fold_all(empty(EXECUTION), [record(one, Upcasters([OLD_ENTER])) for one in old])

    assert unread.unknown_events == 2
    assert read.unknown_events == 0
    assert read.execution.steps["second"].activation == 1
    assert isinstance(record(old[2], Upcasters([OLD_ENTER])).content, StepEntered)


def test_steps_follow_each_other_until_none_is_left() -> None:
    upcasters = Upcasters([OLD_ENTER, BACK_TO_ONE])
    old = next(as_it_was(one) for one in two_steps(History()).stored if one.envelope().event_type == "step.enter")

    read = upcasters(parse_body(old.body))

    assert (read.event_type, read.schema_version) == ("step.enter", 3) == upcasters.leads_to("step.entered", 1)
    assert read.event_id == old.envelope().event_id


def test_what_has_no_upcaster_is_left_as_it_is() -> None:
    envelope = two_steps(History()).stored[0].envelope()

    assert Upcasters([OLD_ENTER])(envelope) is envelope
    assert UPCASTERS(envelope) is envelope


@pytest.mark.parametrize(("first", "last"), [(1, 1), (2, 1), (0, 1)])
def test_versions_only_grow(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="leads to a later version"):
        Upcaster(event_type="a.b", from_version=first, to_version=last, change=renamed)


def test_a_version_is_upcast_in_one_way_only() -> None:
    with pytest.raises(ValueError, match="upcast twice"):
        Upcasters([OLD_ENTER, replace(OLD_ENTER, to_version=3)])


def test_an_upcaster_cannot_make_an_event_somebody_elses() -> None:
    stolen = Upcaster(
        event_type="playbook.initialized",
        from_version=1,
        to_version=2,
        change=lambda envelope: replace(envelope, tenant_id="rival"),
    )

    with pytest.raises(Corrupt, match="changes 'tenant_id'"):
        Upcasters([stolen])(two_steps(History()).stored[0].envelope())


def test_a_digest_says_which_steps_there_are_and_not_in_which_order_they_were_named() -> None:
    assert Upcasters([OLD_ENTER, BACK_TO_ONE]).digest == Upcasters([BACK_TO_ONE, OLD_ENTER]).digest
    assert Upcasters([replace(OLD_ENTER, revision=2)]).digest != Upcasters([OLD_ENTER]).digest
    assert UPCASTERS.digest == sha256_hex(b"[]")
    assert Upcasters([OLD_ENTER]).digest == sha256_hex(encode([["noetl.step.entered", 1, 2, "noetl.step.enter", 1]]))


def test_every_older_version_of_a_known_type_can_still_be_read() -> None:
    for name, spec in known_types().items():
        for version in range(1, spec.schema_version):
            target, reached = UPCASTERS.leads_to(name, version)
            assert (target, reached) == (target, known_types()[target].schema_version), f"{name} {version}"


def test_a_version_of_the_future_is_unknown_and_harms_nobody() -> None:
    envelope = replace(two_steps(History()).stored[0].envelope(), schema_version=99)

    assert typed(UPCASTERS(envelope)) is None
