"""How workers, the reaper and api find the planner of an execution: as `CommandClient` does it, without gRPC."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from noetl_core.errors import NoetlError, NotOwner, Unavailable
from noetl_core.ports.commands import UNANSWERED, ClaimOutcome, CommandKey, Heartbeats, Worker
from noetl_core.ports.frames import FrameBeats, FrameClaim, FrameKey, StageSlot
from noetl_core.sharding import shard_of

from noetl_testkit.simulation.network import Network

MAX_HOPS = 3


class PlannerRoute:
    """Ports `Commands`, `Frames`, `Deadlines`, `Steering` and `Notices`: asks the owner, follows it when it moves."""

    def __init__(self, network: Network, planners: Sequence[str], *, shard_count: int) -> None:
        self._network = network
        self._front_door = planners
        self._shard_count = shard_count
        self._owners: dict[int, str] = {}
        self._turn = 0

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """Claim commands, each execution's from its owner."""
        groups: dict[int, list[CommandKey]] = defaultdict(list)
        for key in keys:
            groups[key.execution_id].append(key)
        found: dict[CommandKey, ClaimOutcome] = {}
        for execution_id, group in groups.items():
            try:
                outcomes = await self._ask(execution_id, "claim", worker, group)
            except NoetlError:
                outcomes = [ClaimOutcome(key=key, refusal=UNANSWERED) for key in group]
            found.update({outcome.key: outcome for outcome in outcomes})
        return tuple(found[key] for key in keys)

    async def addresses(self) -> Sequence[str]:
        """Of all planners."""
        return self._front_door

    async def wait_for_commands(self, address: str, worker: Worker, **given: Any) -> Any:
        """Wait at one planner."""
        return await self._network.call(address, "planner", "wait_for_commands", (worker,), given)

    async def heartbeat(self, worker: Worker, keys: Sequence[CommandKey], **_: Any) -> Heartbeats:
        """Keep claims alive; those without an owner stay unanswered."""
        answers = await asyncio.gather(*(self._beat("heartbeat", Heartbeats, worker, key) for key in keys))
        lost = frozenset(one for beats in answers for one in beats.lost)
        return Heartbeats(lost=lost, unanswered=frozenset(one for beats in answers for one in beats.unanswered))

    async def heartbeat_frames(self, worker: Worker, keys: Sequence[FrameKey], **_: Any) -> FrameBeats:
        """Keep frames alive."""
        answers = await asyncio.gather(*(self._beat("heartbeat_frames", FrameBeats, worker, key) for key in keys))
        lost = frozenset(one for beats in answers for one in beats.lost)
        return FrameBeats(lost=lost, unanswered=frozenset(one for beats in answers for one in beats.unanswered))

    async def _beat(self, method: str, unanswered: Callable[..., Any], worker: Worker, key: Any) -> Any:
        try:
            return await self._ask(key.execution_id, method, worker, [key])
        except NoetlError:
            return unanswered(unanswered=frozenset({key}))

    async def claim_frames(self, worker: Worker, slots: Sequence[StageSlot]) -> tuple[FrameClaim, ...]:
        """Claim frames."""
        claims: list[FrameClaim] = []
        for slot in slots:
            try:
                claims += await self._ask(slot.execution_id, "claim_frames", worker, [slot])
            except NoetlError as exc:
                claims.append(FrameClaim(slot=slot, refusal=UNANSWERED if exc.retryable else exc.code))
        return tuple(claims)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            named = args[1] if isinstance(args[0], Worker) else args[0]
            execution_id = named if isinstance(named, int) else named.execution_id
            return self._ask(execution_id, method, *args, **kwargs)

        return ask

    async def _ask(self, execution_id: int, method: str, *args: Any, **kwargs: Any) -> Any:
        shard = shard_of(execution_id, self._shard_count)
        for _ in range(MAX_HOPS):
            address = self._owners.get(shard) or self._somebody()
            try:
                return await self._network.call(address, "planner", method, args, kwargs)
            except NotOwner as elsewhere:
                if not elsewhere.address or elsewhere.address == address:
                    self._owners.pop(shard, None)
                    raise Unavailable(f"nobody plans shard {shard} at the moment") from elsewhere
                self._owners[shard] = elsewhere.address
            except Unavailable:
                if self._owners.pop(shard, None) is None:
                    raise
        raise Unavailable(f"the planner of shard {shard} keeps moving")

    def _somebody(self) -> str:
        """Behind the front door one replica is asked after the other."""
        self._turn += 1
        return self._front_door[self._turn % len(self._front_door)]
