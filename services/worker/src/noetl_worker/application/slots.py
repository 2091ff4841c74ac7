"""The commands that this worker runs at the moment: kept alive, delivered once, stopped when they no longer count."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from noetl_contracts.room import asked_to_wait
from noetl_core.errors import AlreadyTerminal, LeaseLost, NoetlError
from noetl_core.ports.commands import (
    UNANSWERED,
    CommandKey,
    Commands,
    Completion,
    GrantedCommand,
    Worker,
)
from noetl_servicekit.logging import get_logger
from noetl_servicekit.tracing import span

from noetl_worker.application.beats import Beats
from noetl_worker.application.call_progress import CallProgress
from noetl_worker.application.command_end import CommandEnd, CommandPark, failed_result
from noetl_worker.application.resting import Resting
from noetl_worker.application.running import Running
from noetl_worker.telemetry import WorkerMetrics

logger = get_logger()

Run = Callable[[GrantedCommand], Awaitable[CommandEnd | CommandPark]]
Answer = TypeVar("Answer")

RETRY_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0)
REMEMBERED_FRAMES = 512
"""More than the planner can have granted again before it heard that they were delivered."""


class Slots:
    """At most `size` commands at once; a slot goes on with the next command that a completion hands back."""

    def __init__(
        self,
        commands: Commands,
        run: Run,
        *,
        worker: Worker,
        size: int,
        metrics: WorkerMetrics,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        resting: Resting | None = None,
        progress: CallProgress | None = None,
    ) -> None:
        self._commands = commands
        self._run = run
        self._worker = worker
        self._size = size
        self._metrics = metrics
        self._clock = clock
        self._sleep = sleep
        self._running: dict[CommandKey, Running] = {}
        self.beats = Beats(
            commands,
            self._running,
            worker=worker,
            progress=progress or CallProgress(),
            metrics=metrics,
            stop=self._stop,
            clock=clock,
        )
        self._delivered: dict[CommandKey, None] = {}
        """Whose answers were heard here last, in that order. Every claim asks for one: they are found, not compared."""
        self._changed = asyncio.Event()
        self._resting = Resting() if resting is None else resting  # an empty one is false
        self._resting.on_change = self._on_resting
        self._is_draining = False
        self._reserved = 0
        self.hinted_at = -math.inf
        """When somebody last wanted slots for what the bus told of."""
        self.step_aside: Callable[[], Awaitable[None]] | None = None
        """Asks whoever has reserved slots to give them up."""

    def _on_resting(self) -> None:
        self._metrics.resting_commands.set(len(self._resting))
        self._changed.set()

    @property
    def free(self) -> int:
        """How many more commands could start now."""
        if self._is_draining:
            return 0
        return self._size + len(self._resting) - len(self._running)

    @property
    def room(self) -> int:
        """How many more commands could start now that nobody waits for at a planner, in slots that are not lent."""
        return 0 if self._is_draining else self._size - len(self._running) - self._reserved

    @property
    def held(self) -> tuple[CommandKey, ...]:
        """What runs here."""
        return tuple(self._running)

    @contextlib.contextmanager
    def reserve(self, number: int) -> Iterator[None]:
        """Keep slots free for what a planner may grant."""
        self._reserved += number
        try:
            yield
        finally:
            self._reserved -= number
            self._changed.set()

    @property
    def is_lending(self) -> bool:
        """Whether what is free belongs to commands that wait, and is for their own executions only."""
        return len(self._running) >= self._size

    @property
    def busy(self) -> int:
        """How many commands run now."""
        return len(self._running)

    @property
    def stage_slots(self) -> frozenset[int]:
        """The slots of stages whose frames run here now."""
        frames = (running.command.frame for running in self._running.values())
        return frozenset(frame.slot for frame in frames if frame is not None)

    async def wait_for_free(self) -> int:
        """Wait until something could start; returns how much."""
        while self.free <= 0:
            self._changed.clear()
            await self._changed.wait()
        return self.free

    async def wait_for_change(self, seconds: float) -> None:
        """Wait until something has ended, and no longer than this."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()

    async def claim(self, keys: Sequence[CommandKey]) -> frozenset[CommandKey]:
        """Claim commands and start what was granted; returns those that nobody could judge."""
        wanted = [key for key in dict.fromkeys(keys) if key not in self._running]
        self.hinted_at = self._clock()
        if len(wanted) > self.room and self._reserved and self.step_aside is not None:
            await self.step_aside()
            wanted = [key for key in wanted if key not in self._running]
        wanted, left = self._with_room(wanted)
        # One that is being parked here may have been answered already: it is to be claimed as soon as it is.
        unanswered = {key for key in keys if key in self._running and self._running[key].is_delivering}
        unanswered.update(left)
        asked_at = self._clock()
        for outcome in await self._commands.claim(self._worker, wanted) if wanted else ():
            if outcome.command is not None and self._has_had(outcome.command, asked=outcome.key):
                continue
            if outcome.command is not None:
                self._metrics.claims_granted.inc()
                self._start(outcome.command, asked_at)
                continue
            self._metrics.claims_refused.labels(outcome.refusal).inc()
            if outcome.refusal == UNANSWERED:
                unanswered.add(outcome.key)
        return frozenset(unanswered)

    def take(self, commands: Sequence[GrantedCommand], asked_at: float) -> None:
        """Start what was claimed for this worker while it waited; what it has had is passed over."""
        for command in commands:
            if command.key not in self._running and command.key not in self._delivered:
                self._metrics.claims_granted.inc()
                self._start(command, asked_at)

    def _has_had(self, command: GrantedCommand, *, asked: CommandKey) -> bool:
        """A slot of a stage was hinted again: its frame runs here, or was delivered before this grant of it came."""
        is_of_slot = command.key != asked
        return command.key in self._running or (is_of_slot and command.key in self._delivered)

    def _with_room(self, keys: Sequence[CommandKey]) -> tuple[list[CommandKey], list[CommandKey]]:
        """What may be claimed now, and what has to wait.

        A slot that is lent goes to what may be waited for. If anything could have it, another command that comes to
        wait might, and in the end everybody would.
        """
        own, free = self._size - len(self._running) - self._reserved, self.free - self._reserved
        taken: list[CommandKey] = []
        for key in keys:
            if len(taken) < free and (len(taken) < own or self._resting.waits_for(key)):
                taken.append(key)
        return taken, [key for key in keys if key not in taken]

    def _start(self, command: GrantedCommand, asked_at: float) -> None:
        running = Running(command=command, confirmed_at=asked_at)
        self._running[command.key] = running
        self.beats.change(running)
        self._metrics.busy_slots.set(len(self._running))
        running.task = asyncio.create_task(self._occupy(running), name=f"command-{command.key.command_id}")
        running.task.add_done_callback(lambda _: self._leave(running))  # one that is stopped at once never begins

    async def _occupy(self, running: Running) -> None:
        """Run a command and whatever it is handed next, then leave the slot."""
        try:
            while True:
                completion = await self._run_and_deliver(running)
                if completion is None or completion.next is None:
                    return
                if completion.next.key in self._running or completion.next.key in self._delivered:
                    return  # a claim of the same slot was answered first, and has begun it
                self._switch(running, completion.next)
        finally:
            self._leave(running)

    def _leave(self, running: Running) -> None:
        if self._running.get(running.command.key) is running:
            del self._running[running.command.key]
            self._metrics.busy_slots.set(len(self._running))
            self._changed.set()

    def _switch(self, running: Running, following: GrantedCommand) -> None:
        self._running.pop(running.command.key, None)
        running.begin(following, running.confirmed_at)
        self._running[following.key] = running
        self.beats.change(running)

    async def _run_and_deliver(self, running: Running) -> Completion | None:
        command = running.command
        attributes: dict[str, str | int] = {"noetl.step": command.step, "noetl.attempt": command.attempt}
        with span("worker.command", parent=command.trace or None, attributes=attributes):
            started_at = self._clock()
            end = await self._run_while_it_counts(running)
            if end is None:
                return None
            self._metrics.command_seconds.observe(self._clock() - started_at)
            running.is_delivering = True
            try:
                if isinstance(end, CommandEnd):
                    return await self._deliver(running, end)
                await self._park(running, end)
                return None
            finally:
                running.is_delivering = False

    async def _run_while_it_counts(self, running: Running) -> CommandEnd | CommandPark | None:
        """Trouble around a call that has not begun is no failure of the step: it is tried again while the claim lasts.

        After that the command is left to the end of its lease, and to another worker.
        """
        command, tries = running.command, 0
        while True:
            try:
                return await self._run(command)
            except NoetlError as exc:
                if not exc.retryable:
                    return CommandEnd(result=failed_result(exc))
                if self._clock() > running.usable_until():
                    logger.warning("worker.command_left", step=command.step, code=exc.code, reason=exc.message)
                    return None
                await self._sleep(_pause(exc, tries))
                tries += 1
            except Exception as exc:
                logger.exception("worker.command_failed", step=command.step)
                return CommandEnd(result=failed_result(NoetlError(f"the worker failed: {type(exc).__name__}")))

    async def _deliver(self, running: Running, end: CommandEnd) -> Completion | None:
        """Hand a result over; the answer may bring the next command."""
        completion = await self._tell(
            running,
            lambda: self._commands.complete(
                self._worker,
                running.command.key,
                dict(end.result),
                wants_next=not self._is_draining,
                variables=end.variables,
                logs=end.logs,
            ),
        )
        if completion is not None:
            self._remember(running.command.key)
            self._metrics.commands_completed.labels(str(end.result["status"])).inc()
        return completion

    def _remember(self, key: CommandKey) -> None:
        self._delivered.pop(key, None)
        self._delivered[key] = None
        if len(self._delivered) > REMEMBERED_FRAMES:
            del self._delivered[next(iter(self._delivered))]

    async def _park(self, running: Running, park: CommandPark) -> None:
        """Leave the command to whoever claims it when its child has ended; the slot is free for others."""
        version = await self._tell(
            running,
            lambda: self._commands.park(
                self._worker, running.command.key, park.call, timeout_seconds=park.timeout_seconds
            ),
        )
        if version is not None:
            self._metrics.commands_parked.inc()

    async def _tell(self, running: Running, ask: Callable[[], Awaitable[Answer]]) -> Answer | None:
        """Tell the planner, again and again while the claim may count; a refusal means that it does not."""
        command = running.command
        tries = 0
        while True:
            asked_at = self._clock()
            try:
                answer = await ask()
            except (LeaseLost, AlreadyTerminal) as exc:
                self._metrics.results_discarded.inc()
                logger.warning("worker.result_discarded", step=command.step, code=exc.code)
                return None
            except NoetlError as exc:
                if not exc.retryable or self._clock() > running.usable_until():
                    self._metrics.results_discarded.inc()
                    logger.error("worker.result_undeliverable", step=command.step, code=exc.code, reason=exc.message)
                    return None
                await self._sleep(_pause(exc, tries))
                tries += 1
            else:
                running.confirm(asked_at)
                return answer

    def cancel_execution(self, execution_id: int) -> None:
        """Somebody ended the execution: stop its calls now."""
        for key in [key for key in self._running if key.execution_id == execution_id]:
            self._stop(key, "execution cancelled")

    def stop_activation(self, execution_id: int, *, step: str, activation: int) -> None:
        """An activation ended without waiting for its calls: stop them now."""
        for key, running in list(self._running.items()):
            command = running.command
            if (key.execution_id, command.step, command.activation) == (execution_id, step, activation):
                self._stop(key, "step ended")

    def _stop(self, key: CommandKey, reason: str) -> None:
        running = self._running.get(key)
        if running is not None and running.task is not None:
            logger.info("worker.command_stopped", step=running.command.step, reason=reason)
            self._metrics.commands_stopped.inc()
            running.task.cancel()

    async def drain(self, *, seconds: float) -> None:
        """Take nothing new and let what runs finish; what takes longer is left to another worker."""
        self._is_draining = True
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _pause(error: NoetlError, tries: int) -> float:
    return max(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)], asked_to_wait(error))
