"""A stack of this process: its supervisor runs in a thread, tells of every change, and restarts what we kill."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from noetl_cli.dev.commands import STACK
from noetl_cli.dev.errors import StartFailed
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.keeper import RestartPolicy
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.progress import Out
from noetl_cli.dev.shared_memory import remove_copies
from noetl_cli.dev.stack import SETTINGS_FILE, read_settings
from noetl_cli.dev.state import SATISFIED, StackState, Status
from noetl_cli.dev.supervisor import Supervisor, owning

START_SECONDS = 180.0
READY_SECONDS = 90.0
_T = TypeVar("_T")
_RESTARTS = RestartPolicy(first_seconds=0.05, longest_seconds=0.05)
"""They crash because we kill them: there is nothing to be patient about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A process that we have ended, and when, by the monotonic clock."""

    component: str
    pid: int
    at: float


class OwnStack:
    """Knows the last state that the supervisor has told, and wakes whoever waits for another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state: StackState | None = None
        self._ended = False

    def told(self, state: StackState) -> None:
        """A listener of the supervisor."""
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def ended(self) -> None:
        """The supervisor runs no more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    @property
    def components(self) -> tuple[str, ...]:
        """The names of all that runs or ran here."""
        return tuple(self._state.components) if self._state is not None else ()

    def kill(self, component: str) -> Killed:
        """`kill -9` of the process that runs now; waits for one that is just being started."""
        process = self._wait(lambda state: _running(state, component), seconds=READY_SECONDS, what=component)
        at = time.monotonic()
        with suppress(ProcessLookupError):  # it was faster
            os.kill(process.pid, signal.SIGKILL)
        return Killed(component=component, pid=process.pid, at=at)

    def wait_replaced(self, killed: Killed) -> float:
        """When another process was ready in its place, by the monotonic clock."""

        def ready(state: StackState) -> ProcessIdentity | None:
            found = state.components[killed.component]
            return found.process if found.status is Status.READY and _pid(found.process) != killed.pid else None

        self._wait(ready, seconds=READY_SECONDS, what=killed.component)
        return time.monotonic()

    def wait_ready(self, *, seconds: float = READY_SECONDS) -> None:
        """Everything is up."""

        def is_up(state: StackState) -> bool:
            return bool(state.components) and all(one.status in SATISFIED for one in state.components.values())

        self._wait(is_up, seconds=seconds, what="the stack")

    def _wait(self, found: Callable[[StackState], _T | None], *, seconds: float, what: str) -> _T:
        answer: list[_T] = []

        def is_there() -> bool:
            answer[:] = [one for one in [found(self._state) if self._state is not None else None] if one]
            return bool(answer) or self._ended or (self._state is not None and self._state.failed is not None)

        with self._changed:
            self._changed.wait_for(is_there, timeout=seconds)
            if answer:
                return answer[0]
            failed = self._state.failed if self._state is not None else None
        reason = str(failed.error) if failed is not None else f"not ready after {seconds:g} s"
        raise StartFailed(component=failed.name if failed is not None else what, reason=reason)


@contextmanager
def own_stack(home: StackHome, settings: Mapping[str, str], *, out: Out) -> Iterator[OwnStack]:
    """The whole of NoETL until the end; `settings` go over those of the directory, and stay there."""
    home.create()
    file = home.root / SETTINGS_FILE
    lines = [f"{name}={value}\n" for name, value in {**read_settings(file), **settings}.items()]
    file.write_text("".join(lines), encoding="utf-8")
    logging.getLogger("noetl.dev").setLevel(logging.CRITICAL)  # what its threads say is what we did
    stack = OwnStack()
    out(f"starting a stack in {home.root}")
    with owning(home, STACK, listeners=[stack.told], restarts=_RESTARTS) as supervisor:
        thread = threading.Thread(target=_run, args=(supervisor, stack), name="supervisor")
        thread.start()
        try:
            stack.wait_ready(seconds=START_SECONDS)
            yield stack
        finally:
            supervisor.request_stop()
            _join(thread)
    remove_copies(home)


def _running(state: StackState, component: str) -> ProcessIdentity | None:
    found = state.components[component]
    return found.process if found.status is Status.READY else None


def _pid(process: ProcessIdentity | None) -> int | None:
    return process.pid if process is not None else None


def _run(supervisor: Supervisor, stack: OwnStack) -> None:
    try:
        supervisor.run()
    finally:
        stack.ended()


def _join(thread: threading.Thread) -> None:
    """However often somebody presses Ctrl-C meanwhile: what we started must be gone before we are."""
    while thread.is_alive():
        with suppress(KeyboardInterrupt):
            thread.join()
