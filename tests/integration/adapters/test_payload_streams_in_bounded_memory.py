"""A gigabyte goes in and out of a payload store, and the process that does it stays small."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from noetl_testkit.object_stores import ObjectServer

GIGABYTE = 1024**3
LIMIT_BYTES = 200 * 1024**2

COPIER = """
import asyncio, os, pathlib, sys
from noetl_adapters.payload.open_store import open_payload_store

CHUNK = 1024 * 1024

async def chunks(count):
    noise = os.urandom(CHUNK)
    for n in range(count):
        yield n.to_bytes(8, "big") + noise[8:]

async def main(url, count):
    async with open_payload_store(url, os.environ) as store:
        ref = await store.put_stream(
            tenant_id="acme", organization_id="ops", chunks=chunks(count), media_type="application/octet-stream"
        )
        received = 0
        async for chunk in store.stream(ref):
            received += len(chunk)
        await store.delete(ref)
    # The high-water mark of this very process: getrusage would count what was before exec, too.
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    (peak,) = (int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    print(ref.bytes, received, peak)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def copied(url: str, environment: Mapping[str, str]) -> tuple[int, int, int]:
    done = subprocess.run(
        [sys.executable, "-c", COPIER, url, str(GIGABYTE // 1024**2)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    stored, received, peak = map(int, done.stdout.split())
    return stored, received, peak


def test_a_gigabyte_through_a_directory(tmp_path: Path) -> None:
    stored, received, peak = copied((tmp_path / "payloads").as_uri(), {})

    assert (stored, received) == (GIGABYTE, GIGABYTE)
    assert peak < LIMIT_BYTES


def test_a_gigabyte_through_s3(s3_server: ObjectServer) -> None:
    stored, received, peak = copied(s3_server.new_bucket(), s3_server.environment)

    assert (stored, received) == (GIGABYTE, GIGABYTE)
    assert peak < LIMIT_BYTES
