from noetl_servicekit.tracing import span, start_tracing
from noetl_testkit.otlp import otlp_collector
from opentelemetry.trace import SpanKind

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_exported_spans_are_kept_with_their_process_and_their_place_in_the_trace() -> None:
    with otlp_collector() as collector:
        tracing = start_tracing(service="desk", instance="desk-1", otlp_endpoint=collector.endpoint)
        try:
            with span("desk.work", parent=PARENT, kind=SpanKind.CONSUMER, attributes={"noetl.shard": 7}):
                pass
        finally:
            tracing.close()  # sends what waits

        (received,) = collector.trace("0af7651916cd43dd8448eb211c80319c")

    assert (received.service, received.instance) == ("desk", "desk-1")
    assert (received.name, received.kind, received.failed) == ("desk.work", "consumer", False)
    assert received.parent_span_id == "b7ad6b7169203331"
    assert received.attributes == {"noetl.shard": 7}
