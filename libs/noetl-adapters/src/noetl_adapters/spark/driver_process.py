"""The session of a worker as the worker sees it: a process that is started when needed, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from noetl_core.canonical import JsonValue
from noetl_core.errors import Unavailable
from noetl_core.ports.spark import (
    SparkEnd,
    SparkFailure,
    SparkProgress,
    SparkSettings,
    SparkTasks,
    SparkWork,
)

from noetl_adapters.spark import framing
from noetl_adapters.spark.payload_access import STORE_VARIABLES

PROGRAM: Final = (sys.executable, "-X", "utf8", "-m", "noetl_adapters.spark.driver")
PASSED_VARIABLES: Final = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "JAVA_HOME",
    "PYTHONPATH",
    "KUBECONFIG",
    "HADOOP_CONF_DIR",
    *STORE_VARIABLES,
)
"""What user code may know, since it runs there; tokens of the worker are not among it."""
PASSED_PREFIXES: Final = ("SPARK_", "PYSPARK_", "KUBERNETES_SERVICE_")
_STOP_SECONDS = 5.0
"""Of the time that a worker has to stop; what is not done by then is killed, which loses nothing."""


class SparkReports(Protocol):
    """Who is told how the session is."""

    def session(self, state: str) -> None:
        """starting, ready, stopped, lost or failed."""
        ...

    def began(self) -> None:
        """A call was given to the session."""
        ...

    def ended(self, outcome: str) -> None:
        """It ended: ok, error or cancelled."""
        ...

    def progress(self, call: SparkWork, progress: SparkProgress) -> None:
        """A call has got further."""
        ...

    def said(self, line: str) -> None:
        """What Spark or user code wrote to its log."""
        ...


class _Running:
    """A call that waits for its end."""

    def __init__(self, call: SparkWork, began: Callable[[], None]) -> None:
        self.call = call
        self.began = began
        self.end: asyncio.Future[SparkEnd] = asyncio.get_running_loop().create_future()


class SparkDriver:
    """Port `SparkSessions`: one process, one JVM, one warm session; when it dies, the next call starts another."""

    def __init__(
        self,
        settings: SparkSettings,
        *,
        environment: Mapping[str, str],
        reports: SparkReports,
        program: Sequence[str] = PROGRAM,
        scratch: Path | None = None,
    ) -> None:
        """Sessions have their files within `scratch`, if that is given."""
        self._settings = settings
        self._scratch = scratch
        self._program = tuple(program)
        self._environment = {
            name: value
            for name, value in environment.items()
            if name in PASSED_VARIABLES or name.startswith(PASSED_PREFIXES)
        }
        self._reports = reports
        self._starting = asyncio.Lock()
        self._free = asyncio.Semaphore(settings.max_calls)
        self._session: _Session | None = None
        self._farewells: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        """Nothing is started yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session, and wait until its processes are gone."""
        self._is_closed = True
        async with self._starting:
            if self._session is not None:
                await self._session.stop()
        for farewell in tuple(self._farewells):
            farewell.cancel()
        await asyncio.gather(*self._farewells, return_exceptions=True)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The driver and its JVM, while there is a session."""
        session = self._session
        return () if session is None or not session.is_alive else (session.pid, session.jvm_pid)

    async def warm(self) -> None:
        """Start the session now."""
        await self._live_session()

    async def run(self, call: SparkWork, *, began: Callable[[], None] = lambda: None) -> SparkEnd:
        """Run a call; who is cancelled here leaves jobs behind that are being cancelled."""
        # Tasks wait for seats of their own: frames must not keep queries waiting.
        async with contextlib.nullcontext() if isinstance(call, SparkTasks) else self._free:
            try:
                session = await self._live_session()
            except Unavailable as exc:
                return _failed("SPARK_UNAVAILABLE", exc.message)
            try:
                running = session.begin(call, began)
            except framing.MessageTooLarge as exc:
                return SparkEnd(
                    failure=SparkFailure(kind="storage_quota", code="SPARK_CALL_TOO_LARGE", message=str(exc))
                )
            self._reports.began()
            outcome = "cancelled"
            try:
                end = await asyncio.shield(running.end)
                outcome = "error" if end.failure else "ok"
                return end
            except asyncio.CancelledError:
                self._see_off(session, running)
                raise
            finally:
                self._reports.ended(outcome)

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        """Tell the session; one that is gone has no tasks."""
        if self._session is not None and self._session.is_alive:
            self._session.release(call_id, shares)

    def _see_off(self, session: _Session, running: _Running) -> None:
        farewell = asyncio.create_task(session.cancel(running, seconds=self._settings.cancel_seconds))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)

    async def _live_session(self) -> _Session:
        async with self._starting:  # one start, however many calls wait for it
            if self._is_closed:
                raise Unavailable("the worker is stopping")
            if self._session is None or not self._session.is_alive:
                self._reports.session("starting")
                try:
                    self._session = await _Session.start(
                        self._program, self._settings, self._environment, self._reports, within=self._scratch
                    )
                except Unavailable:
                    self._reports.session("failed")
                    raise
                self._reports.session("ready")
            return self._session


