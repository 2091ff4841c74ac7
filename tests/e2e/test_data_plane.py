"""Results by reference on real processes: large ones, and workers that die while they store one."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_core.canonical import encode, sha256_hex
from noetl_core.payloads import PayloadRef
from noetl_testkit.local_stack import LocalStack

LARGE_BYTES = 32 * 1024 * 1024
MAX_MEMORY = 8
"""A worker holds a few copies of a result while it is read, checked and spelled; more would be a leak."""

LARGE = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: large, path: tests/large}}
workflow:
- step: big
  tool:
    kind: python
    code: 'result = {{"label": "big", "text": "x" * {LARGE_BYTES}, "rows": [{{"id": n}} for n in range(1000)]}}'
  next: {{arcs: [{{step: small}}]}}
- step: small
  tool: {{kind: noop, result: {{label: "{{{{ big.label }}}}", id: "{{{{ big.rows[999].id }}}}"}}}}
"""

TEXT = "stored by a worker that dies "
KILLED = f"""\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: killed_writer, path: tests/killed_writer}}
workload: {{moment: ""}}
workflow:
- step: make
  tool:
    kind: python
    input: {{moment: "{{{{ moment }}}}"}}
    code: 'result = {{"moment": moment, "text": "{TEXT}" * 4000}}'
  next: {{arcs: [{{step: use}}]}}
- {{step: use, tool: {{kind: noop, result: "{{{{ make.text[:6] }}}}"}}}}
"""

# A worker as it is, but for the moment at which it kills itself.
DOOMED = """\
import os, signal, sys
from noetl_adapters.payload.directory import DirectoryPayloadStore
from noetl_adapters.payload.durable_files import NewFile
from noetl_contracts.clients import CommandClient
from noetl_worker.__main__ import main

moment = sys.argv.pop()
mark = b'{"moment":"%b","text":"stored by' % moment.encode()
write, put, complete = NewFile.write, DirectoryPayloadStore.put, CommandClient.complete
stored = []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def writing(self, data):
    if moment == "half_written" and data.startswith(mark):
        write(self, data[: len(data) // 2])
        die()
    write(self, data)

async def putting(self, **fields):
    ref = await put(self, **fields)
    if fields["data"].startswith(mark):
        stored.append(ref.sha256)
        if moment == "stored":
            die()
    return ref

async def completing(self, worker, key, result, **fields):
    answer = await complete(self, worker, key, result, **fields)
    if moment == "told" and (result.get("reference") or {}).get("sha256") in stored:
        die()
    return answer

NewFile.write, DirectoryPayloadStore.put, CommandClient.complete = writing, putting, completing
main()
"""

MOMENTS = {"half_written": 2, "stored": 2, "told": 1}
"""When a worker dies, and how often the step is run in all, at least; once is once."""


