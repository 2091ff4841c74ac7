"""Prometheus metrics, each declared once, on a registry of its own: a test can make a process twice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from noetl_servicekit.instruments import Counter, Gauge, Histogram, Instrument

Made = TypeVar("Made", bound=Instrument)

LATENCY_BUCKETS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Seconds, from a transaction to a call that waits for work."""

LAG_BUCKETS: Final = (
    0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75,
    1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.75, 2.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""Seconds behind the log: narrow around what is promised, so that a quantile says whether the promise is kept."""

RESOLVE_BUCKETS: Final = (
    0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 10.0,
)  # fmt: skip
"""Seconds to the bytes of a payload: from the memory of a process to a bucket in another place."""

SIZE_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
"""Things a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSpec:
    """What was declared: compared with the registry in `telemetry/metrics.yaml`."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


class MetricSet:
    """Makes a process' metrics and remembers them.

    A service declares each of its metrics once, as an attribute of the catalogue in its `telemetry.py`,
    with the full name that Prometheus shows (a counter's ends in `_total`).
    """

    def __init__(self, *, with_process_metrics: bool = False) -> None:
        self.registry = CollectorRegistry()
        self._declared: list[MetricSpec] = []
        self._also: list[Callable[[], bytes]] = []
        if with_process_metrics:
            ProcessCollector(registry=self.registry)
            PlatformCollector(registry=self.registry)
            GCCollector(registry=self.registry)

    @property
    def declared(self) -> tuple[MetricSpec, ...]:
        return tuple(self._declared)

    def counter(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
        if not name.endswith("_total"):
            raise ValueError(f"counter {name!r} must end in _total, as it is shown")
        self._declare(name, "counter", help_text, labels)
        return self._registered(Counter(name, help_text, labels))

    def gauge(self, name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
        self._declare(name, "gauge", help_text, labels)
        return self._registered(Gauge(name, help_text, labels))

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        buckets: Sequence[float] = LATENCY_BUCKETS,
    ) -> Histogram:
        self._declare(name, "histogram", help_text, labels)
        return self._registered(Histogram(name, help_text, labels, buckets=buckets))

    def render(self) -> tuple[bytes, str]:
        """What `/metrics` answers: body and content type."""
        return generate_latest(self.registry) + b"".join(other() for other in self._also), CONTENT_TYPE_LATEST

    def also(self, shown: Callable[[], bytes]) -> None:
        """Show what another process of this service has counted; its metrics are others than those here."""
        self._also.append(shown)

    def value(self, name: str, **labels: str) -> float:
        """The current value of a sample, 0 if there was none yet."""
        return self.registry.get_sample_value(name, labels) or 0.0

    def total(self, name: str) -> float:
        """The sum of a sample over all its labels."""
        families = self.registry.collect()
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)

    def _registered(self, made: Made) -> Made:
        self.registry.register(made)
        return made

    def _declare(self, name: str, kind: str, help_text: str, labels: Sequence[str]) -> None:
        self._declared.append(MetricSpec(name=name, kind=kind, help=help_text, labels=tuple(labels)))
