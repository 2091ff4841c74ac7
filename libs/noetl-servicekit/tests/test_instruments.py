"""What is counted shows as Prometheus' own library would show it."""

import threading
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_servicekit import instruments
from noetl_servicekit.metrics import MetricSet

BUCKETS = (0.1, 1, 2.5, 10)
NUMBERS = st.floats(min_value=-1e6, max_value=1e6)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["plain", "a", 'b\n"quoted"']), st.sampled_from(["inc", "dec", "set", "observe"]), NUMBERS
    )
)


def metrics_of(library: Any, registry: prometheus_client.CollectorRegistry) -> dict[str, Any]:
    def made(kind: str, name: str, **options: Any) -> tuple[Any, Any]:
        both = []
        for suffix, labels in (("", ()), ("_by_kind", ("kind",))):
            full = name.replace("_total", f"{suffix}_total") if "_total" in name else f"{name}{suffix}"
            if library is prometheus_client:
                both.append(getattr(library, kind)(full, "Help.", labels, registry=registry, **options))
            else:
                both.append(getattr(library, kind)(full, "Help.", labels, **options))
                registry.register(both[-1])
        return both[0], both[1]

    return {
        "inc": made("Counter", "noetl_things_total"),
        "set": made("Gauge", "noetl_level"),
        "observe": made("Histogram", "noetl_wait_seconds", buckets=BUCKETS),
    }


def lines_of(library: Any, operations: list[tuple[str, str, float]]) -> list[str]:
    registry = prometheus_client.CollectorRegistry()
    metrics = metrics_of(library, registry)
    for label, what, number in operations:
        plain, labelled = metrics["set" if what == "dec" else what]
        target = plain if label == "plain" else labelled.labels(label)
        getattr(target, what)(abs(number) if what == "inc" else number)
    text = prometheus_client.generate_latest(registry).decode()
    # When a series began is left out: nobody asks for it, and it doubles what is scraped.
    return [line for line in text.splitlines() if "_created" not in line]


@given(OPERATIONS)
def test_it_shows_what_the_library_would_show(operations: list[tuple[str, str, float]]) -> None:
    assert lines_of(instruments, operations) == lines_of(prometheus_client, operations)


def test_nothing_is_lost_between_threads() -> None:
    metrics = MetricSet()
    counter, gauge = metrics.counter("noetl_things_total", "Things.", ("kind",)), metrics.gauge("noetl_level", "Level.")
    histogram = metrics.histogram("noetl_wait_seconds", "Waiting.", buckets=(1,))

    def count() -> None:
        for number in range(2_000):
            counter.labels(str(number % 3)).inc()
            gauge.inc()
            histogram.observe(0.5)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert metrics.total("noetl_things_total") == metrics.value("noetl_level") == 8_000
    assert metrics.value("noetl_wait_seconds_bucket", le="1.0") == metrics.value("noetl_wait_seconds_count") == 8_000


def test_a_gauge_may_be_asked_when_somebody_looks_and_children_may_be_forgotten() -> None:
    metrics = MetricSet()
    metrics.gauge("noetl_level", "Level.").set_function(lambda: 7)
    shards = metrics.gauge("noetl_shards", "Shards.", ("shard",))
    shards.labels(shard=1).set(1)
    shards.labels(shard=2).set(1)
    assert metrics.value("noetl_level") == 7
    assert metrics.total("noetl_shards") == 2

    shards.forget(1)
    shards.forget(3)

    assert metrics.registry.get_sample_value("noetl_shards", {"shard": "1"}) is None
    assert metrics.total("noetl_shards") == 1

    shards.clear()

    assert metrics.total("noetl_shards") == 0


def test_wrong_labels_and_counting_down_are_mistakes() -> None:
    counter = instruments.Counter("noetl_things_total", "Things.", ("kind", "place"))

    for values, named in ((("a",), {}), (("a", "b", "c"), {}), ((), {"kind": "a", "place": "b", "more": "c"})):
        with pytest.raises((ValueError, KeyError)):
            counter.labels(*values, **named)
    with pytest.raises(ValueError, match="only goes up"):
        counter.labels("a", "b").inc(-1)
