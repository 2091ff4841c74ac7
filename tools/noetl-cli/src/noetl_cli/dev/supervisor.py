"""Starts a stack in the order of its dependencies, keeps it running, and stops it in the reverse order."""

import argparse
import importlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import cast

from noetl_cli.dev.board import Listener, StateBoard
from noetl_cli.dev.component import Component, Part, StackFactory, check_stack, dependents_of
from noetl_cli.dev.component_process import ComponentProcess
from noetl_cli.dev.errors import DirectoryInUse, StackInvalid
from noetl_cli.dev.home import SUPERVISOR, StackHome
from noetl_cli.dev.keeper import Keeper, RestartPolicy
from noetl_cli.dev.ports import release_ports
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.progress import Progress
from noetl_cli.dev.state import SATISFIED, ComponentState, Phase, StackState

EXIT_IN_USE = 3
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

logger = logging.getLogger("noetl.dev")


class _Notice(Enum):
    CHANGED = auto()
    STOP = auto()


class Supervisor:
    """One run of one stack. `run` blocks; everything else happens in the threads of the keepers."""

    def __init__(
        self,
        *,
        home: StackHome,
        parts: Sequence[Part],
        restarts: RestartPolicy | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        check_stack(parts)
        self._parts = parts
        # all that a signal handler touches: its `put` is safe wherever the main thread was interrupted
        self._notices: queue.SimpleQueue[_Notice] = queue.SimpleQueue()
        self._board = StateBoard(_first_state(parts), file=home.state_file)
        for listener in (*listeners, lambda _: self._notices.put(_Notice.CHANGED)):
            self._board.listen(listener)
        policy = restarts or RestartPolicy()
        self._keepers = {
            part.name: Keeper(part, process=_process(part, home), board=self._board, restarts=policy) for part in parts
        }

    def run(self) -> bool:
        """Bring the stack up and keep it so until `request_stop`; False when a part could not be started."""
        for keeper in self._keepers.values():
            keeper.begin()
        self._notices.put(_Notice.CHANGED)  # a stack without parts is ready at once
        while self._notices.get() is not _Notice.STOP:
            state = self._board.state
            if state.failed is not None:
                break
            if state.phase is Phase.STARTING and _is_up(state):
                self._board.phase(Phase.READY)
        failed = self._board.state.failed
        self._board.phase(Phase.STOPPING, error=f"{failed.name}: {failed.error}" if failed else None)
        self._shut_down()
        self._board.phase(Phase.FAILED if failed else Phase.STOPPED)
        return failed is None

    def request_stop(self) -> None:
        """May be called from a signal handler."""
        self._notices.put(_Notice.STOP)

    def _shut_down(self) -> None:
        self._board.request_stop()
        stoppers = []
        for name, keeper in self._keepers.items():
            dependents = [self._keepers[each] for each in dependents_of(name, self._parts)]
            stoppers.append(threading.Thread(target=keeper.end, args=(dependents,), name=f"stop {name}"))
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()


def serve(home: StackHome, stack: str, *, listeners: Sequence[Listener] = ()) -> bool:
    """Own the directory and run the stack until a signal says stop."""
    with owning(home, stack, listeners=listeners) as supervisor, _stopping_on_signals(supervisor):
        return supervisor.run()


@contextmanager
def owning(
    home: StackHome, stack: str, *, listeners: Sequence[Listener] = (), restarts: RestartPolicy | None = None
) -> Iterator[Supervisor]:
    """The supervisor of a directory that is ours until the end, cleaned of what an earlier owner has left running."""
    home.create()
    lock = home.lock()
    lock.acquire()
    try:
        # what is left of an earlier run also holds its ports, so it must be gone before the stack is defined
        for orphan in home.end_orphans():
            logger.warning("ended %s, left over from an earlier run", orphan)
        _first_state(()).write(home.state_file)
        try:
            supervisor = Supervisor(
                home=home, parts=load_stack(stack)(home.root), listeners=listeners, restarts=restarts
            )
        except Exception as exc:
            _failed_state(str(exc) or type(exc).__name__).write(home.state_file)
            raise
        yield supervisor
    finally:
        try:
            release_ports(home.ports_file)
        finally:
            lock.release()


def load_stack(stack: str) -> StackFactory:
    """The function named by `module:function`."""
    module, _, function = stack.partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as exc:
        raise StackInvalid(f"no stack at {stack!r}: {exc}") from exc
    return cast(StackFactory, factory)


def main(arguments: Sequence[str]) -> int:
    """The detached supervisor process."""
    parser = argparse.ArgumentParser(prog="python -m noetl_cli.dev.supervisor")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--stack", required=True, help="module:function that defines the components")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, handlers=[_log_handler()])
    os.setsid()  # a closed terminal or Ctrl-C there is none of our business
    home = StackHome(root=options.home)
    try:
        return 0 if serve(home, options.stack, listeners=[Progress(logger.info)]) else 1
    except DirectoryInUse as exc:
        logger.info("%s", exc)
        return EXIT_IN_USE
    except Exception:
        logger.exception("%s failed", SUPERVISOR)
        return 1


def _log_handler() -> logging.Handler:
    """Lines that sort with those of the servers: theirs are in UTC too."""
    formatter = logging.Formatter("%(asctime)s UTC %(levelname)s %(message)s")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    return handler


@contextmanager
def _stopping_on_signals(supervisor: Supervisor) -> Iterator[None]:
    before = {number: signal.signal(number, lambda *_: supervisor.request_stop()) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _process(part: Part, home: StackHome) -> ComponentProcess | None:
    if not isinstance(part, Component):
        return None
    return ComponentProcess(part, run_directory=home.run_directory, log_file=home.log_file(part.name))


def _first_state(parts: Sequence[Part]) -> StackState:
    return StackState(
        phase=Phase.STARTING,
        supervisor=ProcessIdentity.current(),
        components={part.name: ComponentState(name=part.name) for part in parts},
    )


def _failed_state(error: str) -> StackState:
    return StackState(phase=Phase.FAILED, supervisor=ProcessIdentity.current(), components={}, error=error)


def _is_up(state: StackState) -> bool:
    return all(component.status in SATISFIED for component in state.components.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
