"""Counts what a playbook does outside: an HTTP server that takes every call, and remembers its key."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from noetl_core.canonical import JsonObject

IDEMPOTENCY_KEY = "Idempotency-Key"
_ANSWER = json.dumps({"received": True}).encode()


@dataclass(slots=True)
class Effects:
    """Calls since the last run began, by what was called and under which key."""

    url: str = ""
    _calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, key: str) -> None:
        """One more call."""
        with self._lock:
            self._calls[what, key] += 1

    def taken(self) -> "CountedEffects":
        """What has come so far, and begin anew."""
        with self._lock:
            calls, self._calls = self._calls, Counter()
        return CountedEffects(calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedEffects:
    """The calls of one run."""

    calls: Counter[tuple[str, str]]

    @property
    def applied(self) -> Counter[str]:
        """How often each thing happened for a server that does the same key once; calls without a key all count."""
        counts: Counter[str] = Counter()
        for (what, key), times in self.calls.items():
            counts[what] += 1 if key else times
        return counts

    def repeated(self) -> Iterator[tuple[str, str, int]]:
        """Calls that came more than once under one key, or without any."""
        for (what, key), times in sorted(self.calls.items()):
            if times > 1 and key:
                yield what, key, times

    def to_json(self) -> JsonObject:
        """For whoever reads it with a program."""
        repeated: list[Any] = [
            {"call": what, "idempotency_key": key, "times": times} for what, key, times in self.repeated()
        ]
        return {"calls": self.calls.total(), "applied": dict(sorted(self.applied.items())), "repeated": repeated}


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who called was killed in the middle of it: that is what we are here for."""


@contextmanager
def effects_server() -> Iterator[Effects]:
    """Listens on a port of 127.0.0.1 until the end."""
    effects = Effects()

    class Handler(BaseHTTPRequestHandler):
        """Any method, any path: counted, and answered with the same few bytes."""

        protocol_version = "HTTP/1.1"

        def __getattr__(self, name: str) -> Any:
            if name.startswith("do_"):
                return self._take
            raise AttributeError(name)

        def _take(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            effects.add(f"{self.command} {self.path}", self.headers.get(IDEMPOTENCY_KEY) or "")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(_ANSWER)))
            self.end_headers()
            self.wfile.write(_ANSWER)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
            """Counted, not logged."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        effects.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, name="effects", daemon=True)
        thread.start()
        try:
            yield effects
        finally:
            server.shutdown()
            thread.join()
