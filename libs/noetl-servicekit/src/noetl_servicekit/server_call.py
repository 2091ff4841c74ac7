"""One way to put something around a gRPC method of any kind: whoever does it sees a call, and the work of it."""

from __future__ import annotations

import abc
import inspect
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import grpc

from noetl_servicekit.http2.served_call import ServedCall

# Requests and responses belong to the method that is wrapped; nothing here looks at them.
Context = ServedCall
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in the stubs only
Behaviour = Callable[[Any, Context], Awaitable[Any]]
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


class CallInterceptor(abc.ABC):
    """Runs every method, unary or streaming, by `run`; one for all that is done around a call, since layers cost."""

    @abc.abstractmethod
    async def run(self, method: Method, work: Work, request: Any, context: Context) -> Any:
        """Do the work of a call, and what is to be done around it."""

    def around(self, full_name: str, handler: Handler) -> Behaviour:
        """A method with all that is done around it; one that streams its answers writes them."""
        inner: Any  # the stubs describe methods of the synchronous library
        if handler.response_streaming:
            inner = _written(handler.stream_stream if handler.request_streaming else handler.unary_stream)
        else:
            inner = handler.stream_unary if handler.request_streaming else handler.unary_unary
        method, work, run = Method.named(full_name, lasts=bool(handler.response_streaming)), cast(Work, inner), self.run

        def behaviour(request: Any, context: Context) -> Awaitable[Any]:
            return run(method, work, request, context)

        return behaviour


def _written(inner: Any) -> Work:
    # A coroutine that writes, not a generator: a generator that the library drops in the middle is
    # closed by another task, where the context variables of this call no longer exist.
    async def work(request: Any, context: Context) -> None:
        responses = inner(request, context)
        if inspect.isawaitable(responses):  # it writes by itself
            await responses
            return
        async with aclosing(responses):
            async for response in responses:
                await context.write(response)

    return work
