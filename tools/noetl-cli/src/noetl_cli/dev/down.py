"""`noetl dev down` and `status`: end whatever of the stack still runs; see how it is."""

import signal
from dataclasses import replace

from noetl_cli.dev.home import StackHome
from noetl_cli.dev.processes import end_process
from noetl_cli.dev.progress import Out
from noetl_cli.dev.state import RUNNING_PHASES, SATISFIED, Phase, StackState, Status

EXIT_READY = 0
EXIT_IN_TROUBLE = 1
EXIT_NOT_RUNNING = 3
_STOP_SECONDS = 60.0
"""Longer than the slowest chain of components takes to stop in good order."""


def down(home: StackHome, *, out: Out) -> int:
    """Return when nothing of the stack runs any more, also where the supervisor itself was killed."""
    if not home.root.exists():
        out("not running")
        return 0
    lock = home.lock()
    holder = lock.holder()
    if holder is not None:
        end_process(holder, stop_signal=signal.SIGTERM, stop_seconds=_STOP_SECONDS)
    lock.acquire()
    try:
        orphans = home.end_orphans()
        _record_end(home)
    finally:
        lock.release()
    for orphan in orphans:
        out(f"ended {orphan}, left over from a killed supervisor")
    out("stopped" if holder is not None or orphans else "not running")
    return 0


def status(home: StackHome) -> StackState | None:
    """What the supervisor last said, corrected by what is alive; None when there was never a stack here."""
    state = StackState.read(home.state_file)
    return state.observed() if state is not None else None


def exit_code_of(state: StackState | None) -> int:
    """For scripts: 0 ready, 1 on its way or in trouble, 3 not running."""
    if state is None or state.phase is Phase.STOPPED:
        return EXIT_NOT_RUNNING
    is_up = all(component.status in SATISFIED for component in state.components.values())
    return EXIT_READY if state.phase is Phase.READY and is_up else EXIT_IN_TROUBLE


def _record_end(home: StackHome) -> None:
    """Write what a killed supervisor could not."""
    state = StackState.read(home.state_file)
    if state is None or state.phase not in RUNNING_PHASES:
        return
    components = {
        name: replace(component, status=Status.STOPPED, process=None) for name, component in state.components.items()
    }
    replace(state, phase=Phase.STOPPED, components=components).write(home.state_file)
