"""The same row through as many processes as a status read goes through, none of them NoETL's: what the machine gives.

A client asks a process, which asks another one, which asks PostgreSQL: where api, projector and PostgreSQL stand for a
status read. How long this takes is what a read would at least take in the same seconds on the same processors.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import asyncpg
from noetl_servicekit.event_loop import run_on_fast_loop

_ROW: Final = "SELECT state FROM noetl.execution WHERE execution_id = $1"
_NUMBER_BYTES: Final = 8
_ENDED: Final = (asyncio.IncompleteReadError, ConnectionError)

Answer = Callable[[int], Awaitable[bytes]]


class BareClient:
    """One call at a time over one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def ask(self, number: int) -> bytes:
        self._writer.write(_packed(number))
        return await self._reader.readexactly(_unpacked(await self._reader.readexactly(_NUMBER_BYTES)))


@asynccontextmanager
async def bare_client(port: int) -> AsyncIterator[BareClient]:
    """A connection to a bare process on this machine."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield BareClient(reader, writer)
    finally:
        writer.close()


@contextmanager
def bare_chain(dsn: str) -> Iterator[int]:
    """Two processes, one behind the other and the last before PostgreSQL; the port of the first."""
    with ExitStack() as closing:
        last = closing.enter_context(_process("row", dsn))
        yield closing.enter_context(_process("relay", str(last)))


@contextmanager
def _process(*arguments: str) -> Iterator[int]:
    root = str(Path(__file__).resolve().parents[1])
    # The address of the database is a secret, so it is not an argument that everybody sees.
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bare_reads"],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write("".join(f"{argument}\n" for argument in arguments))
            process.stdin.flush()
            yield int(process.stdout.readline())
        finally:
            process.kill()


async def _serve(answer: Answer) -> None:
    async def answer_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                found = await answer(_unpacked(await reader.readexactly(_NUMBER_BYTES)))
                writer.write(_packed(len(found)) + found)
        except _ENDED:
            writer.close()

    server = await asyncio.start_server(answer_all, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until whoever started us is gone


async def _main(kind: str, behind: str) -> None:
    if kind == "relay":
        async with bare_client(int(behind)) as client:
            await _serve(client.ask)
        return
    connection = await asyncpg.connect(behind)
    try:

        async def row(execution_id: int) -> bytes:
            return str(await connection.fetchval(_ROW, execution_id)).encode()

        await _serve(row)
    finally:
        await connection.close()


def _packed(number: int) -> bytes:
    return number.to_bytes(_NUMBER_BYTES, "big")


def _unpacked(number: bytes) -> int:
    return int.from_bytes(number, "big")


if __name__ == "__main__":
    run_on_fast_loop(_main(*(sys.stdin.readline().strip() for _ in range(2))))
