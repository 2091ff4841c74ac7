"""The calls of `benchmarks.frames` as a script that knows nothing else: the same libraries, as many calls at once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from noetl_servicekit.event_loop import run_on_fast_loop

_ROOT = str(Path(__file__).resolve().parents[1])


async def calls(job: Mapping[str, Any]) -> float:
    """How many seconds it took, without the time to begin."""
    query = "?ms={}".format(job["ms"]) if job["ms"] else ""
    numbers = iter(range(job["rows"]))
    pool = await asyncpg.create_pool(job["dsn"], min_size=job["at_once"], max_size=job["at_once"])
    async with pool, httpx.AsyncClient(limits=httpx.Limits(max_connections=job["at_once"])) as client:

        async def take_turns() -> None:
            for number in numbers:
                reply = await client.get(f"{job['web']}/items/{number}{query}")
                reply.raise_for_status()
                if job["save"]:
                    await pool.execute(job["save"], job["run"], number, json.dumps(reply.json()))

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
