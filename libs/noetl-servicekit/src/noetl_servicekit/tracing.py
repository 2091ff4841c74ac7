"""Traces: spans that follow W3C context through every process, and go to a collector when there is one."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Final

from noetl_core.errors import NoetlError
from noetl_core.topology import Topology
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

EXPORT_TIMEOUT_SECONDS: Final = 5
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SCOPE: Final = "noetl"
_IDS: Final = RandomIdGenerator()
_TRACEPARENT: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")

AttributeValue = str | int | float | bool | Sequence[str]


class Tracing:
    """The process' tracer; close it on the way out, so that the last spans are not lost."""

    def __init__(self, provider: TracerProvider, *, keeps_spans: bool) -> None:
        self._provider = provider
        self.tracer: Tracer | None = provider.get_tracer(_SCOPE) if keeps_spans else None
        """None where nobody would get the spans: then they are ids and nothing else."""

    def close(self) -> None:
        """Blocks while the last spans are sent: call it from a thread if something else still runs."""
        if _current.tracing is self:
            _current.tracing = None
        self._provider.shutdown()


class _Current:
    """Importing makes no tracer: spans are ids until `start_tracing` was called with somebody to send them to."""

    tracing: Tracing | None = None

    def tracer(self) -> Tracer | None:
        return self.tracing.tracer if self.tracing is not None else None


_current: Final = _Current()
_quiet: Final[ContextVar[Span]] = ContextVar("noetl_quiet_span", default=trace.INVALID_SPAN)
"""The span that we are in, where nobody keeps spans."""


def start_tracing(
    *,
    service: str,
    instance: str,
    topology: Topology | None = None,
    otlp_endpoint: str | None = None,
    exporters: Sequence[SpanExporter] = (),
) -> Tracing:
    """Without endpoint and exporters spans still get ids and pass them on; they are just not kept."""
    identity = {"service.namespace": "noetl", "service.name": service, "service.instance.id": instance}
    resource = Resource({**identity, **_place(topology or Topology())})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    for exporter in exporters:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    if otlp_endpoint is not None:
        provider.add_span_processor(BatchSpanProcessor(_otlp_exporter(otlp_endpoint)))
    _current.tracing = Tracing(provider, keeps_spans=bool(exporters) or otlp_endpoint is not None)
    return _current.tracing


def _place(topology: Topology) -> dict[str, str]:
    """In the words of OpenTelemetry; what nobody said is left out."""
    known = {
        "k8s.cluster.name": topology.cluster,
        "cloud.region": topology.region,
        "cloud.availability_zone": topology.zone,
        "k8s.node.name": topology.node,
    }
    return {name: value for name, value in known.items() if value}


def span(
    name: str,
    *,
    parent: str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    attributes: Mapping[str, AttributeValue] | None = None,
    marks_failure: bool = True,
) -> AbstractContextManager[Span]:
    """A span around the block and everything awaited in it; `parent` is a traceparent from elsewhere.

    A parent that is missing or malformed leaves the span where it is: below the current one, if any.
    """
    tracer = _current.tracer()
    if tracer is None:
        return _QuietSpan(parent)
    return _kept_span(tracer, name, parent=parent, kind=kind, attributes=attributes, marks_failure=marks_failure)


def keeps_spans() -> bool:
    """Whether somebody gets the spans of this process."""
    return _current.tracer() is not None


def continue_trace(parent: str | None) -> None:
    """As a span that lasts as long as the task that we are in, where nobody keeps spans: nothing is put back."""
    _quiet.set(_ids_below(parent))


class _QuietSpan:
    """Ids for the length of a block. No generator and none of the library's contexts: every call pays for it."""

    __slots__ = ("_parent", "_token")

    def __init__(self, parent: str | None) -> None:
        self._parent = parent

    def __enter__(self) -> Span:
        current = _ids_below(self._parent)
        self._token: Token[Span] = _quiet.set(current)
        return current

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _quiet.reset(self._token)


@contextmanager
def _kept_span(
    tracer: Tracer,
    name: str,
    *,
    parent: str | None,
    kind: SpanKind,
    attributes: Mapping[str, AttributeValue] | None,
    marks_failure: bool,
) -> Iterator[Span]:
    with tracer.start_as_current_span(
        name,
        context=_extract(parent),
        kind=kind,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except Exception as exc:
            if marks_failure:
                mark_failed(current, exc)
            raise


def current_span() -> Span:
    """The one that we are in; an invalid one where there is none."""
    return _quiet.get() if _current.tracer() is None else trace.get_current_span()


def mark_failed(failed: Span, exc: Exception) -> None:
    """Our own errors are said by their code; a stranger is recorded with its stack."""
    if isinstance(exc, NoetlError):
        failed.set_attribute("error.type", exc.code)
        failed.set_status(Status(StatusCode.ERROR, exc.message))
    else:
        failed.set_attribute("error.type", type(exc).__qualname__)
        failed.record_exception(exc)
        failed.set_status(Status(StatusCode.ERROR))


def current_traceparent() -> str | None:
    """The W3C `traceparent` of the current span: what goes into metadata, outbox rows and NATS headers."""
    context = current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def current_trace_id() -> str | None:
    """The id to look for in the logs of every service."""
    context = current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def _ids_below(parent: str | None) -> Span:
    """A span that nobody keeps: it has an id of its own in the trace of its parent, and nothing to remember."""
    above = _context_of(parent) if parent is not None else None
    if above is None:
        above = _quiet.get().get_span_context()
    is_root = not above.is_valid
    return NonRecordingSpan(
        SpanContext(
            trace_id=_IDS.generate_trace_id() if is_root else above.trace_id,
            span_id=_IDS.generate_span_id(),
            is_remote=False,
            trace_flags=TraceFlags(TraceFlags.SAMPLED) if is_root else above.trace_flags,
        )
    )


def _context_of(traceparent: str) -> SpanContext | None:
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return None
    trace_id, span_id, flags = found.groups()
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return context if context.is_valid else None


def _extract(parent: str | None) -> Context | None:
    if parent is None:
        return None
    extracted = _PROPAGATOR.extract({"traceparent": parent}, context=Context())
    return extracted if trace.get_current_span(extracted).get_span_context().is_valid else None


def _otlp_exporter(endpoint: str) -> SpanExporter:
    # A quarter of a second to import, and most processes on a developer's machine have no collector.
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415

    return OTLPSpanExporter(endpoint=endpoint, insecure=True, timeout=EXPORT_TIMEOUT_SECONDS)
