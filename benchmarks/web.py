"""A web server that costs next to nothing, so that its clients are what is measured: `/items/N`, after `?ms=`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from noetl_servicekit.event_loop import run_on_fast_loop

_END = b"\r\n\r\n"


class Items(asyncio.Protocol):
    """One connection, one request after the other."""

    def __init__(self) -> None:
        self._seen = b""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        while _END in self._seen:
            request, _, self._seen = self._seen.partition(_END)
            address = request.split(b" ", 2)[1]
            path, _, query = address.partition(b"?ms=")
            number = int(path.rpartition(b"/")[2])
            if query:
                asyncio.get_running_loop().call_later(int(query) / 1000, self._answer, number)
            else:
                self._answer(number)

    def _answer(self, number: int) -> None:
        body = b'{"id":%d,"name":"item %d","score":%d}' % (number, number, number * 7 % 1000)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d" % len(body)
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(head + _END + body)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(Items, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started us is gone


@contextmanager
def items_server() -> Iterator[str]:
    """Its address; a process of its own."""
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-m", "benchmarks.web"]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    run_on_fast_loop(_serve())
