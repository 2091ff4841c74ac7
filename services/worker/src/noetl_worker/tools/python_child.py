"""The program of a child process that runs user Python, one call at a time, until its worker hangs up.

`python_process.py` starts it. Requests and answers travel on a socket of their own: what user code prints
goes to stdout and stderr, and disturbs nothing.
"""

import ctypes
import gc
import json
import logging
import os
import resource
import signal
import sys
import threading
from typing import Literal

from noetl_core.canonical import encode, normalize
from noetl_core.errors import NotCanonical

from noetl_worker.tools.python_failure import describe_exception
from noetl_worker.tools.python_protocol import LENGTH, AnswerHead, ChildSettings, Failure, Request
from noetl_worker.tools.python_user_code import UserCode, run_user_code

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Answer requests until the worker closes its end."""
    settings: ChildSettings = json.loads(sys.argv[1])
    control = settings["control_fd"]
    _die_with_the_worker(settings)
    _limit_resources(settings["address_space_bytes"])
    surroundings = Surroundings()
    gc.collect()
    gc.freeze()  # what is loaded now stays: no collection has to look at it again
    _send(control, b'{"ready":true}')
    own_pid = os.getpid()
    while (message := _receive(control)) is not None:
        request: Request = json.loads(message)
        outcome, body = answer(request)
        if os.getpid() != own_pid:
            os._exit(0)  # user code forked and came back twice; only the original may answer
        verdict = surroundings.restore()
        head = AnswerHead(id=request["id"], outcome=outcome, retire=verdict, rss_bytes=_resident_bytes())
        _send(control, b"%b\n%b" % (json.dumps(head).encode(), body))


def answer(request: Request) -> tuple[Literal["data", "error"], bytes]:
    """The outcome; nothing that user code does may escape from here."""
    code = UserCode(
        source=request["source"],
        inputs=request["inputs"],
        context=request["context"],
        libs=request["libs"],
    )
    try:
        body = encode(normalize(run_user_code(code)))
        if len(body) <= request["max_result_bytes"]:
            return "data", body
        failure = _refused(
            kind="storage_quota",
            code="RESULT_TOO_LARGE",
            message=f"the result has {len(body)} bytes, {request['max_result_bytes']} are allowed",
        )
    except NotCanonical as refusal:
        message = f"the result cannot be written as JSON: {refusal.message}"
        failure = _refused(kind="schema", code="RESULT_NOT_JSON", message=message)
    except BaseException as error:  # noqa: BLE001, RUF100 - sys.exit() ends the user's code, not this process
        failure = describe_exception(error, request["source"])
    return "error", json.dumps(failure).encode()


def _refused(*, kind: str, code: str, message: str) -> Failure:
    return Failure(kind=kind, code=code, retryable=False, message=message, traceback="")


class Surroundings:
    """The process state that one call must not leave to the next."""

    def __init__(self) -> None:
        self._environment = dict(os.environ)
        self._directory = os.getcwd()  # noqa: PTH109 - text compares and restores faster
        self._path = list(sys.path)
        self._argv = [""]
        self._recursion_limit = sys.getrecursionlimit()
        self._streams = (sys.stdout, sys.stderr)
        for stream in self._streams:
            # Line by line: what was printed before a timeout or a crash is not lost.
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
        sys.argv = list(self._argv)
        # What code logs is shown like what it prints, from the level on at which people report progress.
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        self._log_handlers = list(logging.root.handlers)

    def restore(self) -> str | None:
        """Put everything back; the answer says why this process should not be used again, if so."""
        sys.stdout, sys.stderr = self._streams
        try:
            for stream in self._streams:
                stream.flush()
            if os.environ != self._environment:
                os.environ.clear()
                os.environ.update(self._environment)
            os.chdir(self._directory)
        except (OSError, ValueError):
            return "surroundings"
        sys.path[:] = self._path
        sys.argv = list(self._argv)
        logging.root.handlers[:] = self._log_handlers
        logging.root.setLevel(logging.INFO)
        logging.disable(logging.NOTSET)
        sys.setrecursionlimit(self._recursion_limit)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if threading.active_count() > 1:
            return "threads"
        return "processes" if _has_children() else None


def _has_children() -> bool:
    """Reap what ended; as a subreaper this process also inherits what its children left behind."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _die_with_the_worker(settings: ChildSettings) -> None:
    """However the worker ends, this process and its group end with it."""
    os.set_inheritable(settings["control_fd"], False)
    os.set_inheritable(settings["liveness_fd"], False)
    if sys.platform != "linux":
        return
    import fcntl  # noqa: PLC0415 - exists only where it is used

    # The kernel kills the whole group, busy or not, when the worker's end of this pipe is closed ...
    fcntl.fcntl(settings["liveness_fd"], fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(settings["liveness_fd"], fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(settings["liveness_fd"], fcntl.F_GETFL)
    fcntl.fcntl(settings["liveness_fd"], fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    # ... and at least this process, should user code have closed that pipe.
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getppid() != settings["worker_pid"]:
        os._exit(1)  # the worker died before the kernel was told


def _limit_resources(address_space_bytes: int | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if address_space_bytes is not None:
        resource.setrlimit(resource.RLIMIT_AS, (address_space_bytes, address_space_bytes))


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 - on the path of every call
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def _receive(fd: int) -> bytes | None:
    head = _read_exactly(fd, LENGTH.size)
    return None if head is None else _read_exactly(fd, LENGTH.unpack(head)[0])


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        part = os.read(fd, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _send(fd: int, message: bytes) -> None:
    waiting = memoryview(LENGTH.pack(len(message)) + message)
    while waiting:
        waiting = waiting[os.write(fd, waiting) :]


if __name__ == "__main__":
    main()
