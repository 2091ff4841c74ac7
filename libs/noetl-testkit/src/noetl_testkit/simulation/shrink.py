"""Leaves faults out of a script that fails, as many as can be, so that what is left is the reason."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from noetl_testkit.simulation.verdict import Verdict, judge
from noetl_testkit.simulation.world import Script, script_of

MAX_RUNS = 200


def shrink(verdict: Verdict, *, run: Callable[[Script], Verdict] = judge, max_runs: int = MAX_RUNS) -> Verdict:
    """The smallest script found that still fails; halves are tried before single faults."""
    best, runs = verdict, 0
    size = max(len(best.script.faults) // 2, 1)
    while size and runs < max_runs:
        place, found = 0, False
        while place < len(best.script.faults) and runs < max_runs:
            faults = best.script.faults
            smaller = run(replace(best.script, faults=faults[:place] + faults[place + size :]))
            runs += 1
            if smaller.problems:
                best, found = smaller, True
            else:
                place += size
        if not found or size > 1:
            size //= 2
    return best


def report(verdict: Verdict, *, lines: int = 60) -> str:
    """What somebody needs to see who has to find the reason."""
    script = verdict.script
    told = [
        f"seed {script.seed}: playbook {script.case.name}, users {list(script.minds)}, "
        f"replicas of api, planner, projector, worker {list(script.replicas)}",
        f"faults left ({len(script.faults)}):",
        *(f"  {fault}" for fault in script.faults),
        "problems:",
        *(f"  {problem}" for problem in verdict.problems[:20]),
        f"trace (the last {lines} of {len(verdict.trace)} lines):",
        *(f"  {line}" for line in verdict.trace[-lines:]),
    ]
    return "\n".join(told)


def failing_report(seeds: Iterable[int]) -> str:
    """Of the first of some seeds that fails; empty if none does."""
    with fewer_collections():
        for seed in seeds:
            verdict = judge(script_of(seed))
            if verdict.problems:
                return report(shrink(verdict))
    return ""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Histories leave their garbage in heaps: to look for it less often saves a fifth of the time."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
