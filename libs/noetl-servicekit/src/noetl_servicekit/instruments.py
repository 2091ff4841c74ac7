"""Counters, gauges and histograms that cost little where they are counted: what Prometheus shows is made when it asks.

The library's own take six calls and two checks for each count, and every call of every service counts several times.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Self

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Instrument(Collector, ABC):
    """A metric, or one of its children if it has labels; what it counts may be counted by any thread."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        self._name = name
        self._help = help_text
        self._labels = tuple(labels)
        self._lock = threading.Lock()
        self._children: dict[tuple[str, ...], Self] = {}

    def labels(self, *values: object, **named: object) -> Self:
        """The child with these values, in the order of the labels or by their names."""
        key = tuple(map(str, values)) if not named else tuple(str(named.pop(label)) for label in self._labels)
        if named or len(key) != len(self._labels):
            raise ValueError(f"{self._name} has the labels {self._labels}")
        child = self._children.get(key)
        if child is None:
            with self._lock:
                child = self._children.setdefault(key, self._child())
        return child

    def forget(self, *values: object) -> None:
        """Forget the child with these values, if there is one: what it tells is no longer for this process to say."""
        with self._lock:
            self._children.pop(tuple(map(str, values)), None)

    def clear(self) -> None:
        """Forget all children."""
        with self._lock:
            self._children.clear()

    def describe(self) -> Iterator[Metric]:
        """So that no name is registered twice."""
        yield self._family()

    def collect(self) -> Iterator[Metric]:
        """What has been counted until now."""
        family = self._family()
        if self._labels:
            with self._lock:
                children = list(self._children.items())
            for values, child in children:
                child._add_to(family, values)
        else:
            self._add_to(family, ())
        yield family

    def _child(self) -> Self:
        return type(self)(self._name, self._help)

    @abstractmethod
    def _family(self) -> Metric: ...

    @abstractmethod
    def _add_to(self, family: Any, labels: Sequence[str]) -> None: ...


class Counter(Instrument):
    """Only goes up."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels)
        self._value = 0.0

    def inc(self, amount: float = 1) -> None:
        if amount < 0:
            raise ValueError("a counter only goes up")
        with self._lock:
            self._value += amount

    def _family(self) -> Metric:
        return CounterMetricFamily(self._name, self._help, labels=self._labels)

    def _add_to(self, family: Any, labels: Sequence[str]) -> None:
        family.add_metric(labels, self._value)


class Gauge(Instrument):
    """What there is now."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help_text, labels)
        self._value = 0.0
        self._asked: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = float(value)

    def inc(self, amount: float = 1) -> None:
        with self._lock:
            self._value += amount

    def dec(self, amount: float = 1) -> None:
        with self._lock:
            self._value -= amount

    def set_to_current_time(self) -> None:
        """Seconds since the epoch, as Prometheus counts them."""
        self._value = time.time()

    def set_function(self, asked: Callable[[], float]) -> None:
        """Ask for the value whenever somebody looks."""
        self._asked = asked

    def _family(self) -> Metric:
        return GaugeMetricFamily(self._name, self._help, labels=self._labels)

    def _add_to(self, family: Any, labels: Sequence[str]) -> None:
        family.add_metric(labels, self._value if self._asked is None else float(self._asked()))


class Histogram(Instrument):
    """How many observations there were up to each bound, and their sum."""

    def __init__(self, name: str, help_text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        super().__init__(name, help_text, labels)
        self._bounds = sorted(map(float, buckets))
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        place = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += 1
            self._sum += value

    def _child(self) -> Self:
        return type(self)(self._name, self._help, buckets=self._bounds)

    def _family(self) -> Metric:
        return HistogramMetricFamily(self._name, self._help, labels=self._labels)

    def _add_to(self, family: Any, labels: Sequence[str]) -> None:
        with self._lock:
            counts, total = tuple(self._counts), self._sum
        bounds = (*map(floatToGoString, self._bounds), "+Inf")
        family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
