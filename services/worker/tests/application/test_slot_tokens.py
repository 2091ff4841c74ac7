"""Tokens of slots over a real server: frames that are kept bring others, before the one in use has ended."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from noetl.frame.v1.frame_pb2_grpc import add_FrameServiceServicer_to_server
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import CommandClient, FrameClient
from noetl_core.errors import NotPermitted
from noetl_core.ports.commands import Worker
from noetl_core.ports.frames import FrameBeats, FrameKey
from noetl_planner.entrypoints import frame_service
from noetl_servicekit.env import Address
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.stage_tokens import StageScope, stage_token
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens, token_sha256
from noetl_testkit.until import until
from noetl_worker.application.slot_tokens import RenewingFrames, TokenInUse

EXECUTION = 7
STAGE, OTHER_STAGE = f"{EXECUTION}-ab", f"{EXECUTION}-cd"
SCOPE = StageScope(tenant_id="acme", organization_id="data", stage_id=STAGE)
WORKER = Worker(worker_id="w.x-1-0")
KEY = FrameKey(execution_id=EXECUTION, frame_id=f"{STAGE}-0", attempt=1)
NOW, LIFE = 1_000_000.0, 60.0


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


class Planner:
    """Knows which frames count."""

    def __init__(self) -> None:
        self.lost: set[FrameKey] = set()
        self.unanswered: set[FrameKey] = set()

    async def heartbeat_frames(self, worker: Worker, keys: Sequence[FrameKey], **_: Any) -> FrameBeats:
        return FrameBeats(
            lost=frozenset(self.lost.intersection(keys)), unanswered=frozenset(self.unanswered.intersection(keys))
        )

    async def holders_of(self, execution_id: int, stage_id: str) -> Mapping[int, str]:
        return {0: WORKER.worker_id} if (execution_id, stage_id) == (EXECUTION, STAGE) else {}


@asynccontextmanager
async def served(
    planner: Planner, directory: Path, *, now: Callable[[], float]
) -> AsyncIterator[Callable[[Callable[[], str]], CommandClient]]:
    """Clients of a planner, each with a token of its own."""
    entry = {"name": "worker", "tenant_id": "*", "organization_id": "*", "role": "service"}
    path = directory / "tokens.json"
    path.write_text(json.dumps({"tokens": [{**entry, "token_sha256": token_sha256("secret")}]}))
    frames: Any = planner
    servicer = frame_service.FrameServicer(frames, planner, now=now)
    clients: list[CommandClient] = []
    async with serve_grpc(
        Address(host="127.0.0.1", port=0),
        register=lambda server: add_FrameServiceServicer_to_server(servicer, server),
        service_names=[frame_service.SERVICE_NAME],
        tokens=Tokens(path, now=now),
        metrics=GrpcServerMetrics(MetricSet()),
        health=Health(),
        drain_seconds=0.1,
    ) as address:

        def client(token: Callable[[], str]) -> CommandClient:
            one = CommandClient(
                default_address=str(address), shard_count=1, connect=lambda where: open_channel(where, token=token)
            )
            clients.append(one)
            return one

        try:
            yield client
        finally:
            for one in clients:
                await one.close()


@pytest.fixture
def planner() -> Planner:
    return Planner()


async def test_the_heartbeat_of_a_frame_that_is_kept_brings_another_token(planner: Planner, tmp_path: Path) -> None:
    clock = Clock()
    first = stage_token("secret", SCOPE, until=NOW + LIFE, seconds=LIFE)
    token = TokenInUse(first, seconds=LIFE)
    async with served(planner, tmp_path, now=clock) as client:
        frames = RenewingFrames(client(token), token)
        for clock.now in (NOW, NOW + LIFE / 2 - 1):
            await frames.heartbeat_frames(WORKER, [KEY])
            assert token() == first

        seen = [first]
        for clock.now in (
            NOW + LIFE * 0.9,
            NOW + LIFE * 1.6,
            NOW + LIFE * 2.3,
        ):  # each when the one before is all but over
            beats = await frames.heartbeat_frames(WORKER, [KEY])
            assert not beats.unanswered
            seen.append(token())
        assert len(set(seen)) == 4

        clock.now = NOW + LIFE * 5
        late = await frames.heartbeat_frames(WORKER, [KEY])
        assert (set(late.unanswered), token()) == ({KEY}, seen[-1]), "one that is over is exchanged for none"


async def test_a_stage_whose_frames_are_lost_gets_none(planner: Planner, tmp_path: Path) -> None:
    first = stage_token("secret", SCOPE, until=NOW + 1, seconds=LIFE)
    token = TokenInUse(first, seconds=LIFE)
    async with served(planner, tmp_path, now=lambda: NOW) as client:
        frames = RenewingFrames(client(token), token)
        planner.lost = {KEY}
        lost = await frames.heartbeat_frames(WORKER, [KEY])
        planner.lost, planner.unanswered = set(), {KEY}
        unanswered = await frames.heartbeat_frames(WORKER, [KEY])

    assert (lost.token, unanswered.token, token()) == ("", "", first)


async def test_only_slots_are_given_tokens_and_only_for_their_own_stage(planner: Planner, tmp_path: Path) -> None:
    other = FrameKey(execution_id=EXECUTION, frame_id=f"{OTHER_STAGE}-0", attempt=1)
    first = stage_token("secret", SCOPE, until=NOW + 1, seconds=LIFE)
    token = TokenInUse(first, seconds=LIFE)
    async with served(planner, tmp_path, now=lambda: NOW) as client:
        refused = await RenewingFrames(client(token), token).heartbeat_frames(WORKER, [KEY, other])
        of_a_service = await FrameClient(client(lambda: "secret")).heartbeat_frames(WORKER, [KEY])
        holders = await FrameClient(client(lambda: "secret")).holders_of(EXECUTION, STAGE)
        with pytest.raises(NotPermitted):
            await FrameClient(client(token)).holders_of(EXECUTION, STAGE)

    assert (refused.token, of_a_service.token, token()) == ("", "", first)
    assert holders == {0: WORKER.worker_id}


async def test_a_frame_outlasts_a_token_of_two_seconds(planner: Planner, tmp_path: Path) -> None:
    clock, life = Clock(), 2.0
    first = stage_token("secret", SCOPE, until=NOW + life, seconds=life)
    token = TokenInUse(first, seconds=life)
    async with served(planner, tmp_path, now=clock) as client:
        frames, old = RenewingFrames(client(token), token), FrameClient(client(lambda: first))

        async def is_first_over() -> bool:
            clock.now += life / 8
            assert not (await frames.heartbeat_frames(WORKER, [KEY])).unanswered
            return bool((await old.heartbeat_frames(WORKER, [KEY])).unanswered)

        await until(is_first_over)

    assert clock.now == NOW + life
    assert token() != first


def test_an_answer_to_a_task_that_has_ended_says_nothing_about_the_next() -> None:
    now = 0.0
    token = TokenInUse("of-a-stage", seconds=LIFE, clock=lambda: now)
    now = LIFE / 2
    assert token.is_half_over
    token.begin("of-another", seconds=LIFE)
    token.replace("of-a-stage", "of-a-stage-too")
    assert (token(), token.is_half_over) == ("of-another", False)

    now += LIFE / 2
    token.replace("of-another", "of-another-too")
    assert (token(), token.is_half_over) == ("of-another-too", False)
    token.begin("has waited", seconds=LIFE, left=LIFE / 4)
    assert (token.left, token.is_half_over) == (LIFE / 4, True)
    token.replace("has waited", "is new")
    assert (token.left, token.is_half_over) == (LIFE, False)
    token.begin("for ever", seconds=0)
    now = 1e9
    assert not token.is_half_over
