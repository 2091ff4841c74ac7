"""`noetl dev up`: have a supervisor bring the stack up, show how it goes, and return when it is ready."""

import os
import sys
import time
from collections.abc import Callable

from noetl_core.errors import NoetlError

from noetl_cli.dev.down import down
from noetl_cli.dev.files import last_lines
from noetl_cli.dev.home import SUPERVISOR, StackHome
from noetl_cli.dev.processes import ProcessIdentity
from noetl_cli.dev.progress import Out, Progress, status_lines
from noetl_cli.dev.state import Phase, StackState
from noetl_cli.dev.supervisor import EXIT_IN_USE, serve

EXIT_READY = 0
EXIT_FAILED = 1
EXIT_INTERRUPTED = 130
_POLL_SECONDS = 0.03
_LOG_LINES = 20


def up(home: StackHome, *, stack: str, out: Out, foreground: bool = False) -> int:
    """Return when the stack is ready, or has failed and is stopped again; a running stack is left alone.

    `stack` names the function that defines the components, as `module:function`. In the foreground it returns
    when the stack has been stopped by a signal.
    """
    home.create()
    holder = home.lock().holder()
    if holder is not None:
        return _join(holder, home=home, stack=stack, out=out)
    out(f"starting in {home.root}")
    if foreground:
        return _serve_here(home, stack=stack, out=out)
    supervisor = _SupervisorChild(_spawn(home, stack))
    try:
        code = _watch(supervisor.identity, supervisor.has_ended, home=home, out=out)
    except KeyboardInterrupt:
        out("interrupted")
        down(home, out=out)
        return EXIT_INTERRUPTED
    if supervisor.exit_code == EXIT_IN_USE:  # somebody else was a moment faster
        return up(home, stack=stack, out=out)
    return code


class _SupervisorChild:
    """The supervisor that we started, for as long as we wait for it; it outlives us."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.identity = ProcessIdentity.of(pid)
        self.exit_code: int | None = None

    def has_ended(self) -> bool:
        if self.exit_code is None:
            try:
                pid, status = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # where children are collected by the system
                return self.identity is None or not self.identity.is_alive()
            if pid != 0:
                self.exit_code = os.waitstatus_to_exitcode(status)
        return self.exit_code is not None


def _spawn(home: StackHome, stack: str) -> int:
    argv = [sys.executable, "-m", "noetl_cli.dev.supervisor", "--home", str(home.root), "--stack", stack]
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(home.log_file(SUPERVISOR)), log_flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
    )


def _serve_here(home: StackHome, *, stack: str, out: Out) -> int:
    try:
        stopped_on_request = serve(home, stack, listeners=[Progress(out)])
    except NoetlError as exc:
        out(f"failed: {exc}")
        return EXIT_FAILED
    if stopped_on_request:
        out("stopped")
        return EXIT_READY
    _explain(StackState.read(home.state_file), home=home, out=out)
    return EXIT_FAILED


def _join(holder: ProcessIdentity, *, home: StackHome, stack: str, out: Out) -> int:
    """There is a supervisor already: say so when all is well, wait when it is on its way up or down."""
    state = StackState.read(home.state_file)
    if state is not None and state.supervisor == holder:
        if state.phase is Phase.READY:
            out("already running")
            for line in status_lines(state):
                out(line)
            return EXIT_READY
        if state.phase is not Phase.STARTING:
            out("waiting for the last run to end")
            while holder.is_alive():
                time.sleep(_POLL_SECONDS)
            return up(home, stack=stack, out=out)
    out(f"already starting (supervisor {holder.pid})")
    return _watch(holder, lambda: not holder.is_alive(), home=home, out=out)


def _watch(supervisor: ProcessIdentity | None, has_ended: Callable[[], bool], *, home: StackHome, out: Out) -> int:
    """Tell what the supervisor reports, until it is ready or has ended."""
    progress = Progress(out)
    while True:
        ended = has_ended()  # asked before its report is read, so that its last word is not missed
        state = StackState.read(home.state_file)
        if state is not None and state.supervisor != supervisor:
            state = None  # of an earlier run
        if state is not None:
            progress(state)
            if state.phase is Phase.READY and not ended:
                return EXIT_READY
        if ended:
            _explain(state, home=home, out=out)
            return EXIT_FAILED
        time.sleep(_POLL_SECONDS)


def _explain(state: StackState | None, *, home: StackHome, out: Out) -> None:
    """Say what went wrong, with the end of the log in which more of it can be read."""
    if state is not None and state.phase is Phase.STOPPED:
        out("stopped before it was ready")
        return
    out(f"failed: {state.error if state is not None and state.error else 'the supervisor ended'}")
    failed = state.failed if state is not None else None
    log = home.log_file(failed.name if failed is not None else SUPERVISOR)
    if not log.exists():
        log = home.log_file(SUPERVISOR)
    lines = last_lines(log, _LOG_LINES)
    if lines:
        out(f"the end of {log}:")
    for line in lines:
        out(f"  | {line}")
