"""How arrivals come and go: those that ask for the same thing are one with a number, however often a way is gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from noetl_core.executions.state import Arrival
from noetl_core.values import replace

Arrivals = tuple[Arrival, ...]


def arrived(arrivals: Sequence[Arrival], new: Iterable[Arrival]) -> Arrivals:
    """The arrivals with others behind them."""
    waiting = list(arrivals)
    for arrival in new:
        if arrival in waiting:
            place = waiting.index(arrival)
            waiting[place] = replace(waiting[place], times=waiting[place].times + arrival.times)
        else:
            waiting.append(arrival)
    return tuple(waiting)


def answered(arrivals: Sequence[Arrival], gone: Iterable[Arrival]) -> Arrivals:
    """The arrivals without one of each; where more of the kind wait, it is the turn of others first."""
    waiting = list(arrivals)
    for arrival in gone:
        if arrival not in waiting:
            continue
        known = waiting.pop(waiting.index(arrival))
        if known.times > 1:
            waiting.append(replace(known, times=known.times - 1))
    return tuple(waiting)
