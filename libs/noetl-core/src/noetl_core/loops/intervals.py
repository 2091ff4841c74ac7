"""Sets of indices as merged intervals: as many as there are gaps, however many indices there are."""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

Intervals: TypeAlias = tuple[tuple[int, int], ...]
"""First and last index of each run, in order; no two of them touch."""


def holds(intervals: Intervals, index: int) -> bool:
    """Whether an index is in the set."""
    place = bisect_right(intervals, (index, index)) - 1
    candidates = intervals[max(place, 0) : place + 2]
    return any(first <= index <= last for first, last in candidates)


def with_index(intervals: Intervals, index: int) -> Intervals:
    """The set with one more index; runs that touch become one."""
    if holds(intervals, index):
        return intervals
    place = bisect_right(intervals, (index, index))
    first = last = index
    start, end = place, place
    if place > 0 and intervals[place - 1][1] == index - 1:
        first, start = intervals[place - 1][0], place - 1
    if place < len(intervals) and intervals[place][0] == index + 1:
        last, end = intervals[place][1], place + 1
    return (*intervals[:start], (first, last), *intervals[end:])


def size(intervals: Intervals) -> int:
    """How many indices there are."""
    return sum(last - first + 1 for first, last in intervals)
