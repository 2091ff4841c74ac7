"""The whole of NoETL for tests: the stack of `noetl dev up` in a temporary directory, used through its own command."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from noetl_cli.dev.endpoint import LocalEndpoint
from noetl_cli.dev.home import StackHome
from noetl_cli.dev.ports import PORTS_VARIABLE
from noetl_cli.dev.postgres import PostgresCluster
from noetl_cli.dev.processes import ProcessIdentity, send_signal
from noetl_cli.dev.spawn import spawn
from noetl_cli.dev.stack import DATABASE, SETTINGS_FILE
from noetl_cli.dev.state import Phase, StackState, Status

from noetl_testkit.backends import temporary_directory
from noetl_testkit.eventually import eventually

COMMAND_SECONDS = 120.0
_START_SECONDS = 180.0
_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What `-o json` printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> Sequence[Any]:
        """What `--follow -o json` printed."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStack:
    """A running stack; its processes may be killed, they come back."""

    home: StackHome

    @property
    def endpoint(self) -> LocalEndpoint:
        """How clients reach it."""
        endpoint = LocalEndpoint.read(self.home)
        assert endpoint is not None
        return endpoint

    def noetl(self, *arguments: str, stdin: str | None = None, seconds: float = COMMAND_SECONDS) -> Ran:
        """Run the command as a person would, and wait until it has ended."""
        with self.started(*arguments) as process:
            out, err = process.communicate(stdin, timeout=seconds)
        return Ran(code=process.returncode, out=out, err=err)

    @contextmanager
    def started(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """The command while it runs; killed at the end if it still does."""
        with subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-P", "-m", "noetl_cli", *arguments],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def state(self) -> StackState:
        """What the supervisor says."""
        state = StackState.read(self.home.state_file)
        assert state is not None
        return state.observed()

    def pid(self, component: str) -> int:
        """The process of a component, once it is ready."""
        pid = eventually(lambda: self._ready_pid(component), seconds=_START_SECONDS)
        assert pid is not None
        return pid

    def kill(self, component: str) -> int:
        """`kill -9`; the supervisor starts it again. Returns, once it is gone, which process it was."""
        pid = self.pid(component)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: ProcessIdentity.of(pid) is None)
        return pid

    @contextmanager
    def held_down(self, component: str) -> Iterator[None]:
        """Killed, and killed again whenever the supervisor has started it anew."""
        released = threading.Event()

        def hold() -> None:
            while not released.is_set():
                process = self.state().components[component].process
                if process is not None and process.is_alive():
                    send_signal(process.pid, signal.SIGKILL)
                released.wait(_POLL_SECONDS)

        holder = threading.Thread(target=hold, name=f"hold {component} down")
        holder.start()
        try:
            yield
        finally:
            released.set()
            holder.join()

    @property
    def owner_dsn(self) -> str:
        """The database, as its owner sees it."""
        ports = json.loads(self.home.ports_file.read_text(encoding="utf-8"))
        return PostgresCluster(directory=self.home.root / "postgres", port=ports["postgres"]).dsn(DATABASE)

    def _ready_pid(self, component: str) -> int | None:
        found = self.state().components[component]
        is_up = found.status is Status.READY and found.process is not None and found.process.is_alive()
        return found.process.pid if is_up and found.process is not None else None

    def environment(self) -> dict[str, str]:
        """Ours, without settings of other stacks."""
        return {**environment_of_nobody(), "NOETL_HOME": str(self.home.root)}


def environment_of_nobody() -> dict[str, str]:
    """Ours, without settings of any stack; the ports that this test run may choose from are not one."""
    return {
        name: value for name, value in os.environ.items() if not name.startswith("NOETL_") or name == PORTS_VARIABLE
    }


@contextmanager
def local_stack(settings: Mapping[str, str] | None = None) -> Iterator[LocalStack]:
    """A stack of one's own until the end; `settings` go over those of every service."""
    with temporary_directory() as directory:
        stack = LocalStack(home=StackHome(root=directory.resolve() / "stack"))
        stack.home.create()
        lines = [f"{name}={value}\n" for name, value in (settings or {}).items()]
        (stack.home.root / SETTINGS_FILE).write_text("".join(lines), encoding="utf-8")
        log_file = directory / "up.log"
        # In the foreground of a process that is bound to ours: a test run that is killed leaves no stack behind.
        supervisor = spawn(
            [sys.executable, "-P", "-m", "noetl_cli", "dev", "up", "--foreground"],
            env=stack.environment(),
            log_file=log_file,
            death_signal=signal.SIGTERM,
        )
        try:
            is_up = eventually(lambda: _is_up(stack, supervisor), seconds=_START_SECONDS)
            assert is_up == "ready", f"the stack did not start:\n{log_file.read_text()}"
            yield stack
        finally:
            stack.noetl("dev", "down")
            supervisor.wait()


def _is_up(stack: LocalStack, supervisor: subprocess.Popen[bytes]) -> str | None:
    if supervisor.poll() is not None:
        return "ended"
    state = StackState.read(stack.home.state_file)
    return "ready" if state is not None and state.phase is Phase.READY else None
