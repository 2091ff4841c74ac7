"""What every gRPC server does around a call: trace it, count it, translate its errors, know its caller."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn

import grpc
from noetl_contracts.channel import AUTHORIZATION_KEY, TRACEPARENT_KEY
from noetl_contracts.status import to_grpc_status
from noetl_core.errors import NoetlError, Overloaded
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from noetl_servicekit.callers import answer_as
from noetl_servicekit.logging import get_logger
from noetl_servicekit.server_call import CallInterceptor, Context, Method, Work
from noetl_servicekit.stage_tokens import StageCaller
from noetl_servicekit.telemetry import GrpcServerMetrics, MethodMetrics
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.tracing import (
    continue_trace,
    current_span,
    current_trace_id,
    keeps_spans,
    mark_failed,
    span,
)

logger = get_logger()

MAX_CALLS: Final = 2_000
"""Under way at once in one server: more than that wait at their callers, who are told when to come again."""
MAX_STREAMS: Final = 2_000
"""The same of calls that last."""
RETRY_SECONDS: Final = 1.0

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


class ServiceCalls(CallInterceptor):
    """From the outside in: traced, counted, translated, authenticated. So a refused token is translated, counted and
    traced like any other error."""

    def __init__(
        self,
        tokens: Tokens,
        metrics: GrpcServerMetrics,
        *,
        clock: Callable[[], float] = time.perf_counter,
        max_calls: int = MAX_CALLS,
        max_streams: int = MAX_STREAMS,
    ) -> None:
        super().__init__()
        self._tokens = tokens
        self._metrics = metrics
        self._clock = clock
        self._of_method: dict[str, MethodMetrics] = {}
        self._under_way = {True: 0, False: 0}
        self._at_most = {True: max_streams, False: max_calls}

    async def run(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        if method.is_infrastructure:
            return await self._count(method, work, request, context)
        parent = context.header(TRACEPARENT_KEY)
        if not keeps_spans():
            continue_trace(parent)
            return await self._count(method, work, request, context)
        # The span carries the method's name, as tracing tools expect.
        with span(
            "grpc.server",
            parent=parent,
            kind=SpanKind.SERVER,
            attributes={"rpc.system": "grpc", "rpc.service": method.service, "rpc.method": method.name},
            marks_failure=False,  # a refusal is an answer
        ) as current:
            if not current.is_recording():
                return await self._count(method, work, request, context)
            current.update_name(f"{method.service}/{method.name}")
            try:
                answer = await self._count(method, work, request, context)
            except BaseException as exc:
                _note_status(current, status_code(context, exc))
                raise
            _note_status(current, grpc.StatusCode.OK)
            return answer

    async def _count(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        """Every error of ours becomes a status with typed details; what is not ours is hidden. All are counted."""
        metrics = self._of_method.get(method.full_name)
        if metrics is None:
            metrics = self._of_method[method.full_name] = MethodMetrics(self._metrics, method.full_name)
        started_at = self._clock()
        metrics.started.inc()
        metrics.in_flight.inc()
        code, has_room = grpc.StatusCode.OK, False
        try:
            if not method.is_infrastructure:
                self._let_in(method)
                has_room = True
                self._authenticate(method, context)
            return await work(request, context)
        except BaseException as exc:
            try:
                await _translate(method, context, exc)
            except BaseException as told:
                code = status_code(context, told)
                raise
            raise AssertionError("an error that is told is raised") from exc
        finally:
            if has_room:
                self._under_way[method.lasts] -= 1
            metrics.in_flight.dec()
            metrics.handled(code.name).inc()
            metrics.handling.observe(self._clock() - started_at)

    def _let_in(self, method: Method) -> None:
        """A flood waits at its source: what is not let in holds no request, no connection and no queue here."""
        under_way = self._under_way[method.lasts]
        if under_way >= self._at_most[method.lasts]:
            raise Overloaded(f"{under_way} calls are under way already", retry_seconds=RETRY_SECONDS)
        self._under_way[method.lasts] = under_way + 1

    def _authenticate(self, method: Method, context: Context) -> None:
        """Nobody gets further without a token; whose it is, is known to everything below."""
        caller = self._tokens.authenticate(context.header(AUTHORIZATION_KEY))
        if isinstance(caller, StageCaller):
            caller.require_method(method.full_name)
        answer_as(caller, method.full_name)


async def _translate(method: Method, context: Context, exc: BaseException) -> NoReturn:
    """Raises, always."""
    if isinstance(exc, grpc.aio.AbortError) or not isinstance(exc, Exception):
        raise exc  # a method that chose its status itself; or the call was cancelled
    if isinstance(exc, NoetlError):
        logger.debug("rpc.refused", rpc_method=method.full_name, code=exc.code, reason=exc.message)
        await context.abort_with_status(to_grpc_status(exc))
    if context.done() or context.cancelled():
        raise exc  # the caller hung up, and the write that told us so is no failure
    await _fail(method, context, exc)


async def _fail(method: Method, context: Context, exc: Exception) -> NoReturn:
    logger.error("rpc.failed", rpc_method=method.full_name, error=type(exc).__qualname__, exc_info=exc)
    mark_failed(current_span(), exc)
    trace_id = current_trace_id()
    facts = {"trace_id": trace_id} if trace_id is not None else {}
    await context.abort_with_status(to_grpc_status(NoetlError("internal error", **facts)))


def status_code(context: Context, exc: BaseException) -> grpc.StatusCode:
    """The status that the caller will see, or would if it were still there."""
    if isinstance(exc, asyncio.CancelledError):
        # By the caller, or by its deadline: deadlines are rounded on their way, so we cannot tell.
        return grpc.StatusCode.CANCELLED
    code: grpc.StatusCode | None = context.code()  # None until somebody sets it
    return code or grpc.StatusCode.UNKNOWN


def _note_status(current: Span, code: grpc.StatusCode) -> None:
    current.set_attribute("rpc.grpc.status_code", code.value[0])
    if code in _SERVER_FAULTS:
        current.set_status(Status(StatusCode.ERROR, code.name))
