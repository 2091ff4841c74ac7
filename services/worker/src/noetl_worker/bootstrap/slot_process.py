"""Slots of a stage in a Python process of a Spark executor: the worker's own code, with the token of one stage.

Tools run on the loop of the main thread. Claims, heartbeats and commits have a thread of their own, so that a row that
keeps the processor busy does not cost the lease. Both last as long as the process, from task to task: connections do.
A process whose tools hang for good ends itself once its frames are lost: its seat is for others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

from noetl_contracts.clients import FrameClient
from noetl_core.canonical import JsonObject
from noetl_core.errors import NoetlError, NotAuthenticated, NotPermitted, Unavailable
from noetl_core.placement import Locality, max_distance_of
from noetl_core.ports.commands import ClaimOutcome, CommandKey, Commands, GrantedCommand, Heartbeats, Worker
from noetl_core.ports.frames import Frames
from noetl_core.ports.upkeep import Upkeep
from noetl_servicekit.env import Env
from noetl_servicekit.event_loop import new_fast_loop
from noetl_servicekit.logging import configure_logging, get_logger
from noetl_servicekit.memory import collect_rarely
from noetl_servicekit.metrics import MetricSet
from noetl_servicekit.process_settings import read_topology
from noetl_servicekit.upkeep import keep_up

from noetl_worker.application.command_end import CommandEnd, CommandPark
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.frame_work import WorkOfPlanners, slot_key
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.slot_order import SlotOrder, SlotReport
from noetl_worker.application.slot_place import SlotPlace, place_of_executor
from noetl_worker.application.slot_tokens import RenewingFrames, TokenInUse
from noetl_worker.application.slots import Slots
from noetl_worker.bootstrap.control_thread import TAKEN_SECONDS, ControlThread
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
RENEWALS: Final = 8
"""How often in what is left of its life it is seen to that a token is renewed, which is due in the second half."""
FRAME_SECONDS: Final = 24 * 3600.0
"""For a frame that was begun, its lease is the limit, and not the time slice."""
STOP_SECONDS: Final = 5.0
"""For calls that were stopped to end in good order: between tasks nothing goes on here."""
HUNG: Final = 75
"""Exit code of a process that gave itself up."""

_NOT_OURS: Final = frozenset({NotAuthenticated.code, NotPermitted.code})
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
        self._token = TokenInUse(order.token, seconds=order.token_seconds)
        self._place = _place(order, os.environ)
        env = Env({**order.variables, **({"NOETL_NODE_ID": self._place.topology.node} if self._place else {})})
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
        self._control = ControlThread()
        self._pulse = time.monotonic()
        self._ended = 0
        self._calls: set[asyncio.Task[Any]] = set()
        self._working: Working = self._loop.run_until_complete(self._open())
        self._frames_here: Frames = FrameClient(planners(self._settings, self._token))
        self._commands = self._control.wait(self._connect())
        collect_rarely()  # as every process of ours: PySpark has loaded far more than rows ever make

    def run(self, order: SlotOrder, share: Sequence[int], task: str) -> SlotReport:
        """Between tasks the loop of the tools stands still."""
        self._token.begin(order.token, seconds=order.token_seconds, left=order.token_left(time.time()))
        self._pulse = time.monotonic()
        self._working.limits.share = order.share_of_rates(len(share))
        return self._loop.run_until_complete(self._run(order, share, task))

    async def _open(self) -> Working:
        upkeep: list[Upkeep] = []
        working = await self._stack.enter_async_context(
            open_working(
                self._settings,
                self._tools,
                variables=self.variables,
                token=self._token,
                metrics=self._metrics,
                keep=upkeep.append,
                rates=self._rates,
            )
        )
        # Nobody asks this process for its health: it has a pulse instead, and no frame while that has stopped.
        self._upkeep = [asyncio.create_task(keep_up(one, lambda: None)) for one in upkeep]
        return working

    async def _connect(self) -> _Guarded:
        commands = planners(self._settings, self._token)
        frames = RenewingFrames(commands, self._token)
        return _Guarded(commands, frames, is_hung=self._is_hung, at_work=self._working.at_work)

    def _is_hung(self) -> bool:
        return time.monotonic() - self._pulse > HUNG_SECONDS

    async def _run(self, order: SlotOrder, share: Sequence[int], task: str) -> SlotReport:
        worker = worker_of(order, task, self._place)
        beating = asyncio.create_task(self._beat())
        try:
            runs = self._working.runs(worker, frames=self._frames_here)
            report = await self._control.on_thread(self._serve(order, share, worker, runs), give_up=_end_process)
            if self._calls:
                await asyncio.wait(self._calls, timeout=STOP_SECONDS)
            return report
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
        renewing = asyncio.create_task(self._renew(slots, worker, order.token_seconds))
        until = time.monotonic() + order.slice_seconds
        try:
            await slots.claim(list(keys.values()))
            while slots.busy and time.monotonic() < until:
                await slots.wait_for_change(min(LOOK_SECONDS, max(until - time.monotonic(), 0)))
                idle = [key for slot, key in keys.items() if slot not in slots.stage_slots]
                if slots.busy and idle:
                    await slots.claim(idle)
            if not slots.busy and not self._ended and self._commands.refusal:
                return SlotReport(left=share, error=self._commands.refusal, code="SLOT_REFUSED")
            is_left = slots.busy > 0
            await slots.drain(seconds=FRAME_SECONDS)
        finally:
            alive.cancel()
            renewing.cancel()
        return SlotReport(frames=self._ended, left=tuple(share) if is_left else ())

    async def _renew(self, slots: Slots, worker: Worker, token_seconds: float) -> None:
        """Frames that are heard of more rarely than a token is good are heard of for its sake."""
        shortest = min(token_seconds / RENEWALS, PULSE_SECONDS)
        while token_seconds > 0:
            await asyncio.sleep(max(self._token.left / RENEWALS, shortest))
            if slots.held and self._token.is_half_over:
                with suppress(NoetlError):  # what is lost, or cannot be told, is noticed by its own heartbeats
                    beats = await self._commands.heartbeat(worker, slots.held)
                    if not beats.unanswered:  # whatever the clock here says of a token that is not exchanged yet
                        shortest = token_seconds / RENEWALS**2

    def _on_tools(self, runs: RunCommand) -> Any:
        async def call(command: GrantedCommand) -> CommandEnd | CommandPark:
            task = asyncio.current_task()
            if task is not None:
                self._calls.add(task)
                task.add_done_callback(self._calls.discard)
            return await runs(command)

        async def run(command: GrantedCommand) -> CommandEnd | CommandPark:
            running = asyncio.run_coroutine_threadsafe(call(command), self._loop)
            try:
                return await asyncio.wrap_future(running)
            finally:
                self._ended += 1

        return run


def worker_of(order: SlotOrder, task: str, place: SlotPlace | None) -> Worker:
    """Who claims frames for a task: no two attempts are the same owner."""
    name, limit = f"{order.owner}-{task}", max_distance_of(order.max_distance)
    locator = order.locator if place is None else place.locator_of(name, limit=limit)
    return Worker(worker_id=name, pool=order.pool, locator=locator, locality=Locality(max_distance=limit))


def _place(order: SlotOrder, environment: Mapping[str, str]) -> SlotPlace | None:
    """None where the worker runs its slots itself, and knows where they are."""
    if not order.driver_host:
        return None
    return place_of_executor(
        read_topology(Env(environment)),
        host=socket.gethostname(),
        driver=read_topology(Env(order.variables)),
        driver_host=order.driver_host,
    )


def _end_process() -> None:
    """The frames are lost, and the loop of the tools does not turn: what hangs here cannot be ended otherwise."""
    logger.error("worker.slot_process_hung", seconds=TAKEN_SECONDS)
    os._exit(HUNG)


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
        self.refusal = ""
        """Why the last claims were refused, if that is for who we are, and not for what there is to do."""

    async def claim(self, worker: Worker, keys: Sequence[CommandKey]) -> tuple[ClaimOutcome, ...]:
        """As any; a token that has ended while its task waited for a seat is told, and the next task has another."""
        outcomes = await super().claim(worker, keys)
        refused = (one.refusal for one in outcomes if one.refusal in _NOT_OURS)
        self.refusal = next((f"frames are refused to this token: {code}" for code in refused), "")
        return outcomes

    async def heartbeat(
        self, worker: Worker, keys: Sequence[CommandKey], *, progress: Mapping[CommandKey, JsonObject] | None = None
    ) -> Heartbeats:
        """As any, while the tools are alive."""
        if self._is_hung():
            raise Unavailable("the tools of this process hang")
        return await super().heartbeat(worker, keys, progress=progress)
