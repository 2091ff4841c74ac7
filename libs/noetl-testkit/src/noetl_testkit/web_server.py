"""A web server for playbooks under test: it answers with what it was asked for, so that cases need nothing else."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import SplitResult, parse_qs, urlsplit

PAGE_SIZE = 2
ITEMS = 5


class _Echo(BaseHTTPRequestHandler):
    """`/echo` tells the request, `/status/N` answers with N, `/flaky/NAME` fails once, `/pages…` have five items."""

    asked: ClassVar[Counter[str]] = Counter()

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        match address.path.split("/")[1:]:
            case ["echo"]:
                self._answer(200, self._told(address))
            case ["text"]:
                self._send(200, b"plain", "text/plain")
            case ["status", code]:
                self._answer(int(code), {"code": int(code)})
            case ["moved"]:
                self._send(302, b"", "text/plain", {"Location": "/echo"})
            case ["flaky", name]:
                _Echo.asked[name] += 1
                self._answer(503 if _Echo.asked[name] == 1 else 200, {"asked": _Echo.asked[name]})
            case ["busy", name]:
                _Echo.asked[name] += 1
                busy = _Echo.asked[name] == 1
                self._answer(429 if busy else 200, {"asked": _Echo.asked[name]}, {"Retry-After": "0"} if busy else {})
            case ["pages"]:
                self._page(int(_first(address, "page", "1")) - 1)
            case ["offsets"]:
                self._page(int(_first(address, "offset", "0")) // PAGE_SIZE)
            case ["cursors"]:
                self._page(int(_first(address, "after", "0")), cursor=True)
            case ["links"]:
                self._page(int(_first(address, "n", "0")), link=True)
            case _:
                self._answer(404, {})

    do_POST = do_PUT = do_GET  # noqa: N815 - named by the library

    def _page(self, number: int, *, cursor: bool = False, link: bool = False) -> None:
        items = list(range(ITEMS))[number * PAGE_SIZE : (number + 1) * PAGE_SIZE]
        more = (number + 1) * PAGE_SIZE < ITEMS
        body: dict[str, Any] = {"items": items}
        if cursor:
            body["next"] = str(number + 1) if more else ""
        url = f"http://{self.headers['Host']}/links?n={number + 1}"
        self._answer(200, body, {"Link": f'<{url}>; rel="next"'} if link and more else {})

    def _told(self, address: SplitResult) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        return {
            "method": self.command,
            "query": parse_qs(address.query, keep_blank_values=True),
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": self.rfile.read(length).decode(),
        }

    def _answer(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), "application/json", headers)

    def _send(self, status: int, data: bytes, media_type: str, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": media_type, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - named by the library
        """Says nothing."""


def _first(address: SplitResult, name: str, default: str) -> str:
    return parse_qs(address.query).get(name, [default])[0]


@contextmanager
def web_server() -> Iterator[str]:
    """The address of a server that lives as long as the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
