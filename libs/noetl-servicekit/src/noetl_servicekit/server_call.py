"""One way to put something around a gRPC method of any kind: whoever does it sees a call, and the work of it."""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

# Requests and responses belong to the method that is wrapped; nothing here looks at them.
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only
Behaviour = Callable[[Any, Context], Any]
Work = Callable[[Any, Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service; calls share what is known of it."""

    full_name: str
    service: str
    name: str
    is_infrastructure: bool
    """Health and reflection say nothing about tenants, and are asked by probes that are nobody."""
    lasts: bool = False
    """Whether it may go on for as long as both sides live, as streams of answers do."""

    @classmethod
    def named(cls, full_name: str, *, lasts: bool = False) -> Method:
        service, _, name = full_name.removeprefix("/").partition("/")
        return cls(full_name, service, name, full_name.startswith(("/grpc.health.", "/grpc.reflection.")), lasts)


def metadata(context: Context, key: str) -> str | None:
    """What the caller sent under a key."""
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else value.decode("utf-8", "replace")
    return None


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs every method, unary or streaming, by `run`; one for all that is done around a call, since layers cost."""

    def __init__(self) -> None:
        self._wrapped: dict[str, tuple[Handler, Handler]] = {}

    @abc.abstractmethod
    async def run(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        """Do the work of a call, and what is to be done around it."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: the library answers UNIMPLEMENTED
            return None
        full_name = handler_call_details.method
        known = self._wrapped.get(full_name)
        if known is None or known[0] is not handler:  # the same one for every call, unless it is made anew each time
            known = self._wrapped[full_name] = (
                handler,
                self._wrap(handler, Method.named(full_name, lasts=bool(handler.response_streaming))),
            )
        return known[1]

    def _wrap(self, handler: Handler, method: Method) -> Handler:
        inner: Any  # the stubs describe methods of the synchronous library
        if handler.response_streaming:
            if handler.request_streaming:
                make, inner = grpc.stream_stream_rpc_method_handler, handler.stream_stream
            else:
                make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
            inner = _written(inner)
        elif handler.request_streaming:
            make, inner = grpc.stream_unary_rpc_method_handler, handler.stream_unary
        else:
            make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
        return make(self._behaviour(inner, method), handler.request_deserializer, handler.response_serializer)

    def _behaviour(self, work: Work, method: Method) -> Behaviour:
        async def behaviour(request: Any, context: Context) -> Any:
            return await self.run(method, work, request, context)

        return behaviour


def _written(inner: Behaviour) -> Work:
    # A coroutine that writes, not a generator: a generator that the library drops in the middle is
    # closed by another task, where the context variables of this call no longer exist.
    async def work(request: Any, context: Context) -> None:
        responses = inner(request, context)
        if inspect.isawaitable(responses):  # it writes by itself
            await responses
            return
        async with aclosing(responses):
            async for response in responses:
                await _write(context, response)

    return work


async def _write(context: Context, response: Any) -> None:
    try:
        await context.write(response)
    except grpc.aio.BaseError as exc:
        # The caller has hung up: the write that tells us so may be quicker than the cancellation of this task.
        raise asyncio.CancelledError from exc
