"""The actor of one execution: one inbox, one turn at a time, one append a turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from noetl_core.append import Fence, Hint
from noetl_core.envelope import StoredEvent
from noetl_core.errors import (
    AlreadyTerminal,
    Conflict,
    DeadlinePassed,
    Fenced,
    KeyTaken,
    NoetlError,
    NotFound,
    NotOwner,
    Overloaded,
    Unavailable,
)
from noetl_core.fold import State
from noetl_core.ports.commands import GrantedCommand, Worker
from noetl_core.ports.event_log import EventLog
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import span

from noetl_planner.application.asks import Ask, Complete, EndFrame, next_asks, refuse
from noetl_planner.application.followed_log import FollowedLog
from noetl_planner.application.frame_leases import leases_that_ended
from noetl_planner.application.grants import grant
from noetl_planner.application.load_plan import LoadPlan
from noetl_planner.application.own_appends import OwnAppends
from noetl_planner.application.parking import asks_for_parked
from noetl_planner.application.routing_snapshots import KeepRouting, RoutingOf, keep_no_routing
from noetl_planner.application.setbacks import FAILURE_SECONDS, RETRY_SECONDS, Setbacks
from noetl_planner.application.turn import TurnPlanner
from noetl_planner.application.turn_parts import Turn, TurnRules, tell
from noetl_planner.telemetry import PlannerMetrics

logger = get_logger()

AWAY: Final = (Unavailable, DeadlinePassed, Overloaded)
"""What passes by itself, and says nothing about the execution: it is never set aside for it."""
MAX_INBOX = 10_000
MAX_LOST_RACES = 5
MAX_ASKS_A_TURN = 200
LONGEST_TURN_SECONDS = 120.0
"""Everything that a turn waits for has a deadline of its own: one that takes so long hangs."""


class Actor:
    """Takes everything queued, folds, decides and appends; the log decides who wins."""

    def __init__(
        self,
        execution_id: int,
        *,
        shard: int,
        log: EventLog,
        load_plan: LoadPlan,
        rules: TurnRules,
        fence: Callable[[int], Fence],
        producer: str,
        metrics: PlannerMetrics,
        on_fenced: Callable[[int], None] = lambda shard: None,
        on_hints: Callable[[Sequence[Hint]], None] = lambda hints: None,
        routing: KeepRouting | None = None,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
        failure_seconds: Sequence[float] = FAILURE_SECONDS,
    ) -> None:
        self.execution_id = execution_id
        self.shard = shard
        self._load_plan = load_plan
        self._rules = rules
        self._metrics = metrics
        self._on_fenced = on_fenced
        self._on_hints = on_hints
        self._setbacks = Setbacks(retry_seconds=retry_seconds, failure_seconds=failure_seconds)
        self._append = OwnAppends(log, shard=shard, fence=fence, producer=producer, rules=rules)
        self._known = FollowedLog(
            execution_id,
            log=log,
            routing=RoutingOf(execution_id, shard=shard, keep=routing or keep_no_routing(metrics, fence)),
            metrics=metrics,
            on_claim=rules.waiting.found,
            on_page=self._go_on,
        )
        self._planner: TurnPlanner | None = None
        self._asks: deque[Ask] = deque()
        self._in_turn: list[Ask] = []
        self._is_stopped = False
        self._task: asyncio.Task[None] | None = None
        self._moved_at: float | None = None
        self.trace = ""
        self._told_workload = b""
        """The bytes of the variables, if whoever started the execution has sent them; not proven to be that."""

    @property
    def state(self) -> State:
        """What has been folded."""
        return self._known.state

    @property
    def known_version(self) -> int:
        """Version up to which the log is known."""
        return self._known.version

    @property
    def proven_version(self) -> int:
        """Version up to which the log is known to be so; 0 for hearsay."""
        return 0 if self._known.is_hearsay else self.known_version

    @property
    def quarantined(self) -> str:
        """Why the execution is set aside, if it is."""
        return self._setbacks.quarantined

    @property
    def is_stuck(self) -> bool:
        """Whether a turn does not end, and does not come any further either."""
        moved_at = self._moved_at
        return moved_at is not None and asyncio.get_running_loop().time() - moved_at > LONGEST_TURN_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether the execution has ended, or is none at all, and nothing waits for an answer or a decision."""
        idle = not self._asks and self._task is None and self._known.is_settled and not self.quarantined
        return idle and (self.state.execution.status.is_final or self.known_version == 0)

    def take(self, event: StoredEvent) -> None:
        """An event arrived from the bus: maybe late, early or again."""
        if self._known.hear(event):
            self._wake()

    def notice(self, events: Sequence[StoredEvent], workload: bytes) -> None:
        """The first events, told before or after they were committed, and perhaps the bytes of the variables."""
        if self._planner is None:
            self._told_workload = workload
        if self._known.hear_ahead(events):
            self._wake()

    def expect(self, version: int) -> None:
        """The head of the stream is known to be at least here."""
        if self._known.expect(version):
            self._wake()

    def ask(self, ask: Ask) -> None:
        """Queue an ask; its future is answered by a turn."""
        if len(self._asks) >= MAX_INBOX:
            raise Overloaded(f"execution {self.execution_id} has {MAX_INBOX} requests waiting")
        self._asks.append(ask)
        self._wake()

    def granted_again(self, worker: Worker, command_id: str) -> GrantedCommand | None:
        """A command that this worker holds, as it was granted; None if it does not."""
        command = self.state.commands.get(command_id)
        if command is None or self.state.execution.status.is_final or not command.held_by(worker.worker_id):
            return None
        return grant(self.state, command, lease_seconds=self._rules.lease_seconds)

    def hints_for_claimable(self) -> list[Hint]:
        """Wake-ups for commands that nobody has claimed yet."""
        if self._planner is None or self.quarantined:
            return []
        return self._planner.hints_for_claimable(self.state)

    def retry_quarantined(self) -> None:
        """Give an execution that was set aside another chance now and then."""
        if self._setbacks.forgive_if_due():
            self._known.read_anew()
            self._planner = None
            self._wake()

    async def stop(self) -> None:
        """Stop taking turns; whoever waits is sent to the next owner, those of the turn under way too."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        elsewhere = NotOwner(shard=self.shard, address=None)
        self._refuse_all(elsewhere)
        for ask in self._in_turn:
            refuse(ask, elsewhere)

    def _wake(self) -> None:
        if self.quarantined:
            self._refuse_all(Unavailable(f"execution {self.execution_id} is quarantined: {self.quarantined}"))
        elif self._task is None and not self._is_stopped:
            self._task = asyncio.create_task(self._run(), name=f"execution-{self.execution_id}")

    def _has_work(self) -> bool:
        return bool(self._asks) or self._known.is_behind or self._lacks_plan()

    def _lacks_plan(self) -> bool:
        """Without one nobody is woken for commands that wait, so it is loaded although there is nothing to decide."""
        execution = self.state.execution
        return self._planner is None and bool(execution.catalog_id) and not execution.status.is_final

    async def _run(self) -> None:
        try:
            while self._has_work():
                self._go_on()
                try:
                    await self._turn()
                    self._setbacks.make_up()
                    self._known.leave_routing()
                except AWAY as exc:
                    self._refuse_all(exc)
                    self._known.doubt()
                    await self._setbacks.outlast(exc)
                except (Fenced, NotOwner):
                    logger.warning("planner.fenced", execution_id=str(self.execution_id), shard=self.shard)
                    self._refuse_all(NotOwner(shard=self.shard, address=None))
                    self._metrics.fenced.inc()
                    self._on_fenced(self.shard)
                    return  # The next owner goes on from the log.
                except Exception as exc:
                    if self._known.is_hearsay and isinstance(exc, NotFound):
                        self._forget()
                        continue
                    if not self._survives(exc):
                        return
                    await self._setbacks.pause()
        finally:
            self._task = self._moved_at = None
            if self._asks and not self.quarantined:
                self._wake()

    def _go_on(self) -> None:
        self._moved_at = asyncio.get_running_loop().time()

    def _survives(self, exc: Exception) -> bool:
        """One bad execution harms only itself: after three failures it is set aside, visibly."""
        survives = self._setbacks.bear(exc)
        self._known.doubt()
        if survives and self._known.begin_anew(exc):
            self._planner = None
        self._refuse_all(exc if isinstance(exc, NoetlError) else NoetlError("the planner failed on this execution"))
        for ask in self._in_turn:  # What becomes of them nobody knows: whoever asks again finds out.
            refuse(ask, Unavailable("the planner failed on this execution"))
        self._in_turn = []
        logger.exception("planner.turn_failed", execution_id=str(self.execution_id), failures=self._setbacks.failures)
        if survives:
            return True
        self._metrics.quarantined.inc()
        logger.error("planner.quarantined", execution_id=str(self.execution_id), reason=self.quarantined)
        return False

    def _forget(self) -> None:
        """The log knew nothing of what was told."""
        self._known.forget()
        self._planner = None
        self._told_workload = b""

    def _refuse_all(self, error: NoetlError) -> None:
        while self._asks:
            refuse(self._asks.popleft(), error)

    async def _turn(self) -> None:
        await self._catch_up()
        planner = await self._ready_planner()
        if planner is None:
            self._refuse_all(Unavailable(f"execution {self.execution_id} is not known here yet"))
            return
        while (cause := self._known.undecided) is not None:
            turn = planner.for_cause(self.state, cause)
            if not turn.drafts:
                self._known.settle_undecided()
            else:
                with span("planner.decide", parent=cause.envelope.trace or None):
                    await self._append_or_reload(planner, turn)
            self._known.advance()
        if self._asks:
            await self._answer_asks(planner)

    async def _ready_planner(self) -> TurnPlanner | None:
        if self._planner is None and self.state.execution.catalog_id:
            self.trace = self.state.execution.trace
            plan = await self._load_plan(self.state.execution, told=self._told_workload)
            self._planner = TurnPlanner(plan, self._rules)
            self._told_workload = b""
        return self._planner

    async def _catch_up(self) -> None:
        """Fold what the bus delivered; read from the log what it did not."""
        self._known.extend_by_heard()
        asked_of_nothing = bool(self._asks) and self.known_version == 0
        await self._known.catch_up(reads=asked_of_nothing or asks_for_parked(self.state, self._asks))

    async def _answer_asks(self, planner: TurnPlanner) -> None:
        """All that waits becomes one append; what a guard may refuse goes alone."""
        for _ in range(MAX_LOST_RACES):
            self._in_turn = asks = next_asks(self._asks, limit=MAX_ASKS_A_TURN)
            if not asks:
                return
            try:
                won = await self._answer(planner, asks)
            except (*AWAY, Fenced, NotOwner):
                self._put_back()
                raise
            except NoetlError as refusal:
                if self._known.is_in_doubt:
                    raise  # It is the log that cannot be read or folded, and nothing about those who asked.
                if await self._answer_one_by_one(planner, refusal):
                    continue
            else:
                if won:
                    self._in_turn = []
                    return
            self._put_back()
            self._metrics.lost_races.inc()
            self._known.advance()
            if self._known.undecided is not None:
                return  # The next turn decides first.
        await self._append_results_alone(planner)

    async def _answer(self, planner: TurnPlanner, asks: Sequence[Ask]) -> bool:
        turn = planner.for_asks(self.state, asks)
        with span("planner.turn", parent=self.trace or None, attributes={"noetl.asks": len(asks)}):
            try:
                won = await self._append_or_reload(planner, turn)
            except Fenced as refusal:
                if turn.asked_by is None or refusal.facts.get("role") != turn.asked_by.role:
                    raise
                for ask in asks:  # Whoever asked was deposed, and we were not: it is his refusal alone.
                    refuse(ask, refusal)
                return True
        if won:
            self._asks.extendleft(reversed(turn.left))
        return won

    async def _answer_one_by_one(self, planner: TurnPlanner, refusal: NoetlError) -> bool:
        """Something about one of the asks is refused: the others must not pay for it. Whether no race was lost."""
        asks, self._in_turn = self._in_turn, []
        if len(asks) == 1:
            refuse(asks[0], refusal)
            return True
        for place, ask in enumerate(asks):
            self._in_turn = asks[place:]
            try:
                if not await self._answer(planner, [ask]):
                    return False
            except (*AWAY, Fenced, NotOwner):
                self._put_back()
                raise
            except NoetlError as own:
                if self._known.is_in_doubt:
                    raise
                refuse(ask, own)
        self._in_turn = []
        return True

    def _put_back(self) -> None:
        self._asks.extendleft(reversed(self._in_turn))
        self._in_turn = []

    async def _append_results_alone(self, planner: TurnPlanner) -> None:
        """A result must not wait for a race that others keep winning: its decision follows from the log."""
        self._in_turn = asks = next_asks(self._asks, limit=MAX_ASKS_A_TURN)
        for ask in asks:
            if isinstance(ask, Complete | EndFrame):
                await self._append_result_alone(planner, ask)
            else:
                refuse(ask, Conflict(f"execution {self.execution_id} is too busy"))
        self._in_turn = []

    async def _append_result_alone(self, planner: TurnPlanner, ask: Complete | EndFrame) -> None:
        try:
            appended = await self._append(
                self.state.execution, planner.results_alone(ask, self.state), expected_version=None
            )
        except NoetlError as refusal:
            refuse(ask, refusal)
            return
        version = appended[-1].event.stream_version
        self._known.want(version)
        if not ask.answer.done():
            ask.answer.set_result(ask.answer_alone(version))  # type: ignore[arg-type]  # each its own

    async def _append_or_reload(self, planner: TurnPlanner, turn: Turn) -> bool:
        """Append a turn at the head and answer; if somebody else was first, fold what they wrote and say so."""
        appended: Sequence[StoredEvent] | None = None
        try:
            appended = await self._append_at_head(turn)
        finally:
            planner.settle(turn, appended=appended is not None)
        if appended is None:
            return False
        self._known.follow(appended)
        tell(turn)
        await asyncio.sleep(0)  # Whoever was answered goes on first, unless somebody wants to see what was folded.
        self._known.fold_followed()
        return True

    async def _append_at_head(self, turn: Turn) -> Sequence[StoredEvent] | None:
        """What was appended; None if somebody else was first."""
        if not turn.drafts:
            return ()
        known = self.known_version
        try:
            appended = await self._append(
                self.state.execution, turn.drafts, turn.hints, expected_version=known, asked_by=turn.asked_by
            )
        except (Conflict, KeyTaken, AlreadyTerminal):
            await self._known.read_to_head(at_least=known + 1)
            return None
        events = [outcome.event for outcome in appended]
        if any(outcome.duplicate for outcome in appended):
            # Some of it had been appended before, by us or by another owner: the log has the whole story, and maybe
            # much that came after it.
            await self._known.read_to_head(at_least=max(event.stream_version for event in events))
            return None
        self._known.prove()
        if turn.hints:
            self._on_hints(turn.hints)
        self._metrics.leases_ended(leases_that_ended(self.state, turn.drafts))
        self._metrics.turns.inc()
        self._metrics.events_appended.inc(len(events))
        self._metrics.handed_over.inc(len(turn.handed))
        self._metrics.evaluations_issued.inc(sum("evaluation" in draft.meta for draft in turn.drafts))
        logger.debug("planner.turn", execution_id=str(self.execution_id), events=len(events))
        return events
