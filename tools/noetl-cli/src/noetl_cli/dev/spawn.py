"""Starting processes that live exactly as long as we want: their own session, ended with their parent."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import BinaryIO

_LAUNCHER = Path(__file__).with_name("launch.py")
_ROTATE_BYTES = 16 * 1024 * 1024

_Process = subprocess.Popen[bytes]


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log_file: Path,
    death_signal: int,
    launch_options: Sequence[str] = (),
    cwd: Path | None = None,
) -> _Process:
    """Start a process that leads its own session, writes to its log, and gets a signal when we end."""
    command = launch_command(
        argv, options=("--parent", str(os.getpid()), "--death-signal", str(death_signal), *launch_options)
    )

    def start() -> _Process:
        with _open_log(log_file) as log:
            return subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return _spawner.run(start)


def launch_command(argv: Sequence[str], *, options: Sequence[str]) -> list[str]:
    """The command line that applies the launcher's options and then becomes `argv`."""
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *options, "--", *argv]


def _open_log(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _ROTATE_BYTES:
        path.replace(path.with_name(path.name + ".1"))
    return path.open("ab")


class _Spawner:
    """Starts every process from one thread that never ends.

    The kernel ties a child to the *thread* that started it: a child of a short-lived worker thread
    would be told to end together with that thread.
    """

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[Callable[[], _Process], Future[_Process]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def run(self, start: Callable[[], _Process]) -> _Process:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._serve, name="spawner", daemon=True)
                self._thread.start()
        outcome: Future[_Process] = Future()
        self._requests.put((start, outcome))
        return outcome.result()

    def _serve(self) -> None:
        while True:
            start, outcome = self._requests.get()
            try:
                outcome.set_result(start())
            except BaseException as exc:
                outcome.set_exception(exc)


_spawner = _Spawner()
