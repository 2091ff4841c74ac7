"""One way to put something around a gRPC method of any kind: an interceptor is one context manager."""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc

# Requests and responses belong to the method that is wrapped; nothing here looks at them.
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only
Behaviour = Callable[[Any, Context], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCall:
    """A call that has arrived."""

    method: str
    context: Context

    @property
    def is_infrastructure(self) -> bool:
        """Health and reflection say nothing about tenants, and are asked by probes that are nobody."""
        return self.method.startswith(("/grpc.health.", "/grpc.reflection."))

    def metadata(self, key: str) -> str | None:
        for name, value in self.context.invocation_metadata() or ():
            if name == key:
                return value if isinstance(value, str) else value.decode("utf-8", "replace")
        return None


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs every method, unary or streaming, inside `around`."""

    @abc.abstractmethod
    def around(self, call: ServerCall) -> AbstractAsyncContextManager[None]: ...

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method: the library answers UNIMPLEMENTED
            return None
        return self._wrap(handler, handler_call_details.method)

    def _wrap(self, handler: Handler, method: str) -> Handler:
        inner: Any  # the stubs describe methods of the synchronous library
        if handler.response_streaming:
            if handler.request_streaming:
                make, inner = grpc.stream_stream_rpc_method_handler, handler.stream_stream
            else:
                make, inner = grpc.unary_stream_rpc_method_handler, handler.unary_stream
            behaviour = self._streaming(inner, method)
        else:
            if handler.request_streaming:
                make, inner = grpc.stream_unary_rpc_method_handler, handler.stream_unary
            else:
                make, inner = grpc.unary_unary_rpc_method_handler, handler.unary_unary
            behaviour = self._unary(inner, method)
        return make(behaviour, handler.request_deserializer, handler.response_serializer)

    def _unary(self, inner: Behaviour, method: str) -> Behaviour:
        async def behaviour(request: Any, context: Context) -> Any:
            async with self.around(ServerCall(method=method, context=context)):
                return await inner(request, context)

        return behaviour

    def _streaming(self, inner: Behaviour, method: str) -> Behaviour:
        # A coroutine that writes, not a generator: a generator that the library drops in the middle is
        # closed by another task, where the context variables of this call no longer exist.
        async def behaviour(request: Any, context: Context) -> None:
            async with self.around(ServerCall(method=method, context=context)):
                responses = inner(request, context)
                if inspect.isawaitable(responses):  # it writes by itself, as the next interceptor does
                    await responses
                    return
                async with aclosing(responses):
                    async for response in responses:
                        await _write(context, response)

        return behaviour


async def _write(context: Context, response: Any) -> None:
    try:
        await context.write(response)
    except grpc.aio.BaseError as exc:
        # The caller has hung up: the write that tells us so may be quicker than the cancellation of this task.
        raise asyncio.CancelledError from exc
