"""Histories of executions for tests: written by hand or drawn at random, numbered and chained as the log does it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st
from noetl_core.append import AppendRequest, Head, LogView, StreamAppend, StreamStart, prepare
from noetl_core.catalog import is_terminal, spec_of, to_draft
from noetl_core.commands.events import (
    CallDone,
    CallFailed,
    CommandAbandoned,
    CommandClaimed,
    CommandCompleted,
    CommandFailed,
    CommandHeartbeat,
    CommandIssued,
    CommandStarted,
)
from noetl_core.envelope import Draft, StoredEvent, chain_checksum
from noetl_core.errors import NoetlError
from noetl_core.executions.events import (
    CtxUpdated,
    ExecutionCancelled,
    PlaybookCompleted,
    PlaybookFailed,
    PlaybookInitialized,
    StepEntered,
    StepExited,
    StepSkipped,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowInitialized,
)
from noetl_core.ids import command_id
from noetl_core.numbering import number
from noetl_core.payloads import refer_to
from noetl_core.ports.event_log import EventLog
from noetl_core.recorded import Recorded, record
from noetl_core.timestamps import format_time

EXECUTION = 7_100_000_000_000_000_001
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
WORKLOAD = refer_to(b"{}", tenant_id="default", organization_id="default", media_type="application/json")


class History:
    """The events of one execution; each append is one second after the one before, by the log's clock."""

    def __init__(
        self,
        execution_id: int = EXECUTION,
        *,
        tenant_id: str = "default",
        organization_id: str = "default",
        parent_execution_id: int | None = None,
        started_at: datetime = NOON,
        shard_count: int = 64,
    ) -> None:
        self.execution_id = execution_id
        self.now = started_at
        self.stored: list[StoredEvent] = []
        self.transactions: list[tuple[Draft, ...]] = []
        """What was added at once, to be appended to a real log in the same way."""
        self._tenant_id = tenant_id
        self._organization_id = organization_id
        self._start = StreamStart(parent_execution_id=parent_execution_id)
        self._shard_count = shard_count
        self._head: Head | None = None
        self._aggregates: dict[tuple[int, str], int] = {}

    def add(self, *contents: object) -> History:
        """Append typed events, or drafts as they are, in one transaction."""
        drafts = tuple(
            one if isinstance(one, Draft) else self._draft(one, place)
            for place, one in enumerate(contents, start=len(self.stored) + 1)
        )
        request = self.request(drafts, starts=self._head is None)
        self.now += timedelta(seconds=1)
        ids = iter(range(self.execution_id * 1000 + len(self.stored), 2**80))
        prepared = prepare(
            request,
            next_event_id=lambda: next(ids) % 2**63,
            now=self.now - timedelta(milliseconds=5),
            shard_count=self._shard_count,
        )
        heads = {} if self._head is None else {self.execution_id: self._head}
        verdict = number([prepared], LogView(now=self.now, heads=heads, aggregate_versions=dict(self._aggregates)))
        outcome = verdict.outcomes[0]
        if isinstance(outcome, NoetlError):
            raise outcome
        for placed in verdict.events:
            self._aggregates[(self.execution_id, placed.aggregate_id)] = placed.stored.aggregate_version
        moved = [*verdict.heads, *(head for head, _ in verdict.created)]
        self._head = replace(moved[0], version=len(self.stored) + len(verdict.events))
        self.stored.extend(placed.stored for placed in verdict.events)
        self.transactions.append(drafts)
        return self

    def request(self, drafts: tuple[Draft, ...], *, starts: bool) -> AppendRequest:
        """What asks a log to append some drafts of this history; the first ones start its stream."""
        stream = StreamAppend(execution_id=self.execution_id, drafts=drafts, start=self._start if starts else None)
        return AppendRequest(tenant_id=self._tenant_id, organization_id=self._organization_id, streams=(stream,))

    async def append_to(self, log: EventLog) -> list[StoredEvent]:
        """Append the history to a log, transaction by transaction; the log numbers it anew."""
        stored: list[StoredEvent] = []
        for place, drafts in enumerate(self.transactions):
            appended = await log.append(self.request(drafts, starts=place == 0))
            stored.extend(one.event for one in appended)
        return stored

    @property
    def recorded(self) -> list[Recorded]:
        """The events as a fold gets them."""
        return [record(event) for event in self.stored]

    def _draft(self, content: object, place: int) -> Draft:
        end = is_terminal(spec_of(content).name)
        return to_draft(content, idempotency_key="execution/end" if end else f"test/{place}", trace=TRACE)


