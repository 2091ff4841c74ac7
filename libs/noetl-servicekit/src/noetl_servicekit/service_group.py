"""The parts of a running process: started in order, supervised together, stopped in the reverse order."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, TypeVar

import grpc
from noetl_core.ports.upkeep import Keep, Upkeep
from starlette.routing import BaseRoute

from noetl_servicekit.env import Address
from noetl_servicekit.grpc_server import serve_grpc
from noetl_servicekit.health import Health
from noetl_servicekit.http_server import serve_http
from noetl_servicekit.logging import get_logger
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.ops_http import ops_app
from noetl_servicekit.process_settings import ProcessSettings
from noetl_servicekit.ready_file import ReadyFile
from noetl_servicekit.supervision import Backoff, LoopBody, SupervisedLoop
from noetl_servicekit.telemetry import GrpcServerMetrics, LoopMetrics, PlaceMetrics
from noetl_servicekit.tokens import Tokens
from noetl_servicekit.upkeep import keep_up

logger = get_logger()

T = TypeVar("T")
DEFAULT_MAX_SILENCE_SECONDS: Final = 30.0


class ServiceGroup:
    """What a service's `bootstrap` puts its parts into; `run_service` makes it, and takes it down."""

    def __init__(
        self,
        settings: ProcessSettings,
        *,
        arguments: argparse.Namespace | None = None,
        metrics: MetricSet | None = None,
        health: Health | None = None,
        backoff: Backoff | None = None,
        when_stopping: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.arguments = arguments or argparse.Namespace()
        self.metrics = metrics or MetricSet(with_process_metrics=True)
        self.health = health or Health()
        self.stopping: Final = asyncio.Event()
        self.failure: BaseException | None = None
        self._when_stopping = when_stopping
        self._backoff = backoff or Backoff()
        self._loop_metrics = LoopMetrics(self.metrics)
        PlaceMetrics(self.metrics).tell(settings.service, settings.instance, settings.topology)
        self._parts = AsyncExitStack()

    async def enter(self, part: AbstractAsyncContextManager[T]) -> T:
        """Start a part now; it is stopped after everything that is started later."""
        return await self._parts.enter_async_context(part)

    async def enter_kept(self, opened: Callable[[Keep], AbstractAsyncContextManager[T]]) -> T:
        """Start a part that needs something now and then, which is done from when it is open until it is closed."""
        found: list[Upkeep] = []
        part = await self.enter(opened(found.append))
        for upkeep in found:
            self.keep(upkeep)
        return part

    def on_stop(self, stop: Callable[[], Awaitable[object]]) -> None:
        """For a part that is no context manager."""

        async def call() -> None:
            await stop()

        self._parts.push_async_callback(call)

    def loop(
        self,
        name: str,
        body: LoopBody,
        *,
        max_silence_seconds: float = DEFAULT_MAX_SILENCE_SECONDS,
        drains: bool = False,
    ) -> None:
        """Run `body(beat)` until the process stops; it calls `beat` in every round.

        A retryable error starts it again after a while; any other error, or a return, ends the process.
        A loop that `drains` watches `stopping` and ends by itself; any other is cancelled.
        """
        supervised = SupervisedLoop(
            name,
            body,
            beat=self.health.watch(name, max_silence_seconds),
            metrics=self._loop_metrics,
            backoff=self._backoff,
        )
        task = asyncio.create_task(supervised.run(self.stopping), name=f"loop {name}")
        task.add_done_callback(lambda done: self._loop_done(name, done))
        self._parts.push_async_callback(self._end_loop, task, drains)

    def keep(self, upkeep: Upkeep) -> None:
        """Have done, for as long as the process runs, what a part needs that was entered before."""
        self.loop(
            upkeep.name,
            lambda beat: keep_up(upkeep, beat),
            max_silence_seconds=DEFAULT_MAX_SILENCE_SECONDS + 3 * upkeep.every_seconds,
        )

    async def serve_ops(self, listen: Address, *, extra_routes: Sequence[BaseRoute] = ()) -> Address:
        """First of all parts, so that it still answers while the others stop."""
        app = ops_app(metrics=self.metrics, health=self.health, extra_routes=extra_routes)
        return await self.enter(serve_http(app, listen))

    async def serve_grpc(
        self,
        listen: Address,
        *,
        register: Callable[[grpc.aio.Server], None],
        service_names: Sequence[str],
        tokens: Tokens,
    ) -> Address:
        """With the interceptors, health and reflection that every server has."""
        return await self.enter(
            serve_grpc(
                listen,
                register=register,
                service_names=service_names,
                tokens=tokens,
                metrics=GrpcServerMetrics(self.metrics),
                health=self.health,
                drain_seconds=self.settings.stop_seconds / 2,
            )
        )

    def ready(self, **addresses: Address) -> None:
        """Everything is started and these addresses are bound: say so, once."""
        if self.settings.ready_file is not None:
            ready_file = ReadyFile(path=self.settings.ready_file)
            self._parts.callback(ready_file.remove)
            ready_file.write(service=self.settings.service, instance=self.settings.instance, addresses=addresses)
        logger.info("service.ready", addresses={name: str(address) for name, address in addresses.items()})

    def stop(self, reason: str) -> None:
        """Ask the process to end; who asks again changes nothing."""
        if not self.stopping.is_set():
            logger.info("service.stopping", reason=reason)
            self._when_stopping()
            self.health.drain()
            self.stopping.set()

    def fail(self, failure: BaseException) -> None:
        """End the process with a failure."""
        self.failure = self.failure or failure
        self.stop(f"failure: {type(failure).__qualname__}")

    async def close(self) -> None:
        """Stop the parts, the last started first; each gets its turn whatever the others do."""
        await self._parts.aclose()

    def _loop_done(self, name: str, done: asyncio.Task[None]) -> None:
        self.health.forget(name)
        failure = None if done.cancelled() else done.exception()
        if failure is not None:
            logger.error("loop.crashed", loop=name, error=type(failure).__qualname__, exc_info=failure)
            self.fail(failure)

    @staticmethod
    async def _end_loop(task: asyncio.Task[None], drains: bool) -> None:
        if not drains:
            task.cancel()
        await asyncio.wait({task})
