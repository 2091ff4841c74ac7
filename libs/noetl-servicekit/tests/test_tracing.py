import asyncio
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
from noetl_core.errors import NotFound
from noetl_servicekit.tracing import current_trace_id, current_traceparent, span, start_tracing
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    tracing = start_tracing(service="planner", instance="planner-0", exporters=[exporter])
    yield exporter
    tracing.close()


def test_without_a_collector_the_context_still_flows() -> None:
    assert current_traceparent() is None
    with span("first", parent=PARENT):
        first = current_traceparent()
        with span("second"):
            second = current_traceparent()

    assert first is not None
    assert second is not None
    assert first != PARENT
    assert first[:36] == second[:36] == PARENT[:36]
    assert first != second
    assert first.endswith("-01")
    assert current_traceparent() is None
    assert current_trace_id() is None


def test_a_span_without_a_parent_begins_a_trace() -> None:
    with span("one"):
        one = current_trace_id()
    with span("two"):
        two = current_trace_id()

    assert one is not None
    assert one != two


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01", "x" * 10_000])
def test_a_malformed_parent_leaves_the_span_below_the_current_one(parent: str) -> None:
    with span("outer"):
        outer = current_trace_id()
        with span("inner", parent=parent):
            assert current_trace_id() == outer


def test_spans_say_who_made_them_and_what_they_are(spans: InMemorySpanExporter) -> None:
    with span("execution.turn", parent=PARENT, attributes={"noetl.shard": 7}):
        pass

    (done,) = spans.get_finished_spans()
    assert done.name == "execution.turn"
    assert done.attributes == {"noetl.shard": 7}
    assert done.resource.attributes["service.name"] == "planner"
    assert done.resource.attributes["service.instance.id"] == "planner-0"


def test_our_errors_are_said_by_their_code_and_strangers_with_their_stack(spans: InMemorySpanExporter) -> None:
    with pytest.raises(NotFound), span("ours"):
        raise NotFound("execution", 7)
    with pytest.raises(ValueError, match="odd"), span("strange"):
        raise ValueError("odd")

    ours, strange = spans.get_finished_spans()
    assert ours.attributes == {"error.type": "not_found"}
    assert ours.events == ()
    assert strange.attributes == {"error.type": "ValueError"}
    assert [event.name for event in strange.events] == ["exception"]
    assert {ours.status.status_code, strange.status.status_code} == {StatusCode.ERROR}


async def test_concurrent_tasks_each_have_their_own_span() -> None:
    barrier = asyncio.Barrier(2)

    async def work() -> tuple[str | None, str | None]:
        with span("work"):
            before = current_traceparent()
            await barrier.wait()
            return before, current_traceparent()

    (a, a_later), (b, b_later) = await asyncio.gather(work(), work())

    assert a == a_later
    assert b == b_later
    assert a != b


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    def __init__(self) -> None:
        self.names: list[str] = []

    def Export(  # noqa: N802 - named by the protocol
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.names += [
            one.name for batch in request.resource_spans for scope in batch.scope_spans for one in scope.spans
        ]
        return trace_service_pb2.ExportTraceServiceResponse()


def test_closing_sends_the_last_spans_to_the_collector() -> None:
    collector = Collector()
    with futures.ThreadPoolExecutor(max_workers=1) as threads:
        server = grpc.server(threads)
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()

        endpoint = f"http://127.0.0.1:{port}"
        tracing = start_tracing(service="planner", instance="planner-0", otlp_endpoint=endpoint)
        with span("execution.turn"):
            pass
        tracing.close()
        server.stop(None).wait()

    assert collector.names == ["execution.turn"]
