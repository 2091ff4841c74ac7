"""A server of our own for as long as we need it: start, stop, kill and restart it on one directory."""

from pathlib import Path
from types import TracebackType
from typing import Self

from noetl_cli.dev.component import Component
from noetl_cli.dev.component_process import ComponentProcess
from noetl_cli.dev.errors import StartFailed
from noetl_cli.dev.files import last_lines
from noetl_cli.dev.lock import DirectoryLock

_LOG_LINES = 20


class LocalServer:
    """One server outside any stack. Blocking; from a coroutine, call it through `asyncio.to_thread`."""

    def __init__(self, component: Component, *, directory: Path) -> None:
        self.component = component
        self.directory = directory
        self.log_file = directory / f"{component.name}.log"
        self._lock = DirectoryLock(directory / "server.lock")
        self._process = ComponentProcess(component, run_directory=directory, log_file=self.log_file)

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        identity = self._process.identity
        return identity.pid if identity is not None else None

    def start(self) -> None:
        """Start the server and return when it answers; what an earlier owner left running is ended first."""
        if self.pid is not None:
            return
        self._lock.acquire()
        try:
            self._process.start()
            self._process.wait_ready()
        except BaseException as exc:
            self.kill()
            if isinstance(exc, StartFailed):
                exc.add_note("\n".join(last_lines(self.log_file, _LOG_LINES)))
            raise

    def stop(self) -> None:
        """End the server in good order; harmless when it does not run."""
        self._process.stop()
        self._lock.release()

    def kill(self) -> None:
        """End the server at this very moment, with all its processes; what it had not written is lost."""
        self._process.kill()
        self._lock.release()

    def restart(self) -> None:
        """Stop if it runs, then start on the same data and ports."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
