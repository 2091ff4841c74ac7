"""An OTLP collector for tests: takes the spans that processes export over gRPC, and keeps them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
from noetl_cli.dev.ports import free_port
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

AttributeValue = str | bool | int | float | tuple["AttributeValue", ...]

_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
_KINDS: Mapping[int, str] = {
    Span.SPAN_KIND_INTERNAL: "internal",
    Span.SPAN_KIND_SERVER: "server",
    Span.SPAN_KIND_CLIENT: "client",
    Span.SPAN_KIND_PRODUCER: "producer",
    Span.SPAN_KIND_CONSUMER: "consumer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """A finished span, and which process made it."""

    service: str
    instance: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_span_id: str
    """Empty for the first span of a trace."""
    attributes: Mapping[str, AttributeValue]
    failed: bool


class OtlpCollector:
    """What has arrived so far; safe to ask while spans keep coming."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        """For `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []

    def spans(self) -> tuple[ReceivedSpan, ...]:
        """Every span, in the order of arrival."""
        with self._lock:
            return tuple(self._spans)

    def trace(self, trace_id: str) -> tuple[ReceivedSpan, ...]:
        """The spans of one trace, from whichever process."""
        return tuple(span for span in self.spans() if span.trace_id == trace_id)

    def export(
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        """What an exporter calls."""
        received = [*_received(request)]
        with self._lock:
            self._spans.extend(received)
        return pb.ExportTraceServiceResponse()


@contextmanager
def otlp_collector() -> Iterator[OtlpCollector]:
    """A collector on a free port of this machine, until the end of the block."""
    collector = OtlpCollector(f"http://127.0.0.1:{free_port()}")
    # Registered by hand: the generated function has no types, and this is all that it does.
    handler: grpc.RpcMethodHandler[pb.ExportTraceServiceRequest, pb.ExportTraceServiceResponse] = (
        grpc.unary_unary_rpc_method_handler(
            collector.export,
            request_deserializer=pb.ExportTraceServiceRequest.FromString,
            response_serializer=pb.ExportTraceServiceResponse.SerializeToString,
        )
    )
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="otlp") as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"Export": handler}),))
        server.add_insecure_port(collector.endpoint.removeprefix("http://"))
        server.start()
        try:
            yield collector
        finally:
            server.stop(grace=None).wait()


def _received(request: pb.ExportTraceServiceRequest) -> Iterator[ReceivedSpan]:
    for process in request.resource_spans:
        resource = _attributes(process.resource.attributes)
        for scope in process.scope_spans:
            for span in scope.spans:
                yield ReceivedSpan(
                    service=str(resource.get("service.name", "")),
                    instance=str(resource.get("service.instance.id", "")),
                    name=span.name,
                    kind=_KINDS.get(span.kind, "unspecified"),
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_span_id=span.parent_span_id.hex(),
                    attributes=_attributes(span.attributes),
                    failed=span.status.code == Status.STATUS_CODE_ERROR,
                )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, AttributeValue]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> AttributeValue:
    match value.WhichOneof("value"):
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "int_value":
            return value.int_value
        case "double_value":
            return value.double_value
        case "array_value":
            return tuple(_value(one) for one in value.array_value.values)
        case _:
            return ""
