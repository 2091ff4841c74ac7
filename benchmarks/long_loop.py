"""A loop of 100,000 items in frames of 50: is its end as fast as its beginning, and what does the planner keep?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmarks.executions import Execution, run_playbook
from benchmarks.figures import Figure, Goal, median, processor_figures
from benchmarks.stack import Stack

ITEMS_VARIABLE = "NOETL_BENCH_LOOP_ITEMS"
_FRAME_ROWS = 50
_PARTS = 10
_LOOK_SECONDS = 0.25
_DOCUMENT = """
workload: {items: 1}
workflow:
- step: work
  loop:
    in: "{{ range(items) | list }}"
    iterator: n
    spec: {mode: parallel, max_in_flight: 4, engine: inline, frame: {max_rows: 50}}
  tool: {kind: noop, result: "{{ iter.n }}"}
"""


async def measure_loop(stack: Stack, *, seconds: float, say: Callable[[str], None]) -> list[Figure]:
    """Once, as long as it takes; `seconds` is of no use to a loop of a given length."""
    items = int(os.environ.get(ITEMS_VARIABLE, "100000"))
    say(f"loop: {items} items in frames of {_FRAME_ROWS} …")
    await run_playbook(stack, "long_loop", _DOCUMENT, {"items": 1000})
    await stack.settle()
    before, memory = stack.processor_seconds(), Memory(stack.pid("planner"))
    watching = asyncio.create_task(memory.watch())
    try:
        ran = await run_playbook(stack, "long_loop", _DOCUMENT, {"items": items}, timeout=3600.0)
    finally:
        watching.cancel()
    rates = by_decile(ran)
    used = stack.processor_seconds_since(before)
    group = f"A loop of {items:,} items in frames of {_FRAME_ROWS}"
    for number, rate in enumerate(rates, start=1):
        say(f"loop: part {number} of {_PARTS}: {rate:,.0f} items/s")
    parts = [
        Figure(group=group, name=f"part {number} of {_PARTS}", value=rate, unit="items/s")
        for number, rate in enumerate(rates, start=1)
    ]
    # Thirds, and not the first and the last part: one of a few seconds says most about the rest of the machine.
    slowing = median(rates[-3:]) / median(rates[:3])
    return [
        Figure(group=group, name="stage opened to closed", value=ran.stage_seconds, unit="s"),
        *parts,
        Figure(
            group=group,
            name="the last parts as a share of the first",
            value=slowing,
            unit="",
            goal=Goal(bound=0.9, at_least=True),
        ),
        Figure(
            group=group,
            name="memory of the planner, its most in the second half over its most in the first",
            value=memory.growth,
            unit="MiB",
            goal=Goal(bound=16.0, at_least=False),
        ),
        *processor_figures(group, "item", used, items),
    ]


def by_decile(ran: Execution) -> Sequence[float]:
    """Items a second in each tenth of the frames, by when they were committed."""
    ends = [ran.first("stage.opened"), *(told.seconds for told in ran.events if told.event_type == "frame.committed")]
    size = (len(ends) - 1) // _PARTS
    bounds = [ends[number * size] for number in range(_PARTS + 1)]
    return [size * _FRAME_ROWS / max(end - begin, 1e-6) for begin, end in pairwise(bounds)]


class Memory:
    """What a process holds, looked at again and again."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._seen: list[float] = []

    async def watch(self) -> None:
        while True:
            self._seen.append(int(self._file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
            await asyncio.sleep(_LOOK_SECONDS)

    @property
    def growth(self) -> float:
        """In MiB, from the first half to the second."""
        half = len(self._seen) // 2
        return max(self._seen[half:]) - max(self._seen[:half] or self._seen)
