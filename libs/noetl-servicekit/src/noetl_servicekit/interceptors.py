"""What every gRPC server does around a call: trace it, count it, translate its errors, know its caller."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
from noetl_contracts.channel import AUTHORIZATION_KEY, TRACEPARENT_KEY
from noetl_contracts.status import to_grpc_status
from noetl_core.errors import NoetlError
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from structlog.contextvars import bound_contextvars

from noetl_servicekit.callers import ANY, Caller, calling_as
from noetl_servicekit.logging import get_logger
from noetl_servicekit.server_call import CallInterceptor, Context, ServerCall
from noetl_servicekit.telemetry import GrpcServerMetrics
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.tracing import current_trace_id, mark_failed, span

logger = get_logger()

_SERVER_FAULTS = frozenset(
    {
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)


def server_interceptors(*, tokens: Tokens, metrics: GrpcServerMetrics) -> list[grpc.aio.ServerInterceptor]:
    """Outermost first: a refused token is translated, counted and traced like any other error."""
    return [
        TracingInterceptor(),
        MetricsInterceptor(metrics),
        ErrorInterceptor(),
        TenantInterceptor(tokens),
    ]


class TracingInterceptor(CallInterceptor):
    """Continues the caller's trace; the span carries the method's name, as tracing tools expect."""

    @asynccontextmanager
    async def around(self, call: ServerCall) -> AsyncIterator[None]:
        if call.is_infrastructure:
            yield
            return
        service, _, method = call.method.removeprefix("/").partition("/")
        with span(
            "grpc.server",
            parent=call.metadata(TRACEPARENT_KEY),
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": service, "rpc.method": method},
            marks_failure=False,  # a refusal is an answer
        ) as current:
            current.update_name(f"{service}/{method}")
            code = grpc.StatusCode.OK
            try:
                yield
            except BaseException as exc:
                code = status_code(call.context, exc)
                raise
            finally:
                current.set_attribute("rpc.grpc.status_code", code.value[0])
                if code in _SERVER_FAULTS:
                    current.set_status(Status(StatusCode.ERROR, code.name))


class MetricsInterceptor(CallInterceptor):
    """Counts and times every call."""

    def __init__(self, metrics: GrpcServerMetrics, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._metrics = metrics
        self._clock = clock

    @asynccontextmanager
    async def around(self, call: ServerCall) -> AsyncIterator[None]:
        method, metrics, started_at = call.method, self._metrics, self._clock()
        metrics.started.labels(method).inc()
        in_flight = metrics.in_flight.labels(method)
        in_flight.inc()
        code = grpc.StatusCode.OK
        try:
            yield
        except BaseException as exc:
            code = status_code(call.context, exc)
            raise
        finally:
            in_flight.dec()
            metrics.handled.labels(method, code.name).inc()
            metrics.handling.labels(method).observe(self._clock() - started_at)


class ErrorInterceptor(CallInterceptor):
    """Turns every error of ours into a status with typed details, and hides what is not ours."""

    @asynccontextmanager
    async def around(self, call: ServerCall) -> AsyncIterator[None]:
        with bound_contextvars(rpc_method=call.method):
            try:
                yield
            except grpc.aio.AbortError:  # a method that chose its status itself
                raise
            except NoetlError as exc:
                await self._refuse(call, exc)
            except Exception as exc:
                if call.context.done() or call.context.cancelled():
                    raise  # the caller hung up, and the write that told us so is no failure
                await self._fail(call, exc)

    async def _refuse(self, call: ServerCall, exc: NoetlError) -> None:
        logger.debug("rpc.refused", code=exc.code, reason=exc.message)
        await call.context.abort_with_status(to_grpc_status(exc))

    async def _fail(self, call: ServerCall, exc: Exception) -> None:
        logger.error("rpc.failed", error=type(exc).__qualname__, exc_info=exc)
        mark_failed(trace.get_current_span(), exc)
        trace_id = current_trace_id()
        facts = {"trace_id": trace_id} if trace_id is not None else {}
        await call.context.abort_with_status(to_grpc_status(NoetlError("internal error", **facts)))


class TenantInterceptor(CallInterceptor):
    """Nobody gets further without a token; whose it is, is known to everything below."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    @asynccontextmanager
    async def around(self, call: ServerCall) -> AsyncIterator[None]:
        if call.is_infrastructure:
            yield
            return
        caller = self._tokens.authenticate(call.metadata(AUTHORIZATION_KEY))
        with calling_as(caller), bound_contextvars(**_log_fields(caller)):
            yield


def status_code(context: Context, exc: BaseException) -> grpc.StatusCode:
    """The status that the caller will see, or would if it were still there."""
    if isinstance(exc, asyncio.CancelledError):
        # By the caller, or by its deadline: deadlines are rounded on their way, so we cannot tell.
        return grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()  # None until somebody sets it
    return code or grpc.StatusCode.UNKNOWN


def _log_fields(caller: Caller) -> dict[str, str]:
    if caller.tenant_id == ANY:
        return {"caller": caller.name}
    return {
        "caller": caller.name,
        "tenant_id": caller.tenant_id,
        "organization_id": caller.organization_id,
    }