def two_steps(history: History) -> History:
    """The 18 events of a playbook with two steps, `first` and `second`, that ends well, in 5 transactions."""
    one = issued(history, "first")
    two = issued(history, "second", cause_step="first")
    history.add(initialized())
    history.add(WorkflowInitialized(entry_step="first"), StepEntered(step="first", activation=1, consumes=("",)), one)
    history.add(claimed(one), started(one))
    history.add(
        done(one),
        completed(one),
        StepExited(step="first", activation=1, status="ok", fired=("second",)),
        StepEntered(step="second", activation=1, cause_step="first", consumes=("first",)),
        two,
        replace(claimed(two), after=one.command_id),
        started(two),
    )
    return history.add(
        done(two),
        completed(two),
        StepExited(step="second", activation=1, status="ok"),
        WorkflowCompleted(),
        PlaybookCompleted(),
    )


def initialized(path: str = "examples/hello") -> PlaybookInitialized:
    return PlaybookInitialized(path=path, version=3, catalog_id="4711", payload_ref=WORKLOAD)


def issued(
    history: History, step: str, *, activation: int = 1, attempt: int = 1, cause_step: str = ""
) -> CommandIssued:
    identity = command_id(execution_id=history.execution_id, step=step, activation=activation, index=0, attempt=attempt)
    return CommandIssued(command_id=identity, step=step, activation=activation, attempt=attempt, cause_step=cause_step)


def claimed(command: CommandIssued, *, worker_id: str = "worker-1", lease_seconds: float = 30.0) -> CommandClaimed:
    return CommandClaimed(
        command_id=command.command_id, step=command.step, worker_id=worker_id, lease_seconds=lease_seconds
    )


def started(command: CommandIssued, *, worker_id: str = "worker-1") -> CommandStarted:
    return CommandStarted(command_id=command.command_id, step=command.step, worker_id=worker_id)


def heartbeat(command: CommandIssued, *, worker_id: str = "worker-1", lease_seconds: float = 30.0) -> CommandHeartbeat:
    return CommandHeartbeat(
        command_id=command.command_id, step=command.step, worker_id=worker_id, lease_seconds=lease_seconds
    )


def done(command: CommandIssued, **context: object) -> CallDone:
    result = {"status": "ok", "reference": None, "parent_ref": None, "context": context}
    return CallDone(command_id=command.command_id, step=command.step, result=result)


def failed_call(command: CommandIssued, message: str = "boom") -> CallFailed:
    result = {"status": "error", "reference": None, "parent_ref": None, "context": {"message": message}}
    return CallFailed(command_id=command.command_id, step=command.step, result=result)


def completed(command: CommandIssued, *, worker_id: str = "worker-1") -> CommandCompleted:
    return CommandCompleted(command_id=command.command_id, step=command.step, worker_id=worker_id)


def failed(command: CommandIssued, *, worker_id: str = "worker-1") -> CommandFailed:
    return CommandFailed(command_id=command.command_id, step=command.step, worker_id=worker_id)


def abandoned(command: CommandIssued, *, worker_id: str = "worker-1") -> CommandAbandoned:
    return CommandAbandoned(
        command_id=command.command_id,
        step=command.step,
        previous_owner=worker_id,
        reclaimer="urn:noetl:reaper:test",
        prior_lease_until=format_time(NOON),
        previous_attempt=command.attempt,
        max_attempts=3,
    )


