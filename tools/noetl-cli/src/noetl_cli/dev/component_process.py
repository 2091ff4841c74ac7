"""One run of a component after another: start, wait until ready, stop, kill, and leave no orphan behind."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from noetl_cli.dev.component import READY_FILE_VARIABLE, Component
from noetl_cli.dev.errors import StartFailed
from noetl_cli.dev.files import write_atomically
from noetl_cli.dev.processes import ProcessIdentity, end_process, kill_tree, send_signal
from noetl_cli.dev.spawn import spawn

_POLL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Kept on disk while a process runs, so that a later start can find it when nobody else remembers it."""

    identity: ProcessIdentity
    stop_signal: int
    stop_seconds: float

    def write(self, file: Path) -> None:
        document = {
            "pid": self.identity.pid,
            "started": self.identity.started,
            "stop_signal": self.stop_signal,
            "stop_seconds": self.stop_seconds,
        }
        write_atomically(file, json.dumps(document) + "\n")

    @classmethod
    def read(cls, file: Path) -> "RunRecord | None":
        """None when there is no record, or not one of ours: then there is nobody to look for."""
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                identity=ProcessIdentity(pid=int(document["pid"]), started=str(document["started"])),
                stop_signal=int(document["stop_signal"]),
                stop_seconds=float(document["stop_seconds"]),
            )
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def end_recorded(file: Path) -> ProcessIdentity | None:
    """End the process of this record if it still runs, and forget it; the caller owns the directory."""
    record = RunRecord.read(file)
    ended = None
    if record is not None:
        ended = record.identity if record.identity.is_alive() else None
        end_process(record.identity, stop_signal=record.stop_signal, stop_seconds=record.stop_seconds)
    file.unlink(missing_ok=True)
    return ended


class ComponentProcess:
    """The process of one component. `stop` and `kill` may be called from other threads than `wait`."""

    def __init__(self, component: Component, *, run_directory: Path, log_file: Path) -> None:
        self.component = component
        self.log_file = log_file
        self._record_file = run_directory / f"{component.name}.json"
        self._ready_file = component.ready_file or run_directory / f"{component.name}.ready"
        self._process: subprocess.Popen[bytes] | None = None
        self._collecting = threading.Lock()

    @property
    def identity(self) -> ProcessIdentity | None:
        """The running process, if there is one."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        return ProcessIdentity.of(process.pid)

    def start(self) -> None:
        """Start the process, after ending one that an earlier owner left behind."""
        end_recorded(self._record_file)
        self._ready_file.unlink(missing_ok=True)
        self._ready_file.parent.mkdir(parents=True, exist_ok=True)
        component = self.component
        if component.prepare is not None:
            component.prepare()
        self._process = spawn(
            component.argv,
            env=self._environment(),
            log_file=self.log_file,
            death_signal=component.stop_signal,
            launch_options=component.launch_options,
            cwd=component.cwd,
        )
        identity = ProcessIdentity.of(self._process.pid)
        if identity is not None:
            RunRecord(identity=identity, stop_signal=component.stop_signal, stop_seconds=component.stop_seconds).write(
                self._record_file
            )

    def wait_ready(self) -> Mapping[str, int]:
        """Block until ready and return the ports; StartFailed when it exits first or takes too long."""
        deadline = time.monotonic() + self.component.ready_seconds
        while not self._is_ready():
            code = self.poll()
            if code is not None:
                raise StartFailed(component=self.component.name, reason=describe_exit(code))
            if time.monotonic() > deadline:
                reason = f"not ready after {self.component.ready_seconds:g} s"
                raise StartFailed(component=self.component.name, reason=reason)
            time.sleep(_POLL_SECONDS)
        return {**self.component.ports, **self._reported_ports()}

    def poll(self) -> int | None:
        """The exit code, if the process has ended."""
        process = self._process
        if process is None:
            return None
        if process.returncode is None and ProcessIdentity.of(process.pid) is None:
            self._collect(process)
        return process.returncode

    def wait(self) -> int:
        """Block until the process has ended, then end what it left running in its group."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            with suppress(ChildProcessError):  # collected by another thread meanwhile
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            self._collect(process)
        return process.returncode or 0

    def stop(self) -> None:
        """Ask it to end, force it after its deadline, and return when it is gone. Harmless when it is."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        send_signal(process.pid, self.component.stop_signal)
        deadline = time.monotonic() + self.component.stop_seconds
        while self.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                return
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the process and all it started, as when the machine is switched off."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        kill_tree(process.pid)
        self.wait()

    def _collect(self, process: subprocess.Popen[bytes]) -> None:
        """Collect an ended process; its group is ended first, while the number cannot be given to another."""
        with self._collecting:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._record_file.unlink(missing_ok=True)
                self._ready_file.unlink(missing_ok=True)

    def _is_ready(self) -> bool:
        if self.component.ready_check is not None:
            return self.component.ready_check()
        return self._ready_file.exists()

    def _reported_ports(self) -> dict[str, int]:
        try:
            document = json.loads(self._ready_file.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        ports = document.get("ports", {}) if isinstance(document, dict) else {}
        return {str(name): int(port) for name, port in ports.items()} if isinstance(ports, dict) else {}

    def _environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NOETL_")}
        return {**inherited, READY_FILE_VARIABLE: str(self._ready_file), **self.component.env}


def describe_exit(code: int) -> str:
    """An exit code as people say it."""
    if code < 0:
        with suppress(ValueError):
            return f"ended by {signal.Signals(-code).name}"
    return f"exited with code {code}"
