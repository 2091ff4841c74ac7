"""A test API of several replicas, each a process that answers so many requests a second and refuses the rest.

`python -m noetl_testkit.limited_api REQUESTS_PER_SECOND` is one replica; the first line that it prints is its port.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

PAGES: Final = 3
ITEMS_A_PAGE: Final = 2
_WINDOW_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 60.0


class Allowance:
    """At most so many answers in any second. The one before the first request counts as used up by others.

    So whoever calls it is refused at least once, however slow it is.
    """

    def __init__(self, requests_per_second: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._size = requests_per_second
        self._clock = clock
        self._answered: deque[float] = deque()
        self._is_asked = False
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Whether a request may be answered now."""
        with self._lock:
            now = self._clock()
            if not self._is_asked:
                self._is_asked = True
                self._answered.extend([now] * self._size)
            while self._answered and self._answered[0] <= now - _WINDOW_SECONDS:
                self._answered.popleft()
            if len(self._answered) >= self._size:
                return False
            self._answered.append(now)
            return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What replicas have done so far."""

    answered: Counter[str]
    """How often, by path and query."""
    refused: tuple[int, ...]
    """By replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedApi:
    """Replicas that run."""

    addresses: tuple[str, ...]

    def counts(self) -> Counts:
        """Asked for outside of what is counted."""
        told = [_counts_of(address) for address in self.addresses]
        answered: Counter[str] = Counter()
        for one in told:
            answered.update(one["answered"])
        return Counts(answered=answered, refused=tuple(one["refused"] for one in told))


@contextmanager
def limited_api(*, replicas: int, requests_per_second: int) -> Iterator[LimitedApi]:
    """Processes that live as long as the block."""
    with ExitStack() as stack:
        ports = [stack.enter_context(_replica(requests_per_second)) for _ in range(replicas)]
        yield LimitedApi(addresses=tuple(f"http://127.0.0.1:{port}" for port in ports))


@contextmanager
def _replica(requests_per_second: int) -> Iterator[int]:
    command = [sys.executable, "-m", "noetl_testkit.limited_api", str(requests_per_second)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own module
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def _counts_of(address: str) -> Any:
    connection = HTTPConnection(urlsplit(address).netloc, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/counts")
        return json.load(connection.getresponse())
    finally:
        connection.close()


class _Server(ThreadingHTTPServer):
    """One replica."""

    request_queue_size = 256

    def __init__(self, requests_per_second: int) -> None:
        super().__init__(("127.0.0.1", 0), _Patients)
        self.allowance = Allowance(requests_per_second)
        self.lock = threading.Lock()
        self.answered: Counter[str] = Counter()
        self.refused = 0

    def counts(self) -> Mapping[str, Any]:
        """What `Counts` is made of."""
        with self.lock:
            return {"answered": dict(self.answered), "refused": self.refused}


class _Patients(BaseHTTPRequestHandler):
    """`GET /patients/N/KIND?after=PAGE` has pages; `POST /patients/KIND` tells of all that are in its body."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
        if self.path == "/counts":
            self._answer(200, self.server.counts())
            return
        if not self.server.allowance.take():
            with self.server.lock:
                self.server.refused += 1
            self._answer(429, {"error": "too many requests"}, {"Retry-After": "1"})
            return
        with self.server.lock:
            self.server.answered[self.path] += 1
        address = urlsplit(self.path)
        match address.path.split("/")[1:]:
            case ["patients", patient, kind]:
                page = int(parse_qs(address.query).get("after", ["0"])[0])
                self._answer(200, _page(int(patient), kind, page))
            case ["patients", kind] if isinstance(body, list):
                self._answer(200, {"rows": [{"patient": one["patient"], "value": f"{kind} told"} for one in body]})
            case _:
                self._answer(404, {})

    do_POST = do_GET  # noqa: N815 - named by the library

    def _answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        told = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


def _page(patient: int, kind: str, page: int) -> dict[str, Any]:
    items = [{"kind": kind, "patient": patient, "n": page * ITEMS_A_PAGE + n} for n in range(ITEMS_A_PAGE)]
    return {"patient": patient, "items": items, "next": str(page + 1) if page + 1 < PAGES else ""}


if __name__ == "__main__":
    replica = _Server(int(sys.argv[1]))
    sys.stdout.write(f"{replica.server_port}\n")
    sys.stdout.flush()
    replica.serve_forever()
