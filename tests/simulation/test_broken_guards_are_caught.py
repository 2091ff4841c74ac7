"""The simulation has teeth: a guard that is taken away is missed by some seed among few."""

from collections.abc import Iterator

import pytest
from noetl_testkit.simulation.faults import Fault, Kind
from noetl_testkit.simulation.mutations import MUTATIONS
from noetl_testkit.simulation.playbooks import HAND_WRITTEN
from noetl_testkit.simulation.verdict import good_day, judge
from noetl_testkit.simulation.world import STEPS, Script, script_of

WITHIN_SEEDS = 300
"""Of all seeds; those of playbooks that have nothing to do with the guard are passed over to save time."""
TELLING = {
    "fence": ("parallel", "sequential", "frames", "join"),
    "idempotency key": ("chain", "errors", "again"),
    "version check": ("brood", "family"),
    "head comparison": ("chain", "errors", "late"),
    "state of snapshots": ("parallel", "join", "again", "errors"),
    "shared end key": ("chain", "errors", "join", "again"),
}


DEPOSED_EVERY_STEPS = 25


def scripts(guard: str) -> Iterator[Script]:
    """Seeds; a reaper has little to do, so that it is deposed at one moment after the other, until it matters."""
    if guard == "reaper's fence":
        case = next(case for case in HAND_WRITTEN if case.name == "late")
        for step in range(0, STEPS, DEPOSED_EVERY_STEPS):
            faults = (Fault(Kind.DEPOSE, step, target="reaper-0"),)
            yield Script(seed=4, case=case, minds=("",), replicas=(1, 1, 1, 1), faults=faults)
        return
    for seed in range(WITHIN_SEEDS):
        script = script_of(seed)
        if script.case.name in TELLING[guard]:
            yield script


@pytest.mark.parametrize("guard", MUTATIONS)
def test_a_broken_guard_is_caught(guard: str) -> None:
    for script in scripts(guard):
        good_day(script.case, len(script.minds))  # as it is with all guards
        with MUTATIONS[guard]():
            if judge(script).problems:
                return
    raise AssertionError(f"nothing misses the {guard}")
