"""Keeps one part of a stack as it should be: started after its dependencies, restarted when it crashes."""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from noetl_cli.dev.board import StateBoard
from noetl_cli.dev.component import Part, Task
from noetl_cli.dev.component_process import ComponentProcess, describe_exit
from noetl_cli.dev.state import SATISFIED, StackState, Status

logger = logging.getLogger("noetl.dev")

_TASK_SECONDS = 10.0
"""How long a stop waits for a task, which cannot be interrupted; the end of the supervisor ends it anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How fast a crashing component is started again: soon, then slower and slower, but always once more."""

    first_seconds: float = 0.2
    longest_seconds: float = 10.0
    stable_seconds: float = 30.0
    """A component that ran this long has its earlier crashes forgiven."""

    def delay(self, crashes: int) -> float:
        """The pause before the next start, after so many crashes in a row."""
        doubled: float = self.first_seconds * 2.0 ** min(crashes - 1, 30)
        return min(self.longest_seconds, doubled)


class Keeper:
    """The thread that owns one part: if its first start fails, so does the stack; later it is restarted."""

    def __init__(
        self, part: Part, *, process: ComponentProcess | None, board: StateBoard, restarts: RestartPolicy
    ) -> None:
        self.part = part
        self._process = process
        self._board = board
        self._policy = restarts
        self._starting = threading.Lock()
        self._was_ready = False
        self._thread = threading.Thread(target=self._run, name=f"keep {part.name}", daemon=True)

    def begin(self) -> None:
        """Start the part as soon as what it depends on is ready, and look after it from then on."""
        self._thread.start()

    def end(self, dependents: Sequence["Keeper"]) -> None:
        """Stop the part once its dependents have ended. The board must have been told to stop before."""
        for dependent in dependents:
            dependent.join()
        with self._starting:  # a start under way is let through; the board allows no other
            process = self._process
        if process is not None and process.identity is not None:
            self._board.component(self.part.name, status=Status.STOPPING)
            process.stop()
        self.join()

    def join(self) -> None:
        """Wait until the part has ended."""
        self._thread.join(timeout=_TASK_SECONDS if isinstance(self.part, Task) else None)

    def _run(self) -> None:
        try:
            if not self._board.wait(self._may_start):
                self._report(status=Status.STOPPED)
            elif isinstance(self.part, Task):
                self._run_task(self.part)
            elif self._process is not None:
                self._keep(self._process)
        except Exception as exc:  # whatever it is, it is this part's failure, and is shown as such
            logger.exception("%s failed", self.part.name)
            self._report(status=Status.FAILED, process=None, error=str(exc) or type(exc).__name__)

    def _run_task(self, task: Task) -> None:
        begun = time.monotonic()
        self._report(status=Status.STARTING)
        task.run()
        self._report(status=Status.DONE, start_seconds=_since(begun))

    def _keep(self, process: ComponentProcess) -> None:
        crashes = restarts = 0
        while True:
            begun = time.monotonic()
            reason = self._run_once(process)
            if self._board.stop_requested:
                self._report(status=Status.STOPPED, process=None)
                return
            crashes = 1 if time.monotonic() - begun > self._policy.stable_seconds else crashes + 1
            restarts += 1
            self._report(status=Status.RESTARTING, process=None, restarts=restarts, error=reason)
            self._board.wait(lambda _: False, seconds=self._policy.delay(crashes))

    def _run_once(self, process: ComponentProcess) -> str:
        """One life of the process, from start to end; returns why it ended."""
        begun = time.monotonic()
        try:
            with self._starting:
                if self._board.stop_requested:
                    return "not started: the stack is stopping"
                self._report(status=Status.STARTING)
                process.start()
                self._report(process=process.identity)
            ports = process.wait_ready()
        except Exception as exc:
            process.stop()
            if self._was_ready or self._board.stop_requested:
                return str(exc)
            raise
        self._was_ready = True
        self._report(status=Status.READY, ports=ports, start_seconds=_since(begun))
        return describe_exit(process.wait())

    def _may_start(self, state: StackState) -> bool:
        return all(state.components[name].status in SATISFIED for name in self.part.depends_on)

    def _report(self, **changes: object) -> None:
        self._board.component(self.part.name, **changes)


def _since(begun: float) -> float:
    return round(time.monotonic() - begun, 3)