class _Session:
    """A driver process and what runs in it."""

    def __init__(self, process: asyncio.subprocess.Process, scratch: Path, reports: SparkReports) -> None:
        self._process = process
        self._scratch = scratch
        self._reports = reports
        self._running: dict[str, _Running] = {}
        self._is_stopping = False
        self._has_served = False
        self.jvm_pid = 0
        self.is_alive = True
        self._listening = (asyncio.create_task(self._log()), asyncio.create_task(self._listen()))
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(
        cls,
        program: Sequence[str],
        settings: SparkSettings,
        environment: Mapping[str, str],
        reports: SparkReports,
        *,
        within: Path | None,
    ) -> _Session:
        scratch = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="noetl-spark-", dir=within))
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # the terminal's Ctrl-C is for the worker, which ends this in good order
        )
        session = cls(process, scratch, reports)
        try:
            session._send({"settings": dataclasses.asdict(settings), "scratch": str(scratch)})
            async with asyncio.timeout(settings.start_seconds):
                ready = await session._ready
        except TimeoutError:
            await session.kill()
            raise Unavailable(f"Spark has not started within {settings.start_seconds:g} s") from None
        except BaseException:
            await session.kill()
            raise
        if not ready.get("ready"):
            await session.kill()
            raise Unavailable(str(ready.get("message", "Spark does not start")))
        session._has_served = True
        session.jvm_pid = int(ready.get("jvm", 0))
        return session

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, call: SparkWork, began: Callable[[], None]) -> _Running:
        kind = "tasks" if isinstance(call, SparkTasks) else "call"
        message = framing.pack({kind: dataclasses.asdict(call)})
        running = self._running[call.call_id] = _Running(call, began)
        self._write(message)
        return running

    async def cancel(self, running: _Running, *, seconds: float) -> None:
        """Cancel the jobs of a call; if it goes on all the same, end everything: it would never end."""
        self._send({"cancel": running.call.call_id})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.shield(running.end)
                return
        await self.kill()

    def release(self, call_id: str, shares: Sequence[JsonValue]) -> None:
        if call_id in self._running:
            self._send({"release": call_id, "shares": list(shares)})

    async def stop(self) -> None:
        """Ask for a good end, and insist on one after a while."""
        self._is_stopping = True
        self._send({"stop": True})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End the driver and its JVM, which are one process group, and see them gone."""
        self._kill_all()
        await self._process.wait()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _send(self, message: dict[str, Any]) -> None:
        self._write(framing.pack(message))

    def _write(self, data: bytes) -> None:
        # A pipe whose reader has died is found out by `_listen`.
        if self._process.stdin is not None and not self._process.stdin.is_closing():
            self._process.stdin.write(data)

    async def _listen(self) -> None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 - it was asked for
        try:
            while True:
                header = await stream.readexactly(framing.HEADER_BYTES)
                body = await stream.readexactly(framing.body_length(header))
                self._take(await asyncio.to_thread(json.loads, body) if len(body) > 65536 else json.loads(body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as exc:  # one that says what nobody understands is good for nothing: calls would wait for ever
            self._reports.said(f"the driver process is ended for what it said: {exc!r}"[:2000])
            self._kill_all()
        await self._over()

    def _take(self, message: dict[str, Any]) -> None:
        match message:
            case {"ready": _}:
                if not self._ready.done():
                    self._ready.set_result(message)
            case {"id": str(call_id), "progress": [stages_done, stages, tasks_done, tasks]}:
                if call_id in self._running:
                    progress = SparkProgress(stages_done=stages_done, stages=stages, tasks_done=tasks_done, tasks=tasks)
                    self._reports.progress(self._running[call_id].call, progress)
            case {"id": str(call_id), "began": True}:
                if call_id in self._running:
                    self._running[call_id].began()
            case {"id": str(call_id), "end": True}:
                running = self._running.pop(call_id, None)
                if running is not None and not running.end.done():
                    running.end.set_result(_end(message))

    async def _over(self) -> None:
        """The driver is gone, and with it all that it ran."""
        self.is_alive = False
        await self._process.wait()
        if not self._ready.done():
            self._ready.set_result({"ready": False, "message": "Spark's driver process ended while it started"})
        elif self._has_served:
            self._reports.session("stopped" if self._is_stopping else "lost")
        for running in self._running.values():
            if not running.end.done():
                running.end.set_result(_failed("SPARK_SESSION_LOST", "the Spark session ended under this call"))
        self._running.clear()
        self._kill_all()  # a JVM that has not noticed yet
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    async def _log(self) -> None:
        stream = self._process.stderr
        assert stream is not None  # noqa: S101 - it was asked for
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # longer than a line may be: the rest of it comes as another one
                continue
            if not line:
                return
            self._reports.said(line.decode(errors="replace").rstrip()[:2000])


def _end(message: Mapping[str, Any]) -> SparkEnd:
    failure = message.get("failure")
    return SparkEnd(
        data=message.get("data"),
        failure=SparkFailure(**failure) if failure else None,
        stdout=str(message.get("stdout", "")),
    )


def _failed(code: str, message: str) -> SparkEnd:
    return SparkEnd(failure=SparkFailure(kind="connection", code=code, message=message, retryable=True))