def test_a_large_result_leaves_a_small_event_and_a_reference_to_read_it_by(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(LARGE)
    worker = Path("/proc") / str(stack.pid("worker"))
    (worker / "clear_refs").write_text("5")  # forget the peak so far
    before = memory(worker, "VmHWM")

    ran = stack.noetl("run", str(file), "-o", "json")

    peak = memory(worker, "VmHWM")
    assert ran.code == 0, ran
    execution_id = ran.document["execution_id"]
    assert stack.noetl("result", execution_id, "small", "-o", "json").document["result"] == {"label": "big", "id": 999}
    events = stack.noetl("events", execution_id, "-o", "json").document["events"]
    assert max(len(encode(event)) for event in events) < 2048
    (reference,) = [
        event["result"]["reference"]
        for event in events
        if (event["event_type"], event["node_name"]) == ("call.done", "big")
    ]
    assert reference["bytes"] > LARGE_BYTES
    stat = stack.noetl("payload", "stat", reference["ref_id"], "-o", "json")
    assert (stat.code, stat.document["bytes"]) == (0, reference["bytes"]), stat
    assert stack.noetl("payload", "verify", reference["ref_id"]).code == 0
    assert peak - before < MAX_MEMORY * LARGE_BYTES, (peak - before) / LARGE_BYTES


def memory(process: Path, name: str) -> int:
    lines = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024


def test_no_event_points_at_missing_bytes_whenever_a_worker_is_killed(stack: LocalStack, tmp_path: Path) -> None:
    (tmp_path / "killed.yaml").write_text(KILLED)
    store = DirectoryPayloadStore(stack.home.root / "payloads")
    environment = environment_of(stack.pid("worker"))
    executions: dict[str, str] = {}

    with stack.held_down("worker"):
        for moment in MOMENTS:
            with doomed_worker(environment, tmp_path / f"{moment}.log", moment) as doomed:
                executions[moment] = start(stack, tmp_path / "killed.yaml", moment)
                assert doomed.wait(timeout=120.0) == -signal.SIGKILL, (tmp_path / f"{moment}.log").read_text()[-3000:]
            assert len(copies(store, moment)) == (0 if moment == "half_written" else 1)

    for moment, execution_id in executions.items():
        ended = stack.noetl("events", execution_id, "--follow", "--timeout", "120", "-o", "json")
        assert ended.code == 0, ended
        issued = [e for e in ended.lines if e["event_type"] == "command.issued" and e["node_name"] == "make"]
        attempts = [event["meta"]["attempt"] for event in issued]
        assert attempts == [*range(1, len(attempts) + 1)]
        # What a worker left behind may be under way at the next one when that dies: then there is one attempt more.
        assert len(attempts) == 1 if MOMENTS[moment] == 1 else len(attempts) >= MOMENTS[moment]
        assert digest_of(moment) in asyncio.run(read_all(store, ended.lines))
        assert len(copies(store, moment)) == 1
    asyncio.run(check_all(store))


def start(stack: LocalStack, file: Path, moment: str) -> str:
    started = stack.noetl("run", str(file), "--set", f"moment={moment}", "--no-follow", "-o", "json")
    assert started.code == 0, started
    return str(started.document["execution_id"])


def environment_of(pid: int) -> dict[str, str]:
    """What a worker of the stack was started with, but for its ports."""
    written = (Path("/proc") / str(pid) / "environ").read_text().rstrip("\0").split("\0")
    variables = dict(line.split("=", 1) for line in written)
    return {**variables, "NOETL_GRPC_LISTEN": "127.0.0.1:0", "NOETL_OPS_LISTEN": "127.0.0.1:0"}


@contextmanager
def doomed_worker(environment: Mapping[str, str], log: Path, moment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that kills itself when it comes to that moment of its own execution; all others it runs."""
    with log.open("wb") as output:
        doomed = subprocess.Popen(
            [sys.executable, "-P", "-c", DOOMED, moment], env=dict(environment), stdout=output, stderr=output
        )
    try:
        yield doomed
    finally:
        doomed.kill()
        doomed.wait()


def digest_of(moment: str) -> str:
    return sha256_hex(encode({"moment": moment, "text": TEXT * 4000}))


def copies(store: DirectoryPayloadStore, moment: str) -> list[Path]:
    return list(store.root.rglob(digest_of(moment)))


async def read_all(store: DirectoryPayloadStore, events: Sequence[Mapping[str, Any]]) -> set[str]:
    """The digests of all that these events refer to; raises when one is not there, or not what it should be."""
    refs = [PayloadRef(**fields) for event in events for fields in references_in(event)]
    for ref in refs:
        await store.get(ref)
    return {ref.sha256 for ref in refs}


def references_in(value: object) -> Iterator[dict[str, Any]]:
    """Everything in an event that is a reference to bytes, wherever it stands."""
    if isinstance(value, Mapping):
        if {"uri", "sha256", "media_type", "bytes"} <= value.keys():
            yield {key: value[key] for key in ("uri", "sha256", "media_type", "bytes")}
            if "view" in value:
                uri = value["uri"].replace(value["sha256"], value["view"]["sha256"])
                yield {"uri": uri, "media_type": value["media_type"], **value["view"]}
        for child in value.values():
            yield from references_in(child)
    elif isinstance(value, list):
        for child in value:
            yield from references_in(child)


async def check_all(store: DirectoryPayloadStore) -> None:
    """Whatever can be found under the name of a payload is all of it."""
    found = store.find(tenant_id="default", organization_id="default")
    digests = [stored.sha256 async for stored in found]
    assert digests
    for digest in digests:
        path = store.root / "default" / "default" / digest[:2] / digest[2:4] / digest
        with path.open("rb") as file:
            assert hashlib.file_digest(file, "sha256").hexdigest() == digest
