"""A service as a process of its own, for tests that kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from noetl_testkit.eventually import eventually

STOP_SECONDS = 20.0


class ServiceProcess:
    """Runs `python -m <module>` with only the NOETL_ settings that it is given; what it logs is in `log_file`."""

    def __init__(self, module: str, env: Mapping[str, str], *, directory: Path, name: str) -> None:
        self.name = name
        self.log_file = directory / f"{name}.log"
        self._module = module
        self._ready_file = directory / f"{name}.ready.json"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("NOETL_")}
        self._env = {
            **inherited,
            "NOETL_INSTANCE": name,
            "NOETL_READY_FILE": str(self._ready_file),
            "NOETL_STOP_SECONDS": str(STOP_SECONDS / 2),
            **env,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it and return when it is ready."""
        self.launch()
        eventually(lambda: self._ready_file.exists() or self._fail_if_ended(), seconds=180.0)
        return self

    def launch(self, *arguments: str) -> None:
        """Start it and return at once."""
        self._ready_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", self._module, *arguments], env=self._env, stdout=log, stderr=log
            )

    def run(self, *arguments: str, seconds: float = 60.0) -> int:
        """Start it with these arguments and wait for its exit code."""
        self.launch(*arguments)
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process, as long as it is there."""
        assert self._process is not None
        return self._process.pid

    def port(self, name: str) -> int:
        """A port that it has bound."""
        return int(json.loads(self._ready_file.read_text("utf-8"))["ports"][name])

    def kill(self) -> None:
        """End it at this very moment, as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it stand still, as an overloaded machine may; `thaw` lets it go on, knowing of nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def stop(self) -> int:
        """Ask it to end and wait for its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> int:
        self._signal(how)
        return self._process.wait(3 * STOP_SECONDS) if self._process is not None else 0

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def _fail_if_ended(self) -> bool:
        if not self.running:
            raise AssertionError(f"{self.name} ended before it was ready:\n{self.log_file.read_text('utf-8')[-4000:]}")
        return False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