@dataclass(slots=True)
class _Run:
    """What is open in a history that is being drawn, so that what follows is something a planner could have written."""

    history: History
    choose: random.Random
    activations: dict[str, int] = field(default_factory=dict)
    waiting: list[CommandIssued] = field(default_factory=list)
    running: list[CommandIssued] = field(default_factory=list)

    def go_on(self) -> None:
        moves = [self._enter, self._note, self._set, self._tell]
        if self.waiting:
            moves += [self._claim] * 3
        if self.running:
            moves += [self._beat, self._finish, self._finish, self._fail, self._abandon]
        self.choose.choice(moves)()

    def _enter(self) -> None:
        step = self.choose.choice(("a", "b", "c/ü", "d"))
        if self.choose.random() < 0.1 and step not in self.activations:
            self.history.add(StepSkipped(step=step))
            return
        activation = self.activations.get(step, 0) + 1
        self.activations[step] = activation
        command = issued(self.history, step, activation=activation)
        self.history.add(StepEntered(step=step, activation=activation, consumes=("",)), command)
        self.waiting.append(command)

    def _note(self) -> None:
        self.history.add(Draft(event_type="user.note", idempotency_key=f"note/{len(self.history.stored)}"))

    def _tell(self) -> None:
        """Something about a business object of the user's."""
        said = self.choose.choice(
            (
                {"state": {"total": 3, "by": {"name": "é"}}, "status": "open"},
                {"patch": {"by": {"name": None, "at": 1.5}}, "derived_from": [{"type": "cart", "id": "9"}]},
                {"deleted": True},
                {},
                {"nonsense": True},
            )
        )
        told = {"type": "order", "id": self.choose.choice(("a/1", "ü")), **said}
        draft = Draft(
            event_type="order.told",
            idempotency_key=f"told/{len(self.history.stored)}",
            meta={"business_object": told},
            payload_ref=self.choose.choice((None, WORKLOAD)),
        )
        self.history.add(draft)

    def _set(self) -> None:
        name = self.choose.choice("xyz")
        if self.choose.random() < 0.5:
            self.history.add(CtxUpdated(step="a", values={name: self.choose.choice((1, None, [{}], "é"))}))
        else:
            self.history.add(CtxUpdated(step="a", values={}, refs={name: WORKLOAD.to_json()}))

    def _claim(self) -> None:
        command = self._take(self.waiting)
        self.history.add(claimed(command, lease_seconds=self.choose.choice((0.5, 30.0))), started(command))
        self.running.append(command)

    def _beat(self) -> None:
        self.history.add(heartbeat(self.choose.choice(self.running)))

    def _finish(self) -> None:
        command = self._take(self.running)
        size = self.choose.choice((0, 1.5, 2**53 - 1, 1e22, -7))
        self.history.add(
            done(command, size=size, text="é\U0001f600"),
            StepExited(step=command.step, activation=command.activation, status="ok", fired=("a",)),
            completed(command),
        )

    def _fail(self) -> None:
        command = self._take(self.running)
        self.history.add(
            failed_call(command),
            StepExited(
                step=command.step,
                activation=command.activation,
                status="error",
                error=self.choose.choice(({}, {"code": "python.error", "message": "zero \u0000"})),
                handled=self.choose.choice((True, False)),
            ),
            failed(command),
        )

    def _abandon(self) -> None:
        command = self._take(self.running)
        again = issued(self.history, command.step, activation=command.activation, attempt=command.attempt + 1)
        self.history.add(abandoned(command), again)
        self.waiting.append(again)

    def end(self) -> None:
        self.history.add(
            *self.choose.choice(
                (
                    (WorkflowCompleted(), PlaybookCompleted()),
                    (WorkflowFailed(error={"code": "x"}), PlaybookFailed(error={"code": "x", "at": [1, {}]})),
                    (ExecutionCancelled(reason="enough", cancelled_by="ada"),),
                )
            )
        )

    def _take(self, commands: list[CommandIssued]) -> CommandIssued:
        return commands.pop(self.choose.randrange(len(commands)))


def choices(seed: int) -> random.Random:
    """The choices that a test makes, the same for the same seed."""
    return random.Random(seed)  # noqa: S311 - nobody is to be kept from guessing them


def drawn_history(
    choose: random.Random, *, execution_id: int = EXECUTION, moves: int = 12, ends: bool = True
) -> History:
    """A history that a planner could have written: steps run, fail, lose their worker, run again."""
    history = History(execution_id).add(initialized())
    history.add(WorkflowInitialized(entry_step="a"))
    run = _Run(history, choose)
    for _ in range(moves):
        run.go_on()
    if ends:
        run.end()
    return history


@st.composite
def histories(draw: st.DrawFn, *, max_moves: int = 16, execution_id: int = EXECUTION) -> History:
    """Histories for property tests."""
    choose = choices(draw(st.integers(0, 2**32)))
    moves = draw(st.integers(0, max_moves))
    return drawn_history(choose, execution_id=execution_id, moves=moves, ends=draw(st.booleans()))


def shuffled_delivery(
    choose: random.Random, events: Sequence[StoredEvent], *, loss: float = 0.3, doubling: float = 0.3
) -> list[StoredEvent]:
    """What a bad day on the bus makes of events: some lost, some doubled, in any order."""
    delivered = [event for event in events if choose.random() >= loss]
    delivered += [event for event in events if choose.random() < doubling]
    choose.shuffle(delivered)
    return delivered


def sealed(events: Sequence[StoredEvent]) -> list[StoredEvent]:
    """The events under a chain of their own, as somebody makes one who can write the log."""
    chained: list[StoredEvent] = []
    for event in events:
        before = chained[-1].checksum if chained else ""
        checksum = chain_checksum(
            prev_checksum=before,
            stream_version=event.stream_version,
            aggregate_version=event.aggregate_version,
            ingest_time=event.ingest_time,
            body=event.body,
        )
        chained.append(event._replace(prev_checksum=before, checksum=checksum))
    return chained
