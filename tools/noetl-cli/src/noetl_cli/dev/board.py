"""Where the threads of a supervisor agree on the state of the stack, and wait for it to change."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from noetl_cli.dev.state import Phase, StackState

Listener = Callable[[StackState], None]


class StateBoard:
    """Every change is written to the state file, told to the listeners, and wakes whoever waits."""

    def __init__(self, state: StackState, *, file: Path) -> None:
        self._state = state
        self._file = file
        self._changed = threading.Condition()
        self._stop_requested = False
        self._listeners: list[Listener] = []
        state.write(file)

    @property
    def state(self) -> StackState:
        return self._state

    @property
    def stop_requested(self) -> bool:
        return self._stop_requested

    def listen(self, listener: Listener) -> None:
        """Have every new state told; listeners are quick, and change nothing themselves."""
        self._listeners.append(listener)

    def component(self, name: str, **changes: Any) -> None:
        """Report a change of one component."""
        with self._changed:
            self._publish(self._state.with_component(name, **changes))

    def phase(self, phase: Phase, *, error: str | None = None) -> None:
        """Report a change of the whole stack."""
        with self._changed:
            self._publish(replace(self._state, phase=phase, error=error or self._state.error))

    def request_stop(self) -> None:
        """From now on nothing new is started, and whoever waits for something to start is woken."""
        with self._changed:
            self._stop_requested = True
            self._changed.notify_all()

    def wait(self, condition: Callable[[StackState], bool], *, seconds: float | None = None) -> bool:
        """Block until the condition holds: True; or a stop is requested, or the time is over: False."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop_requested or condition(self._state), timeout=seconds)
            return not self._stop_requested and condition(self._state)

    def _publish(self, state: StackState) -> None:
        self._state = state
        state.write(self._file)
        for listener in self._listeners:
            listener(state)
        self._changed.notify_all()
