"""One turn of an execution, decided purely: what is asked and what follows from it becomes one append."""

from __future__ import annotations

from collections.abc import Sequence

from noetl_core.append import END_KEY, Hint
from noetl_core.canonical import encode
from noetl_core.catalog import spec_of, to_draft
from noetl_core.causes import is_cause
from noetl_core.children.ending import WORK_KIND
from noetl_core.commands.events import (
    CallDone,
    CallFailed,
    CommandClaimed,
    CommandCompleted,
    CommandFailed,
    CommandHeartbeat,
    CommandStarted,
)
from noetl_core.commands.state import Command, CommandStatus
from noetl_core.envelope import Draft, check_result_shape
from noetl_core.errors import NoetlError
from noetl_core.executions.decide import decide
from noetl_core.executions.events import CtxUpdated
from noetl_core.executions.plan import Plan
from noetl_core.executions.state import ExecutionStatus
from noetl_core.fold import State, fold
from noetl_core.placement import TOO_FAR
from noetl_core.ports.commands import (
    Abandonment,
    ClaimOutcome,
    CommandKey,
    Completion,
    Worker,
)
from noetl_core.ports.deadlines import DeadlinesPassed
from noetl_core.ports.steering import SteerAction, Steered
from noetl_core.recorded import Recorded, as_if_recorded
from noetl_core.stages.events import StageOpened
from noetl_core.stages.versions import next_aggregate_version
from noetl_core.values import replace

from noetl_planner.application.abandoning import abandonment, silent_command
from noetl_planner.application.asks import (
    Abandon,
    AbandonFrame,
    Ask,
    BeatFrame,
    Claim,
    ClaimFrame,
    Complete,
    EndFrame,
    Heartbeat,
    LookAtStage,
    Park,
    PassDeadlines,
    StartFrame,
    Steer,
    TellChunk,
    fence_of,
)
from noetl_planner.application.claims import claim_refusal, claimable, open_command, was_closed_by
from noetl_planner.application.deadline_drafts import MAX_A_TURN, next_passed
from noetl_planner.application.frame_abandoning import silent_frame
from noetl_planner.application.frame_hints import hints_for_slots, hints_for_touched
from noetl_planner.application.frame_turn import FrameTurns
from noetl_planner.application.grants import grant, placement_of, rank_of
from noetl_planner.application.parking import is_repeated, parked_draft
from noetl_planner.application.steering import steering_draft
from noetl_planner.application.stop_hints import stop_hints
from noetl_planner.application.streaming import Verdict, judge, partial_draft
from noetl_planner.application.turn_parts import Turn, TurnRules, constant

OFFERS = frozenset({"command.issued", "command.parked", "command.resumed"})
"""What may leave a command that any worker can claim; one that is parked may have been answered before."""

MAX_DRAFTS_A_TURN = 3_000
"""Completions of a wide loop lead to many items each; what is asked after so many facts waits for the next turn."""


