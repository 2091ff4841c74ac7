"""One child process that runs user Python: started warm, asked, watched, and killed with its descendants."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from noetl_core.errors import InvalidInput, Unavailable

from noetl_worker.application.frame_limits import CallLimit
from noetl_worker.application.outcome import Printed
from noetl_worker.tools.python_call import Answered, CallEnd, Died, TimedOut, understand
from noetl_worker.tools.python_channel import ChannelClosed, ChildChannel
from noetl_worker.tools.python_output import OutputTail
from noetl_worker.tools.python_protocol import ChildSettings

CHILD_PROGRAM = "noetl_worker.tools.python_child"

_DECODE_IN_THREAD_BYTES = 256 * 1024
_FRAME_SLACK_BYTES = 64 * 1024
"""An answer is a result or an error, and a few words about the child."""

_EXIT_SECONDS = 0.25
"""How long a call waits to learn how its child ended; it is dead or dying by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """What one child may use."""

    max_output_bytes: int = 64 * 1024
    """Of each stream; beyond that the middle is left out."""
    output_head_bytes: int = 16 * 1024
    max_result_bytes: int = 64 * 1024 * 1024
    address_space_bytes: int | None = None
    start_timeout_seconds: float = 30.0


class PythonProcess:
    """A child and its pipes; one call at a time. Everything but calling and waiting is immediate."""

    def __init__(
        self,
        *,
        channel: ChildChannel,
        its_socket: socket.socket,
        environment: Mapping[str, str],
        limits: ProcessLimits,
    ) -> None:
        self._channel = channel
        self._exited = asyncio.Event()
        self.calls = 0
        its_liveness, self._liveness = os.pipe()
        own_stdout, its_stdout = os.pipe()
        own_stderr, its_stderr = os.pipe()
        settings = ChildSettings(
            control_fd=its_socket.fileno(),
            liveness_fd=its_liveness,
            worker_pid=os.getpid(),
            address_space_bytes=limits.address_space_bytes,
        )
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
                [sys.executable, "-I", "-X", "utf8", "-m", CHILD_PROGRAM, json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=its_stdout,
                stderr=its_stderr,
                pass_fds=(its_socket.fileno(), its_liveness),
                env=dict(environment),
                start_new_session=True,
            )
        except OSError:
            for fd in (self._liveness, own_stdout, own_stderr):
                os.close(fd)
            raise
        finally:
            for fd in (its_liveness, its_stdout, its_stderr):
                os.close(fd)
        kept = {"limit_bytes": limits.max_output_bytes, "head_bytes": limits.output_head_bytes}
        self._stdout = OutputTail(own_stdout, **kept)
        self._stderr = OutputTail(own_stderr, **kept)
        self._watch_exit()

    @classmethod
    async def start(cls, *, environment: Mapping[str, str], limits: ProcessLimits) -> Self:
        """A child that has imported everything it needs and waits for its first call.

        Started in the event loop's own thread: with any other, the kernel would kill it when that ends.
        """
        own_socket, its_socket = socket.socketpair()
        own_socket.setblocking(False)
        channel = ChildChannel(max_frame_bytes=limits.max_result_bytes + _FRAME_SLACK_BYTES)
        with its_socket:
            await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=own_socket)
            try:
                child = cls(channel=channel, its_socket=its_socket, environment=environment, limits=limits)
            except OSError as exc:
                channel.close()
                raise Unavailable(f"no Python child could be started: {exc}") from exc
        try:
            async with asyncio.timeout(limits.start_timeout_seconds):
                await channel.receive()
        except (ChannelClosed, TimeoutError) as exc:
            child.kill()
            await child.wait_exited()
            raise Unavailable(f"a Python child did not start: {child._stderr.take()[-2000:]}") from exc
        except asyncio.CancelledError:
            child.kill()
            await child.wait_exited()
            raise
        return child

    @property
    def pid(self) -> int:
        """The process id, which is also that of its group and session."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it can still be asked, as far as the kernel has told."""
        return self._channel.is_open and not self._exited.is_set()

    async def call(self, message: bytes, *, request_id: int, timeout_seconds: float | None) -> CallEnd:
        """Send one request and wait for its end, whichever that is. Who is cancelled here must kill the child."""
        self.calls += 1
        try:
            with CallLimit(timeout_seconds):
                frame = await self._channel.request(message)
        except TimeoutError:
            self.kill()
            await self._wait_briefly()
            return TimedOut(printed=self._printed())
        except ChannelClosed:
            await self._wait_briefly()
            return self._died()
        printed = self._printed()
        try:
            if len(frame) > _DECODE_IN_THREAD_BYTES:
                answer = await asyncio.to_thread(understand, frame, request_id=request_id)
            else:
                answer = understand(frame, request_id=request_id)
        except InvalidInput:
            return self._died()
        return Answered(answer=answer, printed=printed)

    def kill(self) -> None:
        """End the child and everything it started, now."""
        if self._exited.is_set():
            return
        escaped = _descendants(self.pid)  # before their parent is gone, and nobody knows whose they were
        _send_kill(os.killpg, self.pid)
        for pid in escaped:
            _send_kill(os.kill, pid)

    async def wait_exited(self) -> None:
        """Return when the child is gone and reaped."""
        await self._exited.wait()

    def _died(self) -> Died:
        code = self._process.returncode
        if code is None:
            self.kill()
            reason = "it broke its protocol"
        elif code < 0:
            reason = f"it was killed by {signal.Signals(-code).name}"
        else:
            reason = f"it exited with code {code}"
        return Died(reason=reason, printed=self._printed())

    def _printed(self) -> Printed:
        return Printed(stdout=self._stdout.take(), stderr=self._stderr.take())

    async def _wait_briefly(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_SECONDS):
                await self._exited.wait()

    def _watch_exit(self) -> None:
        loop = asyncio.get_running_loop()
        if sys.platform == "linux":
            pidfd = os.pidfd_open(self.pid)

            def on_exit() -> None:
                loop.remove_reader(pidfd)
                os.close(pidfd)
                self._on_exit()

            loop.add_reader(pidfd, on_exit)
        else:

            def wait() -> None:
                self._process.wait()
                loop.call_soon_threadsafe(self._on_exit)

            threading.Thread(target=wait, name=f"python-child-{self.pid}", daemon=True).start()

    def _on_exit(self) -> None:
        # Until it is reaped its id is taken, so the group that is killed here can only be its own.
        _send_kill(os.killpg, self.pid)
        self._process.wait()
        self._channel.close()
        os.close(self._liveness)
        self._stdout.finish()
        self._stderr.finish()
        self._exited.set()


def _send_kill(kill: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)


def _descendants(pid: int) -> list[int]:
    """All of them, also those that left the process group, as far as the kernel tells."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                ids = [int(text) for text in children.read_text().split()]
                waiting += ids
                found += ids
    return found
