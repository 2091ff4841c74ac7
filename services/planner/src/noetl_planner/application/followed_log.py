"""The log of one execution as far as it is known here: heard of, read, or just appended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from noetl_core.commands.events import CommandClaimed
from noetl_core.envelope import StoredEvent
from noetl_core.fold import State
from noetl_core.journal import Journal
from noetl_core.ports.commands import CommandKey
from noetl_core.ports.event_log import EventLog, EventPage
from noetl_core.recorded import Recorded

from noetl_planner.application.claims import holders
from noetl_planner.application.heard import Heard
from noetl_planner.application.routing_snapshots import READ_PAGE, RoutingOf
from noetl_planner.telemetry import PlannerMetrics


class FollowedLog:
    """Folds in order what comes from any side, and reads what nobody has told."""

    def __init__(
        self,
        execution_id: int,
        *,
        log: EventLog,
        routing: RoutingOf,
        metrics: PlannerMetrics,
        on_claim: Callable[[str, CommandKey], None],
        on_page: Callable[[], None],
    ) -> None:
        self._execution_id = execution_id
        self._log = log
        self._routing = routing
        self._metrics = metrics
        self._on_claim = on_claim
        """Told, by worker, of claims that were not made here."""
        self._on_page = on_page
        """Told that reading goes on: a long history takes its time."""
        self._heard = Heard()
        self._journal = Journal(execution_id)
        self._appended: Sequence[StoredEvent] = ()
        """By the last turn, and not folded yet."""
        self._unfoldable: Exception | None = None
        self._must_read = False
        self._claimed_elsewhere: set[str] = set()
        """Commands whose claims came from the log or the bus, while it is not known whether they still stand."""

    @property
    def state(self) -> State:
        """What has been folded."""
        self._fold_appended()
        return self._journal.state

    @property
    def version(self) -> int:
        """Version up to which the log is known."""
        self._fold_appended()
        return self._journal.known_version

    @property
    def is_hearsay(self) -> bool:
        """Whether all that is known was told ahead of its commit, which may still come to nothing."""
        return self._heard.is_hearsay

    @property
    def undecided(self) -> Recorded | None:
        """The cause whose decision is not in the log; nothing after it is folded."""
        return self._journal.undecided

    @property
    def is_settled(self) -> bool:
        """Whether everything that is known is folded and decided."""
        return self._journal.is_settled

    @property
    def is_in_doubt(self) -> bool:
        """Whether the log is to be read before anything else is decided: what it has is not what is known."""
        return self._must_read

    @property
    def is_behind(self) -> bool:
        """Whether the log is said to go further, or something in it waits for a decision."""
        return self._heard.wanted_version > self.version or not self._journal.is_settled

    def hear(self, event: StoredEvent) -> bool:
        """An event from the bus: maybe late, early or again. Whether it is news."""
        self._heard.publish(event.stream_version)
        return self._keep(event)

    def hear_ahead(self, events: Sequence[StoredEvent]) -> bool:
        """The first events, told before or after they were committed. Whether any is news."""
        if self.version == 0:
            self._heard.begin_with_hearsay()
        return sum(self._keep(event) for event in events) > 0

    def expect(self, version: int) -> bool:
        """The head of the stream is known to be at least here. Whether there is something to do."""
        self._heard.publish(version)
        if version <= self.version and self._journal.is_settled:
            return False
        self._heard.want(version)
        return True

    def want(self, version: int) -> None:
        """The log is said to go as far as this."""
        self._heard.want(version)

    def doubt(self) -> None:
        """Nobody knows whether the last append went through: the log does."""
        self._must_read = True

    def extend_by_heard(self) -> None:
        """Take what was heard and is next."""
        while (event := self._heard.pop(self.version + 1)) is not None:
            self._extend([event])

    async def catch_up(self, *, reads: bool) -> None:
        """Fold all there is; read what is missing, or the log anyway."""
        if reads or self._must_read or self._heard.wanted_version > self.version or self._journal.may_be_cut:
            await self.read_to_head()
        self._heard.drop_until(self.version)
        self._journal.take_known_decision(at_head=True)
        self.advance()

    async def read_to_head(self, *, at_least: int = 0) -> None:
        """Read and fold everything that is not known yet; the head is said to be at least here."""
        self._heard.want(at_least)
        self._must_read = True  # until it was
        is_new = self.version == 0
        while True:
            page = await self._next_page()
            self._extend(page.events)
            self._metrics.events_read.inc(len(page.events))
            if is_new:
                self._metrics.recovery_events.inc(len(page.events))
            at_head = self.version >= page.head_version or not page.events
            self._journal.take_known_decision(at_head=at_head)
            self._journal.advance(at_head=at_head)
            if at_head:
                break
            self._on_page()
            self._routing.offer(self._journal)  # Whoever is stopped here has not read for nothing.
        self._heard.read_until(self.version)
        self._must_read = False
        self._tell_of_claims()

    def advance(self) -> None:
        """Fold up to the next cause that waits for its decision."""
        self._journal.advance(at_head=True)
        self._tell_of_claims()

    def settle_undecided(self) -> None:
        """The cause led to nothing: go on."""
        self._journal.settle_undecided()

    def prove(self) -> None:
        """An append at the head went through: everything before it is in the log."""
        self._heard.is_hearsay = False

    def follow(self, appended: Sequence[StoredEvent]) -> None:
        """Events that were just appended at the head; whoever looks next has them folded."""
        self._appended = appended

    def fold_followed(self) -> None:
        """Fold what was appended, if nobody has, and raise what is wrong with it: that is for the turn to find out."""
        self._fold_appended()
        if (failure := self._unfoldable) is not None:
            self._unfoldable = None
            raise failure

    def leave_routing(self) -> None:
        """Leave the state for the next owner, if it is time; never hearsay."""
        if not self._heard.is_hearsay:
            self._routing.offer(self._journal)

    def begin_anew(self, exc: Exception) -> bool:
        """Whether a turn failed on top of a snapshot: then everything is read, from the first event on."""
        if not self._routing.doubts(self._journal, exc):
            return False
        self.read_anew()
        return True

    def read_anew(self) -> None:
        """Forget what was read and what was made of it: the log has it, and may have been mended since."""
        self._heard.want(self._journal.known_version)  # Nobody may ask again, and it is open all the same.
        self._journal, self._appended, self._unfoldable = Journal(self._execution_id), (), None

    def forget(self) -> None:
        """The log knew nothing of what was told: it was not committed yet, or never will be. The bus tells if it is.

        Whoever asks for something has the log read once more: it may be there by now.
        """
        self._journal = Journal(self._execution_id)
        self._heard.forget()
        self._must_read = False
        self._metrics.unfounded_notices.inc()

    def _keep(self, event: StoredEvent) -> bool:
        if event.stream_version <= self.version:
            return False
        self._heard.keep(event)
        return True

    async def _next_page(self) -> EventPage:
        if version := self.version:
            return await self._log.read(None, self._execution_id, from_version=version + 1, limit=READ_PAGE)
        self._journal, page = await self._routing.begin(self._log)
        self._claimed_elsewhere.update(holders(self._journal.state))
        return page

    def _extend(self, events: Sequence[StoredEvent]) -> None:
        for event in events:  # those before one that cannot be read are known as well
            taken = self._journal.take(event)
            if taken is not None and isinstance(taken.content, CommandClaimed):
                self._claimed_elsewhere.add(taken.content.command_id)

    def _tell_of_claims(self) -> None:
        """Workers may not have heard of claims that were not made here: whoever made them may be gone, and so may the
        answer. Not before everything is folded: what stands behind a cause that waits is not in the state yet."""
        if not self._claimed_elsewhere or not self._journal.is_settled:
            return
        held = holders(self._journal.state)
        for command_id in self._claimed_elsewhere & held.keys():
            self._on_claim(held[command_id], CommandKey(execution_id=self._execution_id, command_id=command_id))
        self._claimed_elsewhere.clear()

    def _fold_appended(self) -> None:
        if self._appended:
            events, self._appended = self._appended, ()
            try:
                self._journal.accept(events)
            except Exception as exc:
                self._unfoldable, self._must_read = exc, True