class TurnPlanner:
    """Plans turns of one execution; holds no state of its own."""

    def __init__(self, plan: Plan, rules: TurnRules) -> None:
        self._plan = plan
        self._rules = rules
        self._frames = FrameTurns(plan, rules, add=self._add, decide_last=self._decide_last)

    def for_cause(self, state: State, cause: Recorded) -> Turn:
        """The decision that an event of the log still lacks."""
        turn = Turn(state=state, now=self._rules.now())
        self._decide(turn, cause, event_id=str(cause.envelope.event_id))
        self._hint_unclaimed(turn)
        turn.hints.extend(stop_hints(state, turn.state, turn.drafts))
        return turn

    def for_asks(self, state: State, asks: Sequence[Ask]) -> Turn:
        """Everything that is asked, with the decisions that it causes."""
        turn = Turn(state=state, now=self._rules.now(), asked_by=fence_of(asks))
        for place, ask in enumerate(asks):
            if len(turn.drafts) >= MAX_DRAFTS_A_TURN:
                turn.left = asks[place:]
                break
            try:
                match ask:
                    case Claim():
                        self._claim(turn, ask)
                    case Complete():
                        self._complete(turn, ask)
                    case TellChunk():
                        self._tell_chunk(turn, ask)
                    case Heartbeat():
                        self._heartbeat(turn, ask)
                    case Park():
                        self._park(turn, ask)
                    case Abandon():
                        self._abandon(turn, ask)
                    case PassDeadlines():
                        self._pass_deadlines(turn, ask)
                    case Steer():
                        self._steer(turn, ask)
                    case ClaimFrame() | StartFrame() | EndFrame() | BeatFrame() | AbandonFrame() | LookAtStage():
                        self._frames.answer(turn, ask)
            except NoetlError as refusal:
                turn.refusals.append((ask, refusal))
        self._hint_unclaimed(turn)
        turn.hints.extend(stop_hints(state, turn.state, turn.drafts))
        return turn

    def results_alone(self, ask: Complete | EndFrame, state: State) -> tuple[Draft, ...]:
        """A result without the decisions that follow from it: for a turn that cannot win the race for the head."""
        turn = Turn(state=state, now=self._rules.now())
        if isinstance(ask, EndFrame):
            self._frames.end_alone(turn, ask)
            return tuple(turn.drafts)
        command = open_command(state, ask.command_id, ask.worker)
        self._close(turn, command, ask)
        return tuple(turn.drafts)

    def _claim(self, turn: Turn, ask: Claim) -> None:
        key = CommandKey(execution_id=turn.state.execution.execution_id, command_id=ask.command_id)
        command = turn.state.commands.get(ask.command_id)
        refusal = claim_refusal(turn.state, command, ask.worker)
        if command is None or refusal:
            turn.answers.append((ask, constant(ClaimOutcome(key=key, refusal=refusal))))
            return
        if command.is_claimable and not placement_of(turn.state, command, ask.worker).is_allowed:
            turn.answers.append((ask, constant(ClaimOutcome(key=key, refusal=TOO_FAR))))
            return
        if command.is_claimable:
            command = self._grant(turn, command, ask.worker, after=None)
        granted = grant(turn.state, command, lease_seconds=self._rules.lease_seconds)
        turn.answers.append((ask, constant(ClaimOutcome(key=key, command=granted))))

    def _complete(self, turn: Turn, ask: Complete) -> None:
        check_result_shape(ask.result)
        state = turn.state
        known = state.commands.get(ask.command_id)
        if known is not None and was_closed_by(known, ask.worker):
            self._answer_again(turn, ask, known)
            return
        command = open_command(state, ask.command_id, ask.worker)
        first = len(turn.drafts)
        self._close(turn, command, ask)
        closing = turn.state.commands[command.command_id]
        self._decide_last(turn)
        following = self._next_for(turn, ask, first) if ask.wants_next else None
        granted = None
        if following is not None:
            claimed = self._grant(turn, following, ask.worker, after=command.command_id)
            granted = grant(turn.state, claimed, lease_seconds=self._rules.lease_seconds)
        turn.answers.append((ask, constant(Completion(stream_version=closing.stream_version, next=granted))))

    def _answer_again(self, turn: Turn, ask: Complete, known: Command) -> None:
        """The worker did not hear the first answer: it gets the same one, with the command that came with it."""
        handed = next(
            (
                command
                for command in turn.state.commands.values()
                if command.held_by(ask.worker.worker_id) and command.claimed_after == known.command_id
            ),
            None,
        )
        granted = grant(turn.state, handed, lease_seconds=self._rules.lease_seconds) if handed else None
        turn.answers.append((ask, constant(Completion(stream_version=known.stream_version, next=granted))))

    def _tell_chunk(self, turn: Turn, ask: TellChunk) -> None:
        command = open_command(turn.state, ask.command_id, ask.worker)
        verdict = judge(turn.state.execution, command, ask.chunk)
        if verdict is Verdict.TAKE:
            draft = partial_draft(self._plan, command, ask.chunk)
            self._add(turn, draft)
            if draft.meta.get("queued"):
                self._decide_last(turn)
        turn.answers.append((ask, constant(verdict is not Verdict.WAIT)))

    def _heartbeat(self, turn: Turn, ask: Heartbeat) -> None:
        command = turn.state.commands.get(ask.command_id)
        ended = turn.state.execution.status.is_final
        if ended or command is None or not command.held_by(ask.worker.worker_id):
            turn.answers.append((ask, constant(False)))
            return
        beat = CommandHeartbeat(
            **command.of_command,
            worker_id=ask.worker.worker_id,
            lease_seconds=self._rules.lease_seconds,
            progress=ask.progress,
        )
        self._add(
            turn,
            to_draft(
                beat,
                idempotency_key=f"command/{command.command_id}/heartbeat/{command.aggregate_version}",
                trace=command.trace,
            ),
        )
        turn.answers.append((ask, constant(True)))

    def _park(self, turn: Turn, ask: Park) -> None:
        """A call that was answered before it is parked is claimable at once, and workers are told with it."""
        known = turn.state.commands.get(ask.command_id)
        if known is None or not is_repeated(known, ask):
            self._add(turn, parked_draft(open_command(turn.state, ask.command_id, ask.worker), ask))
        turn.answers.append((ask, constant(turn.state.stream_version)))

    def _abandon(self, turn: Turn, ask: Abandon) -> None:
        command = silent_command(turn.state, ask)
        self._add(turn, abandonment(command, ask, max_attempts=self._plan.max_attempts))
        version = turn.state.stream_version
        self._decide_last(turn)
        retried = any(draft.event_type == "command.issued" for draft in turn.drafts)
        attempt = command.attempt + 1 if retried and command.attempt < self._plan.max_attempts else 0
        turn.answers.append((ask, constant(Abandonment(stream_version=version, next_attempt=attempt))))

    def _pass_deadlines(self, turn: Turn, ask: PassDeadlines) -> None:
        """One after the other, since each may make the next one void; what is left is found by the next look."""
        passed = 0
        while passed < MAX_A_TURN and len(turn.drafts) < MAX_DRAFTS_A_TURN:
            draft = next_passed(turn.state, through=ask.through) or silent_frame(
                turn.state, through=ask.through, reclaimer=ask.reclaimer
            )
            if draft is None:
                break
            self._add(turn, draft)
            self._decide_last(turn)
            passed += 1
        cascades = turn.state.execution.cascades
        answer = DeadlinesPassed(passed=passed, stream_version=turn.state.stream_version, cascades=cascades)
        turn.answers.append((ask, constant(answer)))

    def _steer(self, turn: Turn, ask: Steer) -> None:
        draft = steering_draft(turn.state, ask)
        if draft is not None:
            self._add(turn, draft)
            if ask.action is SteerAction.RESUME:
                waiting = claimable(turn.state)  # since before the pause; nobody is woken for them otherwise
                self._decide_last(turn)
                turn.hints.extend(self.hint(turn.state, command) for command in waiting)
                turn.hints.extend(hints_for_slots(turn.state, self._plan, self._rules))
        execution = turn.state.execution
        steered = Steered(stream_version=turn.state.stream_version, status=execution.status.value)
        turn.answers.append((ask, constant(steered)))

    def _close(self, turn: Turn, command: Command, ask: Complete) -> None:
        failed = ask.result["status"] == "error"
        call = (CallFailed if failed else CallDone)(
            **command.of_command,
            result=dict(ask.result),
            logs=ask.logs.to_json() if ask.logs else None,
            **command.of_item,
        )
        end = (CommandFailed if failed else CommandCompleted)(
            **command.of_command, worker_id=ask.worker.worker_id, **command.of_item
        )
        if ask.variables:
            refs = {name: ref.to_json() for name, ref in ask.variables.refs.items()}
            values, loop_id = dict(ask.variables.values), command.loop_id or None
            update = CtxUpdated(step=command.step, values=values, refs=refs or None, loop_id=loop_id)
            key = f"command/{command.command_id}/set"
            self._add(turn, to_draft(update, idempotency_key=key, trace=command.trace))
        for content, what in ((call, "call"), (end, "end")):
            key = f"command/{command.command_id}/{what}"
            self._add(turn, to_draft(content, idempotency_key=key, trace=command.trace))

    def _grant(self, turn: Turn, command: Command, worker: Worker, *, after: str | None) -> Command:
        placement = placement_of(turn.state, command, worker)
        claimed = CommandClaimed(
            **command.of_command,
            worker_id=worker.worker_id,
            lease_seconds=self._rules.lease_seconds,
            after=after,
            **placement.facts(),
            **command.of_item,
        )
        started = CommandStarted(**command.of_command, worker_id=worker.worker_id, **command.of_item)
        # One that was parked is claimed again, and each time is another fact.
        again = f"/{command.aggregate_version}" if command.status is CommandStatus.RESUMED else ""
        for content, what in ((claimed, "claim"), (started, "start")):
            key = f"command/{command.command_id}/{what}{again}"
            self._add(turn, to_draft(content, idempotency_key=key, trace=command.trace))
        return turn.state.commands[command.command_id]

    def _next_for(self, turn: Turn, ask: Complete, first: int) -> Command | None:
        """A command that this completion caused, and that the worker's pool may run; none if it ended the execution."""
        for draft in turn.drafts[first:] if not turn.state.execution.status.is_final else ():
            command = turn.state.commands.get(draft.command_id)
            if draft.event_type == "command.issued" and command and command.pool == ask.worker.pool:
                return command
        return None

    def _decide_last(self, turn: Turn) -> None:
        """Decide on the draft that was added last, which is a cause."""
        place = len(turn.drafts) - 1
        self._decide(turn, self._as_if(turn, turn.drafts[-1], turn.state.stream_version), event_id=f"@{place}")

    def _decide(self, turn: Turn, cause: Recorded, *, event_id: str) -> None:
        """What follows from a cause; `event_id` names it where its event has no id yet as well."""
        if not is_cause(cause):
            raise AssertionError(f"{cause.envelope.event_type} causes nothing")
        version = cause.stream_version
        for index, content in enumerate(decide(turn.state, cause, self._plan)):
            terminal = spec_of(content).terminal
            draft = to_draft(
                content,
                idempotency_key=END_KEY if terminal else f"decision/{version}/{index}",
                event_time=cause.envelope.event_time,
                causation_id=str(cause.envelope.event_id) if cause.envelope.event_id else "",
                parent_event_id=event_id if isinstance(content, StageOpened) else "",
                meta={"decided_through": version},
                trace=cause.envelope.trace,
            )
            self._add(turn, draft)

    def _add(self, turn: Turn, draft: Draft) -> None:
        dated = draft if draft.event_time else replace(draft, event_time=turn.now)
        turn.drafts.append(dated)
        turn.state = fold(turn.state, self._as_if(turn, dated, turn.state.stream_version + 1))

    def _as_if(self, turn: Turn, draft: Draft, stream_version: int) -> Recorded:
        state = turn.state
        execution = state.execution
        return as_if_recorded(
            draft,
            tenant_id=execution.tenant_id,
            organization_id=execution.organization_id,
            execution_id=execution.execution_id,
            stream_version=stream_version,
            aggregate_version=next_aggregate_version(state, draft),
            time=turn.now,
        )

    def _hint_unclaimed(self, turn: Turn) -> None:
        """What was issued goes to workers that wait, in the same append; others are woken for the rest."""
        offered = [draft.command_id for draft in turn.drafts if draft.event_type in OFFERS]
        for command_id in offered:
            command = turn.state.commands[command_id]
            if command.is_claimable and not self._hand_over(turn, command):
                turn.hints.append(self.hint(turn.state, command))
        turn.hints.extend(hints_for_touched(turn.state, turn.drafts, self._plan, self._rules))

    def _hand_over(self, turn: Turn, command: Command) -> bool:
        """Claim a command for a worker that waits, if there is one: the first of a turn for the nearest."""
        if turn.state.execution.status is not ExecutionStatus.RUNNING:
            return False
        waiting, is_first = self._rules.waiting, not turn.handed
        waiter = waiting.pick(command.pool, rank=lambda one: rank_of(turn.state, command, one, by_distance=is_first))
        if waiter is None:
            return False
        try:
            claimed = self._grant(turn, command, waiter.worker, after=None)
            granted = grant(turn.state, claimed, lease_seconds=self._rules.lease_seconds)
        except BaseException:
            waiting.put_back(waiter)
            raise
        turn.handed.append((waiter, granted))
        return True

    def settle(self, turn: Turn, *, appended: bool) -> None:
        """Tell the workers that have waited, or let them wait on; for every turn, exactly once."""
        for waiter, command in turn.handed:
            if appended:
                self._rules.waiting.hand_over(waiter, command)
            else:
                self._rules.waiting.put_back(waiter)

    def hints_for_claimable(self, state: State) -> list[Hint]:
        """Wake-ups for everything that nobody has claimed yet."""
        commands = [self.hint(state, command) for command in claimable(state)]
        return [*commands, *hints_for_slots(state, self._plan, self._rules)]

    def hint(self, state: State, command: Command) -> Hint:
        """A wake-up for one command."""
        execution_id = state.execution.execution_id
        return Hint(
            subject=self._rules.work_subject(command.pool, WORK_KIND),
            body=encode({"execution_id": str(execution_id), "command_id": command.command_id}),
            execution_id=execution_id,
            message_id=f"{execution_id}/{state.stream_version}/{command.command_id}",
        )
