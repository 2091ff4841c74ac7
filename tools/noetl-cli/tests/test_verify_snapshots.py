"""States from snapshots beside those of every event: what differs is named, what is missing is no proof."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner
from noetl_cli.verify.commands import snapshots
from noetl_cli.verify.snapshots import Compared, SnapshotReport, verify_snapshots
from noetl_contracts.clients import ReplayedState
from noetl_core.errors import Corrupt, TooLargeToReplay, Unavailable
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead
from noetl_core.replay.points import Point
from noetl_core.surfaces.shapes import Surface

LONG = 1_000


class Api:
    """Replays as it is told; a snapshot comes with the `ready`-th question."""

    def __init__(
        self,
        *,
        ready: int = 1,
        wrong: Mapping[str, str] | None = None,
        error: Exception | None = None,
        error_of: int = 7,
    ) -> None:
        self.asked: list[tuple[int, bool]] = []
        self._ready = ready
        self._wrong = wrong or {}
        self._error = error
        self._error_of = error_of

    async def state(
        self,
        scope: Scope | None,
        execution_id: int,
        point: Point,
        *,
        projection: str = "all",
        resolve_payloads: bool = False,
        from_start: bool = False,
    ) -> ReplayedState:
        assert projection == "none"
        if self._error is not None and execution_id == self._error_of:
            raise self._error
        self.asked.append((point.stream_version, from_start))
        shortened = not from_start and len(self.asked) >= self._ready
        surfaces = {str(surface): "a" for surface in Surface} | ({} if from_start else dict(self._wrong))
        return ReplayedState(
            execution_id=execution_id,
            tenant_id="acme",
            organization_id="ops",
            stream_version=point.stream_version,
            event_id="1",
            reached_at=datetime(2026, 1, 1, tzinfo=UTC),
            event_checksum="e",
            head_version=LONG + 7,
            format=1,
            upcasters="u",
            snapshot_version=LONG if shortened else 0,
            surfaces=surfaces,
            row_counts={},
            checksum="".join(surfaces.values()),
            payload_root="p",
            payload_count=0,
        )


def head(version: int, execution_id: int = 7) -> StreamHead:
    return StreamHead(
        execution_id=execution_id,
        tenant_id="acme",
        organization_id="ops",
        version=version,
        checksum="c",
        terminal=True,
        updated_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def verified(api: Api, *heads: StreamHead, wait_seconds: float = 0.0) -> dict[str, Any]:
    told: list[tuple[int, int]] = []
    report = await verify_snapshots(
        api, heads, from_events=LONG, wait_seconds=wait_seconds, progress=lambda *so_far: told.append(so_far)
    )
    assert len(told) == len(report.compared)
    return {**report.to_json(), "lines": [one.line() for one in report.compared], "verdict": report.verdict()}


async def test_a_state_from_a_snapshot_that_is_that_of_every_event_is_proved_and_short_histories_are_left_out() -> None:
    api = Api()

    report = await verified(api, head(LONG - 1, 6), head(LONG + 7))

    assert (report["proved"], report["executions"], report["from_snapshots"]) == (True, 1, 1)
    assert (report["failed"], report["not_compared"], report["verdict"]) == (0, 0, "proved")
    assert report["lines"] == [f"execution 7 at version {LONG + 7} from the snapshot at {LONG} is equal"]
    assert api.asked == [(LONG + 7, False), (LONG + 7, True)]


async def test_a_snapshot_that_leads_elsewhere_is_no_proof_and_the_surface_is_named() -> None:
    report = await verified(Api(wrong={"commands": "b"}), head(LONG + 7))

    assert report["proved"] is False
    assert report["lines"] == [
        f"execution 7 at version {LONG + 7} from the snapshot at {LONG} DIFFERS in commands, checksum"
    ]


async def test_a_long_history_without_a_snapshot_is_no_proof() -> None:
    report = await verified(Api(ready=99), head(LONG + 7))

    assert (report["proved"], report["from_snapshots"]) == (False, 0)
    assert report["lines"] == [f"execution 7 at version {LONG + 7} has no snapshot that can be used"]


async def test_a_snapshot_that_is_just_being_made_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noetl_cli.verify.snapshots.LOOK_AGAIN_SECONDS", 0.0)
    api = Api(ready=4)

    report = await verified(api, head(LONG), wait_seconds=60.0)

    assert report["proved"] is True
    assert api.asked == [*[(LONG, False)] * 4, (LONG, True)], "only there, where it is made, could it be used"


async def test_what_is_too_large_for_a_replay_is_no_failure_and_never_counted_as_proved() -> None:
    report = await verified(Api(error=TooLargeToReplay("more than 500000 rows"), error_of=6), head(LONG, 6), head(LONG))

    assert (report["proved"], report["failed"], report["not_compared"]) == (False, 0, 1)
    assert report["verdict"] == "1 proved, 1 NOT COMPARED"
    assert report["lines"] == [
        f"execution 6 at version {LONG} is too large to be replayed in one piece: NOT COMPARED",
        f"execution 7 at version {LONG} from the snapshot at {LONG} is equal",
    ]
    assert [one["equal"] for one in report["compared"]] == [None, True], "nobody has compared the first"


@pytest.mark.parametrize(
    ("snapshot_version", "status", "verdict"),
    [(LONG, 0, "1 proved, 1 NOT COMPARED"), (0, 1, "NOT PROVED, 0 proved, 1 failed, 1 NOT COMPARED")],
    ids=["the other is equal", "the other has no snapshot"],
)
def test_the_exit_status_is_that_of_what_could_be_compared_and_the_summary_tells_the_rest(
    monkeypatch: pytest.MonkeyPatch, snapshot_version: int, status: int, verdict: str
) -> None:
    report = SnapshotReport(
        compared=[
            Compared(execution_id=6, version=LONG, problem=TooLargeToReplay.code),
            Compared(execution_id=7, version=LONG, snapshot_version=snapshot_version),
        ]
    )

    async def heads(*_: object) -> list[StreamHead]:
        return [head(LONG, 6), head(LONG)]

    async def compare(*_: object) -> SnapshotReport:
        return report

    monkeypatch.setattr("noetl_cli.verify.commands.list_heads", heads)
    monkeypatch.setattr("noetl_cli.verify.commands._compare_snapshots", compare)
    env = {"NOETL_API_ADDRESS": "127.0.0.1:9", "NOETL_TOKEN": "t"}

    ran = CliRunner().invoke(snapshots, ["--from-events", str(LONG)], env=env)

    assert ran.exit_code == status, ran.output
    assert ran.output.splitlines()[-1] == f"2 histories of {LONG} events and more: {verdict}"


async def test_an_api_that_is_away_proves_nothing_and_where_there_is_nothing_nothing_is_called_proved() -> None:
    with pytest.raises(Unavailable):
        await verified(Api(error=Unavailable("api is away")), head(LONG))

    assert (await verified(Api()))["verdict"] == "nothing to compare"


async def test_a_history_that_somebody_changed_is_told_of_and_the_others_are_compared_all_the_same() -> None:
    api = Api(error=Corrupt("event 3 is not what was appended"), error_of=6)

    report = await verified(api, head(LONG, 6), head(LONG + 7))

    assert (report["proved"], report["executions"], report["from_snapshots"]) == (False, 2, 1)
    assert (report["failed"], report["not_compared"], report["verdict"]) == (1, 0, "NOT PROVED, 1 proved, 1 failed")
    assert report["lines"] == [
        f"execution 6 at version {LONG} cannot be replayed: event 3 is not what was appended",
        f"execution 7 at version {LONG + 7} from the snapshot at {LONG} is equal",
    ]
