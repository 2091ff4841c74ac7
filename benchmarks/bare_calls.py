"""The calls of `benchmarks.frames` as a script that knows nothing else: as many calls at once, with either client.

aiohttp is what the http tool is made of; httpx is what most scripts are written with, and takes several times as long.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import httpx
from noetl_servicekit.event_loop import run_on_fast_loop

_ROOT = str(Path(__file__).resolve().parents[1])


Get = Callable[[str], Awaitable[Any]]


@asynccontextmanager
async def _by_httpx(at_once: int) -> AsyncIterator[Get]:
    async with httpx.AsyncClient(limits=httpx.Limits(max_connections=at_once)) as client:

        async def get(url: str) -> Any:
            reply = await client.get(url)
            reply.raise_for_status()
            return reply.json()

        yield get


@asynccontextmanager
async def _by_aiohttp(at_once: int) -> AsyncIterator[Get]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=at_once)) as session:

        async def get(url: str) -> Any:
            async with session.get(url, raise_for_status=True) as reply:
                return await reply.json()

        yield get


_CLIENTS = {"httpx": _by_httpx, "aiohttp": _by_aiohttp}


async def calls(job: Mapping[str, Any]) -> float:
    """How many seconds it took, without the time to begin."""
    query = "?ms={}".format(job["ms"]) if job["ms"] else ""
    numbers = iter(range(job["rows"]))
    pool = await asyncpg.create_pool(job["dsn"], min_size=job["at_once"], max_size=job["at_once"])
    async with pool, _CLIENTS[job["client"]](job["at_once"]) as get:

        async def take_turns() -> None:
            for number in numbers:
                item = await get(f"{job['web']}/items/{number}{query}")
                if job["save"]:
                    await pool.execute(job["save"], job["run"], number, json.dumps(item))

        begun = time.monotonic()
        await asyncio.gather(*(take_turns() for _ in range(job["at_once"])))
        return time.monotonic() - begun


async def run_bare(job: Mapping[str, Any]) -> dict[str, float]:
    """In a process of its own: seconds it took, and of the processor."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.bare_calls"),
        cwd=_ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate(json.dumps(dict(job)).encode())
    if process.returncode:
        raise RuntimeError(f"the bare script ended with {process.returncode}")
    told: dict[str, float] = json.loads(out)
    return told


def main() -> None:
    job = json.load(sys.stdin)
    used = time.process_time()
    seconds = run_on_fast_loop(calls(job))
    print(json.dumps({"seconds": seconds, "processor": time.process_time() - used}))


if __name__ == "__main__":
    main()
