"""Slots of a stage in a Python process of a Spark executor: the worker's own code, with the token of one stage.

Tools run on the loop of the main thread. Claims, heartbeats and commits have a thread of their own, so that a row that
keeps the processor busy does not cost the lease. Both last as long as the process, from task to task: connections do.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

from noetl_contracts.clients import FrameClient
from noetl_core.canonical import JsonObject
from noetl_core.errors import NoetlError, Unavailable
from noetl_core.placement import Locality, max_distance_of
from noetl_core.ports.commands import CommandKey, Commands, GrantedCommand, Heartbeats, Worker
from noetl_core.ports.frames import Frames
from noetl_core.ports.upkeep import Upkeep
from noetl_servicekit.env import Env
from noetl_servicekit.event_loop import new_fast_loop
from noetl_servicekit.logging import configure_logging, get_logger
from noetl_servicekit.memory import collect_rarely
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.upkeep import keep_up

from noetl_worker.application.command_end import CommandEnd, CommandPark
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.slot_order import SlotOrder, SlotReport
from noetl_worker.application.slots import Slots
from noetl_worker.bootstrap.working import Working, open_working, planners
from noetl_worker.entrypoints.work_loop import keep_alive
from noetl_worker.settings import WorkSettings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.toolbox import ToolboxSettings

logger = get_logger()

LOOK_SECONDS: Final = 0.5
"""How often a slot that found nothing asks again while others of its process run."""
HUNG_SECONDS: Final = 30.0
"""A loop that has not turned for so long gets no more heartbeats: its frames are for others."""
PULSE_SECONDS: Final = 1.0
FRAME_SECONDS: Final = 24 * 3600.0
"""For a frame that was begun, its lease is the limit, and not the time slice."""

T = TypeVar("T")
_opened: dict[int, SlotProcess] = {}
"""By process: one that was forked from another has to connect by itself."""


def run_slots(common: Mapping[str, Any], share: Sequence[int], task: str) -> JsonObject:
    """What a task of Spark calls: run frames at these slots until there are none, or time is over."""
    order = SlotOrder.from_json(common)
    try:
        process = _opened.get(os.getpid())
        if process is None or process.variables != order.variables:
            process = _opened[os.getpid()] = SlotProcess(order)
        return process.run(order, share, task).to_json()
    except NoetlError as exc:  # whoever is away now will be back
        return SlotReport(left=share, error=exc.message, code="SLOT_UNAVAILABLE").to_json()


class SlotProcess:
    """Opened with the first task of its process."""

    def __init__(self, order: SlotOrder) -> None:
        self.variables = order.variables
        self._rates = Path(order.rates) if order.rates else None
        self._token = order.token
        env = Env(order.variables)
        self._settings = WorkSettings.read(env)
        self._tools = ToolboxSettings.read(
            env, slots=env.integer("NOETL_WORKER_SLOTS", default=8, minimum=1, maximum=1000), python_spares=0
        )
        env.check()
        configure_logging(service="worker", instance=order.owner, level="warning")
        self._metrics = WorkerMetrics(MetricSet())
        self._loop = new_fast_loop()
        asyncio.set_event_loop(self._loop)
        self._stack = AsyncExitStack()
        self._control = _ControlThread()
        self._pulse = time.monotonic()
        self._ended = 0
        self._working: Working = self._loop.run_until_complete(self._open())
        self._frames_here: Frames = FrameClient(planners(self._settings, self._current_token))
        self._commands: Commands = self._control.wait(self._connect())
        collect_rarely()  # as every process of ours: PySpark has loaded far more than rows ever make

    def run(self, order: SlotOrder, share: Sequence[int], task: str) -> SlotReport:
        """Between tasks the loop of the tools stands still."""
        self._token = order.token
        self._working.limits.share = order.share_of_rates(len(share))
        return self._loop.run_until_complete(self._run(order, share, task))

    async def _open(self) -> Working:
        upkeep: list[Upkeep] = []
        working = await self._stack.enter_async_context(
            open_working(
                self._settings,
                self._tools,
                variables=self.variables,
                token=self._current_token,
                metrics=self._metrics,
                keep=upkeep.append,
                rates=self._rates,
            )
        )
        # Nobody asks this process for its health: it has a pulse instead, and no frame while that has stopped.
        self._upkeep = [asyncio.create_task(keep_up(one, lambda: None)) for one in upkeep]
        return working

    async def _connect(self) -> Commands:
        commands = planners(self._settings, self._current_token)
        return _Guarded(commands, FrameClient(commands), is_hung=self._is_hung, at_work=self._working.at_work)

    def _current_token(self) -> str:
        return self._token

    def _is_hung(self) -> bool:
        return time.monotonic() - self._pulse > HUNG_SECONDS

    async def _run(self, order: SlotOrder, share: Sequence[int], task: str) -> SlotReport:
        locality = Locality(max_distance=max_distance_of(order.max_distance))
        worker = Worker(worker_id=f"{order.owner}-{task}", pool=order.pool, locator=order.locator, locality=locality)
        beating = asyncio.create_task(self._beat())
        try:
            runs = self._working.runs(worker, frames=self._frames_here)
            return await self._control.on_thread(self._serve(order, share, worker, runs))
        finally:
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._pulse = time.monotonic()
            await asyncio.sleep(PULSE_SECONDS)

    async def _serve(self, order: SlotOrder, share: Sequence[int], worker: Worker, runs: RunCommand) -> SlotReport:
        """On the thread of heartbeats: claim, have the other thread run, commit, until time is over."""
        self._ended = 0
        keys = {slot: slot_key(order.execution_id, stage_id=order.stage_id, slot=slot) for slot in share}
        slots = Slots(self._commands, self._on_tools(runs), worker=worker, size=len(keys), metrics=self._metrics)
        alive = asyncio.create_task(
            keep_alive(slots, every_seconds=self._settings.heartbeat_seconds, beat=lambda: None)
        )
        until = time.monotonic() + order.slice_seconds
        try:
            await slots.claim(list(keys.values()))
            while slots.busy and time.monotonic() < until:
                await slots.wait_for_change(min(LOOK_SECONDS, max(until - time.monotonic(), 0)))
                idle = [key for slot, key in keys.items() if slot not in slots.stage_slots]
                if slots.busy and idle:
                    await slots.claim(idle)
            is_left = slots.busy > 0
            await slots.drain(seconds=FRAME_SECONDS)
        finally:
            alive.cancel()
        return SlotReport(frames=self._ended, left=tuple(share) if is_left else ())

    def _on_tools(self, runs: RunCommand) -> Any:
        async def run(command: GrantedCommand) -> CommandEnd | CommandPark:
            running = asyncio.run_coroutine_threadsafe(runs(command), self._loop)
            try:
                return await asyncio.wrap_future(running)
            finally:
                self._ended += 1

        return run


class _Guarded(WorkOfPlanners):
    """Frames of a loop that hangs are not kept: somebody else may have them when their leases are over."""

    def __init__(
        self,
        commands: Commands,
        frames: Frames,
        *,
        is_hung: Callable[[], bool],
        at_work: FramesAtWork,
    ) -> None:
        super().__init__(commands, frames, at_work=at_work)
        self._is_hung = is_hung

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """As any, while the tools are alive."""
        if self._is_hung():
            raise Unavailable("the tools of this process hang")
        return await super().heartbeat(worker, keys, progress=progress)


class _ControlThread:
    """A loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_heed)
        threading.Thread(target=self._loop.run_forever, name="noetl-slots", daemon=True).start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def on_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something there, while the loop here goes on."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


def _heed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # Two loops that use gRPC wake each other up, and one of them finds nothing to read.
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)
