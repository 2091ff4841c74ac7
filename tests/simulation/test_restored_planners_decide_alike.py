"""Whoever begins with a snapshot goes on as whoever has read everything: the same states and the same decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from noetl_core.envelope import StoredEvent
from noetl_core.executions.decide import decide
from noetl_core.executions.plan import Plan
from noetl_core.journal import Journal, Settled
from noetl_core.recorded import record
from noetl_core.routing_snapshots import open_routing, take_routing
from noetl_core.state_json import state_object
from noetl_testkit.simulation.invariants import Stream
from noetl_testkit.simulation.nodes import metrics
from noetl_testkit.simulation.verdict import judge, plan_of, quiet
from noetl_testkit.simulation.world import World, script_of

RULES = "rules"
USED, WRITTEN = "noetl_planner_snapshots_used_total", "noetl_planner_snapshots_written_total"


def settled_at(execution_id: int, stored: Sequence[StoredEvent], version: int) -> Journal | None:
    """A journal that has read the log so far and waits for nothing; None if a planner was about to decide there."""
    journal = Journal(execution_id)
    journal.extend(stored[:version])
    journal.advance(at_head=True)
    if not leads_nowhere(journal, stored[version:]):
        return None
    return journal


def leads_nowhere(journal: Journal, rest: Sequence[StoredEvent]) -> bool:
    """Pass over causes for which nothing was ever decided; false at one that led to something."""
    decided = {record(event).decided_through for event in rest}
    while journal.undecided is not None:
        if journal.undecided.stream_version in decided:
            return False
        journal.settle_undecided()
        journal.advance(at_head=True)
    return True


def restored(journal: Journal, execution_id: int) -> Journal:
    settled = journal.settled
    assert settled is not None
    snapshot = take_routing(settled, rules=RULES)
    assert snapshot is not None
    opened = open_routing(snapshot, execution_id=execution_id, rules=RULES)
    assert isinstance(opened, Settled), opened
    assert opened == settled
    return Journal(execution_id, begins_with=opened)


def differences(execution_id: int, stored: Sequence[StoredEvent], version: int, plan: Plan) -> Iterator[str]:
    """What two planners do with the rest of the log, one of which begins here."""
    whole = settled_at(execution_id, stored, version)
    if whole is None:
        return
    both = (whole, restored(whole, execution_id))
    for place in range(version, len(stored)):
        for journal in both:
            journal.extend([stored[place]])
            journal.take_known_decision(at_head=True)
            journal.advance(at_head=True)
        causes = [journal.undecided for journal in both]
        decisions = [
            list(decide(journal.state, journal.undecided, plan)) if journal.undecided is not None else None
            for journal in both
        ]
        for journal in both:
            leads_nowhere(journal, stored[place + 1 :])
        # As text, in which the order of names counts: an expression may list them.
        states = [str(state_object(journal.state)) for journal in both]
        where = f"execution {execution_id} from {version} at {place + 1}"
        if causes[0] != causes[1] or decisions[0] != decisions[1]:
            yield f"{where}: {causes[0]} is decided otherwise"
        if states[0] != states[1]:
            yield f"{where}: the states differ"


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_planner_restored_at_any_settled_version_decides_as_one_that_read_everything(first: int) -> None:
    found: list[str] = []
    begun = 0
    for seed in range(first, first + 20):
        world = World(script_of(seed))
        try:
            with quiet():
                world.run()
            for execution_id, stream in sorted(world.log.streams.items()):
                plan = plan_of(world, Stream(execution_id, stream.events))
                for version in range(1 + seed % 3, len(stream.events), 3):
                    begun += settled_at(execution_id, stream.events, version) is not None
                    found.extend(differences(execution_id, stream.events, version, plan))
        finally:
            world.close()

    assert found == []
    assert begun > 100


def test_planners_of_the_simulation_begin_with_snapshots_and_write_them_under_trouble() -> None:
    counted = metrics().of_planners
    used, written = counted.value(USED), counted.value(WRITTEN, outcome="written")

    assert [problem for seed in range(2000, 2040) for problem in judge(script_of(seed)).problems] == []

    assert counted.value(USED) - used > 5
    assert counted.value(WRITTEN, outcome="written") - written > 40
