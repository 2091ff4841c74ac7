"""The process that answers queries, seen from the one that folds: started with it, told what it needs, ended by it."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Final

from noetl_core.errors import NoetlError, Rejected, Unavailable
from noetl_servicekit.env import Address, SettingsInvalid
from noetl_servicekit.lifecycle import EXIT_SETTINGS
from noetl_servicekit.logging import get_logger

from noetl_projector.entrypoints.query_link import Link, ToldRows

logger = get_logger()

LINK_VARIABLE: Final = "NOETL_PROJECTOR_QUERY_LINK"
"""Which file descriptor of the child is its end of the link; set by nobody else."""
STATE_SECONDS: Final = 1.0
TOLD_TO_GO: Final = (0, -signal.SIGINT, -signal.SIGTERM)
"""How it ends when somebody says so to all processes at once; that is no reason not to start."""


class QueriesNotStarted(Rejected):
    """What keeps the process that answers queries from starting would keep the next one from it too."""

    code = "projector.queries_not_started"


class QueryProcess:
    """Folding takes the processor for milliseconds at a time; who asks for a status does not stand in line for it."""

    def __init__(
        self,
        environment: Mapping[str, str],
        told: ToldRows,
        *,
        listen: Address,
        owned: Callable[[], Collection[int]],
        quarantined: Callable[[], Collection[int]],
        stop_seconds: float,
    ) -> None:
        # A process that says that it is ready, or serves the operator, is the one that folds.
        hidden = ("NOETL_READY_FILE", "NOETL_OPS_LISTEN")
        self._environment = {name: value for name, value in environment.items() if name not in hidden}
        self._told = told
        self._listen = listen
        self._owned = owned
        self._quarantined = quarantined
        self._stop_seconds = stop_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._answers = asyncio.Event()
        self._has_answered = False
        self._said = ""
        self.metrics: bytes = b""
        """What it has counted, as it is shown."""

    async def address(self) -> Address:
        """Where it answers, as soon as it does."""
        await self._answers.wait()
        return self._listen

    def problem(self) -> str | None:
        """Why nobody would get an answer now."""
        return None if self._answers.is_set() else "the process that answers queries does not run"

    async def run(self, beat: Callable[[], None]) -> None:
        """Until it ends, which it does not by itself; raises then, and is started again, at the same address.

        One that ends before any has ever answered is not: with these settings, the next would do the same.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._child = child = await asyncio.to_thread(self._start, theirs.fileno())
            link = await Link.over(ours)
        except OSError as exc:
            ours.close()
            raise Unavailable(f"the process that answers queries cannot be started: {exc}") from exc
        self._told.attach(link)
        state = asyncio.create_task(self._tell_state(beat))
        try:
            async for message in link.messages():
                self._hear(message)
            code = await asyncio.to_thread(child.wait)
            raise self._ended(code)
        finally:
            state.cancel()
            self._answers.clear()
            self._told.attach(None)
            await self._end(child)
            link.close()

    def _ended(self, code: int) -> NoetlError:
        if self._has_answered or code in TOLD_TO_GO:
            return Unavailable(f"the process that answers queries ended with {code}")
        reason = self._said or f"it ended with {code}"
        if code == EXIT_SETTINGS:
            return SettingsInvalid([f"the process that answers queries refuses them: {reason}"])
        return QueriesNotStarted(f"the process that answers queries does not start: {reason}")

    def _hear(self, message: Mapping[str, object]) -> None:
        self._told.heed(message)
        if "failed" in message:
            self._said = str(message["failed"])
        if "port" in message:
            self._listen = Address(host=self._listen.host, port=int(str(message["port"])))
            logger.info("projector.queries_ready", address=str(self._listen), pid=self._child.pid if self._child else 0)
            self._has_answered = True
            self._answers.set()
        if "metrics" in message:
            self.metrics = str(message["metrics"]).encode()

    async def _tell_state(self, beat: Callable[[], None]) -> None:
        while True:
            beat()
            self._told.state(owned=self._owned(), quarantined=self._quarantined())
            await asyncio.sleep(STATE_SECONDS)

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        # Not the event loop's own way: that forks, with gRPC's threads at work.
        return subprocess.Popen(
            [sys.executable, "-m", "noetl_projector"],
            env={**self._environment, "NOETL_GRPC_LISTEN": str(self._listen), LINK_VARIABLE: str(number)},
            pass_fds=(number,),
            stdin=subprocess.DEVNULL,
        )

    async def _end(self, child: subprocess.Popen[bytes]) -> None:
        """It finishes the answers that are under way, then goes; or goes at once when that takes too long."""
        child.terminate()
        try:
            await asyncio.to_thread(child.wait, self._stop_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            await asyncio.to_thread(child.wait)


def link_of(environment: Mapping[str, str]) -> socket.socket | None:
    """The end of the link that this process was started with; None in a process that folds."""
    number = environment.get(LINK_VARIABLE)
    return None if number is None else socket.socket(fileno=int(number))
