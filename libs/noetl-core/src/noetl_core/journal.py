"""The log of one execution as `decide` must see it: each cause is decided before anything after it is folded."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import dropwhile, islice

from noetl_core.causes import is_cause
from noetl_core.envelope import StoredEvent
from noetl_core.events import is_terminal
from noetl_core.fold import State, empty, fold, prune
from noetl_core.recorded import Recorded, record
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a journal has come to once everything that it has seen is folded and decided."""

    state: State
    event_checksum: str
    """Of the event at the state's version, which seals everything before it."""


class Journal:
    """Folds events in order, and stops at a cause whose decision is not in the log.

    A decision may stand later in the log than events that followed its cause. It is folded right after its cause all
    the same, so that a planner that recovers decides as the first one did.

    What cannot be read or folded is not passed over: it stays the next event, so that whoever tries again fails again.
    """

    def __init__(self, execution_id: int, *, begins_with: Settled | None = None) -> None:
        self.state: State = begins_with.state if begins_with else empty(execution_id)
        self.begun_at = self.state.stream_version
        """Up to here it was told what the events come to, and has not seen them itself."""
        self.undecided: Recorded | None = None
        self._known_version = self.begun_at
        self._checksum = begins_with.event_checksum if begins_with else ""
        self._waiting: deque[Recorded] = deque()
        self._folded_ahead: set[int] = set()

    @property
    def known_version(self) -> int:
        """Version up to which every event of the log has been seen."""
        return self._known_version

    @property
    def is_settled(self) -> bool:
        """Whether everything seen is folded and decided."""
        return self.undecided is None and not self._waiting

    @property
    def settled(self) -> Settled | None:
        """What another journal may begin with; None while something waits, or nothing was seen."""
        if not self.is_settled or not self._known_version:
            return None
        return Settled(state=self.state, event_checksum=self._checksum)

    @property
    def may_be_cut(self) -> bool:
        """Whether the last event seen is of a decision apart from its cause: more of it may follow, to be folded first.

        One that stands right behind its cause is folded in its place, whole or not.
        """
        last = self._waiting[-1] if self._waiting else None
        if last is None or not last.decided_through:
            return False
        others = dropwhile(lambda event: event.decided_through == last.decided_through, reversed(self._waiting))
        before = next(others, None)
        return before is not None and before.stream_version != last.decided_through

    def follows(self, event: StoredEvent) -> bool:
        """Whether an event is the next one; earlier ones are known, later ones leave a gap."""
        return event.stream_version == self._known_version + 1

    def extend(self, events: Iterable[StoredEvent]) -> None:
        """Take the next events of the log; what is known already is passed over."""
        for event in events:
            self.take(event)

    def take(self, event: StoredEvent) -> Recorded | None:
        """The next event of the log; None if it is not the next one."""
        if not self.follows(event):
            return None
        taken = record(event)
        self._waiting.append(taken)
        self._known_version, self._checksum = event.stream_version, event.checksum
        return taken

    def advance(self, *, at_head: bool) -> None:
        """Fold as far as the log allows; `at_head` says that no more events are known to exist.

        Short of the head a cause whose decision has not been seen yet, or only in part, is left waiting.
        """
        while self.undecided is None and self._waiting:
            cause = self._waiting[0]
            if cause.stream_version in self._folded_ahead:
                self._folded_ahead.discard(cause.stream_version)
                self._waiting.popleft()
                continue
            if is_cause(cause) and not at_head and not self._decision_is_whole(cause):
                return
            state = fold(self.state, cause)
            if not is_cause(cause):
                self.state = state
            elif not self._fold_decision(cause, after=1, onto=state):
                self.state, self.undecided = state, cause
            self._waiting.popleft()
        self.state = prune(self.state)

    def accept(self, events: Sequence[StoredEvent]) -> None:
        """Take events that this planner has just appended, with the decisions among them."""
        self.extend(events)
        self.take_known_decision(at_head=True)
        self.advance(at_head=True)

    def settle_undecided(self) -> None:
        """The cause led to nothing: go on."""
        self.undecided = None

    def take_known_decision(self, *, at_head: bool) -> None:
        """Somebody else's decision for the cause may have arrived meanwhile, all of it."""
        if self.undecided is None or not (at_head or self._decision_is_whole(self.undecided)):
            return
        if self._fold_decision(self.undecided, after=0, onto=self.state):
            self.undecided = None

    def _decision_is_whole(self, cause: Recorded) -> bool:
        """Whether the decision is known, and not cut by the end of what was seen."""
        if not _decision_is_known(cause, self._waiting):
            return False
        return self._waiting[-1].decided_through != cause.stream_version or not self.may_be_cut

    def _fold_decision(self, cause: Recorded, *, after: int, onto: State) -> bool:
        """Whether the decision waits, after so many others; then all of it is folded, or nothing if it cannot be."""
        if not _decision_is_known(cause, islice(self._waiting, after, None)):
            return False
        folded = [
            event
            for event in islice(self._waiting, after, None)
            if event.decided_through == cause.stream_version and event.stream_version not in self._folded_ahead
        ]
        for event in folded:
            onto = fold(onto, event)
        self.state = onto
        self._folded_ahead.update(event.stream_version for event in folded)
        return True


def _decision_is_known(cause: Recorded, waiting: Iterable[Recorded]) -> bool:
    """Decisions are appended in the order of their causes, so a later one settles every earlier cause.

    So does the end of the execution, whoever wrote it: nothing can be decided any more.
    """
    return any(
        event.decided_through >= cause.stream_version or is_terminal(event.envelope.event_type) for event in waiting
    )
