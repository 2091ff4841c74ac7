"""Evidence of one execution, from a log, stored rows and payloads in memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from noetl_cli.verify import make_bundle
from noetl_cli.verify.check_bundle import check_bundle
from noetl_contracts.clients import find_payloads
from noetl_core.envelope import Draft
from noetl_core.ports.event_log import Scope
from noetl_core.ports.live_rows import RowPage
from noetl_core.ports.streams import StreamHead
from noetl_testkit import verifying
from noetl_testkit.compliance.projections import projected
from noetl_testkit.histories import EXECUTION, WORKLOAD, sealed
from noetl_testkit.verifying import TWO_MIB, Evidence, Scene, keep, ref_to


async def test_an_execution_that_is_too_large_for_a_replay_of_api_is_proved_with_its_payloads(tmp_path: Path) -> None:
    scene = Scene(ref_to(b"[1]"), ref_to(b"[1]"), ref_to(b"[2]"))
    await keep(scene, b"[1]")
    await keep(scene, b"[2]")

    made = await scene.verify(tmp_path / "bundle")

    assert made.findings == []
    assert check_bundle(tmp_path / "bundle").findings == []
    came = sorted(file.read_bytes() for file in (tmp_path / "bundle" / "payloads").iterdir())
    assert came == [b"[1]", b"[2]", b"{}"]
    assert sorted(scene.payloads.fetched) == sorted([WORKLOAD.sha256, ref_to(b"[1]").sha256, ref_to(b"[2]").sha256])


async def test_a_head_that_was_put_back_is_told_though_no_byte_of_the_evidence_shows_it() -> None:
    scene = Scene(ref_to(b"[1]"))
    await keep(scene, b"[1]")
    scene.log.put_back[EXECUTION] = 2

    made = await scene.verify(None)

    assert [(one.code, one.stream_version) for one in made.findings] == [("event.beyond_head", 3)]


async def test_payloads_that_are_missing_corrupt_or_of_somebody_else_are_named(tmp_path: Path) -> None:
    missing, corrupt, foreign = ref_to(b"[1]"), ref_to(b"[2]"), ref_to(b"[3]", "rival")
    scene = Scene(missing, corrupt, foreign)
    scene.payloads.store.objects[foreign.uri] = b"[3]"
    await keep(scene, b"[2]")
    scene.payloads.store.objects[corrupt.uri] = b"[9]"

    made = await scene.verify(tmp_path / "bundle")

    told = {(one.code, one.message.split()[1]) for one in made.found["payload_resolution"]}
    assert told == {
        ("payload.missing", missing.sha256),
        ("payload.corrupt", corrupt.sha256),
        ("payload.missing", foreign.sha256),
    }
    assert foreign.sha256 not in scene.payloads.fetched


@pytest.mark.parametrize("others_first", [True, False])
async def test_an_address_of_somebody_else_is_named_and_hides_no_payload_of_one_s_own(
    tmp_path: Path, *, others_first: bool
) -> None:
    own, others = ref_to(b"[1]"), ref_to(b"[1]", "rival")
    scene = Scene(*((others, own) if others_first else (own, others)))
    await keep(scene, b"[1]")

    made = await scene.verify(tmp_path / "bundle")

    assert {(one.code, others.uri in one.message) for one in made.findings} == {
        ("payload.locator", True),
        ("payload.missing", True),
    }
    assert sorted(scene.payloads.fetched) == sorted([WORKLOAD.sha256, own.sha256])
    assert (tmp_path / "bundle" / "payloads" / own.sha256).read_bytes() == b"[1]"
    checked = check_bundle(tmp_path / "bundle")
    assert {one.code for one in checked.found["payload_resolution"]} == {"payload.missing"}


@pytest.mark.parametrize("limit", [TWO_MIB, 3])
async def test_the_size_of_a_payload_that_comes_along_is_that_of_its_bytes_whatever_an_event_names(
    tmp_path: Path, limit: int
) -> None:
    ref = ref_to(b"[1]")
    scene, called = Scene(), Scene(ref)
    note = {"uri": ref.uri, "sha256": ref.sha256, "bytes": 30}
    scene.history.add(Draft(event_type="order.noted", idempotency_key="noted", meta={"note": note}))
    for drafts in called.history.transactions[1:]:
        scene.history.add(*drafts)
    await keep(scene, b"[1]")

    assert (await scene.verify(tmp_path / "bundle", max_payload_bytes=limit)).findings == []
    assert check_bundle(tmp_path / "bundle").findings == []


async def test_what_does_not_come_along_is_read_all_the_same_unless_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(find_payloads, "READ_UP_TO", 5)
    damaged, large = ref_to(b"[22]"), ref_to(b"[4444]")
    scene = Scene(damaged, large)
    await keep(scene, b"[22]")
    await keep(scene, b"[4444]")
    scene.payloads.store.objects[damaged.uri] = b"[99]"

    made = await scene.verify(None, max_payload_bytes=0)

    assert [one.code for one in made.findings] == ["payload.corrupt"]
    assert sorted(scene.payloads.fetched) == sorted([WORKLOAD.sha256, damaged.sha256])


@pytest.mark.parametrize("looks", range(1, 8))
async def test_a_clock_that_is_set_back_on_the_way_is_no_contradiction(
    tmp_path: Path, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SetBack(datetime):
        """By two seconds, after some looks at it."""

        left = looks

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> SetBack:
            cls.left -= 1
            return super().now(tz) - timedelta(seconds=2 if cls.left < 0 else 0)

    monkeypatch.setattr(make_bundle, "datetime", SetBack)

    assert (await Scene().verify(tmp_path / "bundle")).findings == []
    assert check_bundle(tmp_path / "bundle").findings == []


@pytest.mark.parametrize("version", [2**53, 2**62, -(2**62)])
@pytest.mark.parametrize("anew", [True, False])
async def test_a_version_that_json_has_no_number_for_is_named_by_evidence_that_shows_the_event(
    tmp_path: Path, version: int, *, anew: bool
) -> None:
    scene = Scene(ref_to(b"[1]"))
    await keep(scene, b"[1]")
    stored = scene.history.stored
    stored[2] = stored[2]._replace(aggregate_version=version)
    if anew:
        stored[:] = sealed(stored)

    made = await scene.verify(tmp_path / "bundle")
    checked = check_bundle(tmp_path / "bundle")

    told = {(one.code, one.stream_version) for one in made.found["fetch"]}
    assert told == {("event.not_canonical", 3)} | (set() if anew else {("event.changed", 3)})
    assert checked.found["fetch"] == made.found["fetch"]
    assert checked.evidence is not None
    assert checked.evidence.events == stored


async def test_rows_that_have_no_sum_are_named_by_the_event_that_left_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(ref_to(b"[1]"))
    before = projected(scene.history)
    monkeypatch.setattr(verifying, "projected", lambda _: before)
    stored = scene.history.stored
    stored[:] = sealed([*stored[:-1], stored[-1]._replace(aggregate_version=2**62)])

    made = await scene.verify(tmp_path / "bundle")

    assert ("event.not_folded", len(stored)) in {(one.code, one.stream_version) for one in made.found["fetch"]}
    assert check_bundle(tmp_path / "bundle").found["fetch"] == made.found["fetch"]


@pytest.mark.parametrize("version", [2**53, 2**62])
async def test_a_head_that_json_has_no_number_for_gives_evidence_that_proves_nothing(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    head = await scene.evidence.find_stream(None, EXECUTION)

    async def find_stream(self: Evidence, scope: Scope | None, execution_id: int) -> StreamHead:
        return replace(head, version=version)

    monkeypatch.setattr(Evidence, "find_stream", find_stream)

    made = await scene.verify(tmp_path / "bundle")

    assert "event.missing" in {one.code for one in made.findings}
    assert f'"version":"{version}"' in (tmp_path / "bundle" / "manifest.json").read_text()
    assert "manifest" in {one.code for one in check_bundle(tmp_path / "bundle").findings}


@pytest.mark.parametrize("version", [2**53, 2**62])
async def test_live_rows_at_a_version_that_json_has_no_number_for_give_evidence_that_proves_nothing(
    tmp_path: Path, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Evidence.list_rows

    async def list_rows(self: Evidence, *arguments: Any, **named: Any) -> RowPage:
        page = await listed(self, *arguments, **named)
        return replace(page, versions=dict.fromkeys(page.versions, version))

    monkeypatch.setattr(Evidence, "list_rows", list_rows)

    made = await Scene().verify(tmp_path / "bundle")

    assert "projection.ahead" in {one.code for one in made.findings}
    assert "live_rows" in {one.code for one in check_bundle(tmp_path / "bundle").findings}
