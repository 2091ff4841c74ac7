import pytest
from noetl_servicekit.metrics import MetricSet, MetricSpec
from noetl_servicekit.telemetry import GrpcServerMetrics, LoopMetrics


def test_metrics_are_remembered_as_declared() -> None:
    metrics = MetricSet()
    metrics.counter("noetl_things_total", "Things.", ("kind",))
    metrics.gauge("noetl_queue_items", "Items.")
    metrics.histogram("noetl_wait_seconds", "Waiting.", buckets=(1, 2))

    assert metrics.declared == (
        MetricSpec(name="noetl_things_total", kind="counter", help="Things.", labels=("kind",)),
        MetricSpec(name="noetl_queue_items", kind="gauge", help="Items.", labels=()),
        MetricSpec(name="noetl_wait_seconds", kind="histogram", help="Waiting.", labels=()),
    )


def test_they_are_shown_under_the_names_they_were_declared_with() -> None:
    metrics = MetricSet()
    metrics.counter("noetl_things_total", "Things.", ("kind",)).labels("new").inc(2)

    body, content_type = metrics.render()

    assert b'noetl_things_total{kind="new"} 2.0' in body
    assert content_type.startswith("text/plain")
    assert metrics.value("noetl_things_total", kind="new") == 2
    assert metrics.value("noetl_things_total", kind="old") == 0


def test_two_sets_share_nothing() -> None:
    first, second = MetricSet(), MetricSet()
    GrpcServerMetrics(first)
    LoopMetrics(first).restarts.labels("drain").inc()
    GrpcServerMetrics(second)
    LoopMetrics(second)

    assert first.value("noetl_loop_restarts_total", loop="drain") == 1
    assert second.value("noetl_loop_restarts_total", loop="drain") == 0


def test_a_name_declared_twice_is_a_mistake() -> None:
    metrics = MetricSet()
    metrics.gauge("noetl_queue_items", "Items.")

    with pytest.raises(ValueError, match="noetl_queue_items"):
        metrics.gauge("noetl_queue_items", "Items again.")


def test_a_counter_is_named_as_it_is_shown() -> None:
    with pytest.raises(ValueError, match="must end in _total"):
        MetricSet().counter("noetl_things", "Things.")


def test_the_process_itself_can_be_measured() -> None:
    body, _ = MetricSet(with_process_metrics=True).render()

    assert b"process_resident_memory_bytes" in body
    assert b"python_gc_collections_total" in body
