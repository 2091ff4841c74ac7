"""The simulation has teeth: a guard that is taken away is missed by some seed among few."""

import pytest
from noetl_testkit.simulation.mutations import MUTATIONS
from noetl_testkit.simulation.verdict import good_day, judge
from noetl_testkit.simulation.world import script_of

WITHIN_SEEDS = 300
"""Of all seeds; those of playbooks that have nothing to do with the guard are passed over to save time."""
TELLING = {
    "fence": ("parallel", "sequential", "frames", "join"),
    "idempotency key": ("chain", "errors", "again"),
    "version check": ("brood", "family"),
    "head comparison": ("chain", "errors", "late"),
    "shared end key": ("chain", "errors", "join", "again"),
}


@pytest.mark.parametrize("guard", MUTATIONS)
def test_a_broken_guard_is_caught(guard: str) -> None:
    for seed in range(WITHIN_SEEDS):
        script = script_of(seed)
        if script.case.name not in TELLING[guard]:
            continue
        good_day(script.case, len(script.minds))  # as it is with all guards
        with MUTATIONS[guard]():
            if judge(script).problems:
                return
    raise AssertionError(f"nothing of {WITHIN_SEEDS} seeds misses the {guard}")
