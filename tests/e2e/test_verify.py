"""What somebody did to the log, to rows or to evidence is found and named; what nobody touched is proved."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from noetl_adapters.postgres.copy_rows import EVENT_COLUMNS
from noetl_cli.connection import Server
from noetl_cli.dev.credentials import StackCredentials
from noetl_cli.verify.bulk import Bulk, bring_lake_up, list_everything, verify_all
from noetl_cli.verify.check_bundle import check_bundle
from noetl_core.upcasting.releases import UPCASTERS
from noetl_testkit.local_stack import LocalStack, Ran, environment_of_nobody, local_stack

ROOT = Path(__file__).parents[2]
GATE = ROOT / "scripts" / "check_replay_release_gate.sh"
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: proved, path: tests/proved}
workflow:
- step: each
  loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, engine: inline, frame: {max_rows: 2}}}
  tool: {kind: noop, result: {n: "{{ iter.n }}"}}
  next: {arcs: [{step: one_by_one}]}
- step: one_by_one
  loop: {in: [1, 2], iterator: n}
  tool: {kind: python, code: "def main():\\n    return {'text': 'x' * 5000}"}
  next: {arcs: [{step: hold}]}
- step: hold
  tool: {kind: python, input: {file: "{{ workload.file }}"}, code: HOLD}
"""
LONG = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: long, path: tests/long}
workflow:
- step: hold
  tool: {kind: python, input: {file: "{{ workload.file }}"}, code: HOLD}
"""
SNAPSHOT_EVENTS = 1000
DIGEST = re.compile(rb'"sha256":"([0-9a-f]{64})"')
HOLD = """
import os, time
def main(file):
    while not os.path.exists(file):
        time.sleep(0.05)
    return 1
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """One of its own: what others run at the same time is neither proved nor tampered with here."""
    settings = {
        "NOETL_HEAD_POLL_SECONDS": "1",
        "NOETL_LOG_LEVEL": "warning",
        "NOETL_SNAPSHOT_INTERVAL_EVENTS": str(SNAPSHOT_EVENTS),
    }
    with local_stack(settings) as running:
        yield running


@pytest.fixture(scope="module")
def execution_id(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that tells something to every surface; others stand beside it, one of them so long that it has a snapshot."""
    directory = tmp_path_factory.mktemp("verify")
    examples = ROOT / "examples" / "playbooks"
    for name in ("hello_world", "failing", "conditional"):
        stack.noetl("run", str(examples / f"{name}.yaml"))
    notes = [{"event_type": "note", "idempotency_key": f"note/{number}"} for number in range(SNAPSHOT_EVENTS)]
    held(stack, directory, LONG, notes)
    order = {"type": "order", "id": "7", "state": {"total": 3}}
    return held(stack, directory, PLAYBOOK, [{"event_type": "order.told", "business_object": order}])


def held(stack: LocalStack, directory: Path, playbook: str, events: list[dict[str, Any]]) -> str:
    """A run that ends when it has been told these events."""
    number = len(list(directory.iterdir()))
    file, go_on = directory / f"{number}.yaml", directory / f"{number} goes on"
    file.write_text(playbook.replace("HOLD", json.dumps(HOLD)))
    ran = stack.noetl("run", str(file), "--set", f"file={go_on}", "--no-follow", "-o", "json")
    execution_id = str(ran.document["execution_id"])
    tell(stack, [{"execution_id": execution_id, **event} for event in events])
    go_on.touch()
    assert stack.noetl("events", execution_id, "--follow", "--timeout", "100").code == 0
    return execution_id


def tell(stack: LocalStack, events: list[dict[str, Any]]) -> None:
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{stack.endpoint.http_url}/api/events/batch",
        data=json.dumps({"events": events}).encode(),
        headers={"Authorization": f"Bearer {stack.endpoint.token}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
        assert answer.status == 200


def owner(stack: LocalStack, statement: str, *arguments: Any) -> list[Any]:
    async def run() -> list[Any]:
        connection = await asyncpg.connect(stack.owner_dsn, server_settings={"timezone": "UTC"})
        try:
            return list(await connection.fetch(statement, *arguments))
        finally:
            await connection.close()

    return asyncio.run(run())


def events_of(stack: LocalStack, execution_id: str) -> list[Any]:
    columns = ", ".join(EVENT_COLUMNS)
    statement = f"SELECT {columns} FROM noetl.event WHERE execution_id = $1 ORDER BY stream_version"  # noqa: S608
    return owner(stack, statement, int(execution_id))


def files_of(stack: LocalStack, execution_id: str) -> list[Path]:
    """Where the payloads that nobody else refers to are kept."""
    told: dict[bool, set[bytes]] = {True: set(), False: set()}
    for event in owner(stack, "SELECT execution_id, body FROM noetl.event"):
        told[str(event["execution_id"]) == execution_id].update(DIGEST.findall(event["body"]))
    own = told[True] - told[False]
    return sorted(file for file in stack.home.root.rglob("payloads/**/*") if file.name.encode() in own)


@contextmanager
def as_it_was(stack: LocalStack, execution_id: str) -> Iterator[None]:
    """Whatever is done to its events is undone."""
    kept = events_of(stack, execution_id)
    columns, places = ", ".join(EVENT_COLUMNS), ", ".join(f"${place + 1}" for place in range(len(EVENT_COLUMNS)))
    try:
        yield
    finally:
        owner(stack, "DELETE FROM noetl.event WHERE execution_id = $1", int(execution_id))
        for row in kept:
            owner(stack, f"INSERT INTO noetl.event ({columns}) VALUES ({places})", *row.values())  # noqa: S608


def changed(stack: LocalStack, execution_id: str, victim: Any) -> set[str]:
    """One byte of one event."""
    at = victim["body"].index(b'"event_type":"') + 15
    body = victim["body"][:at] + bytes([victim["body"][at] ^ 1]) + victim["body"][at + 1 :]
    where = "WHERE execution_id = $1 AND stream_version = $2"
    owner(stack, f"UPDATE noetl.event SET body = $3 {where}", int(execution_id), victim["stream_version"], body)  # noqa: S608
    return {str(victim["event_id"])}


def renamed(stack: LocalStack, execution_id: str, victim: Any) -> set[str]:
    """A column that its bytes do not know of: who looks events up by type would miss it."""
    where = "WHERE execution_id = $1 AND stream_version = $2"
    owner(stack, f"UPDATE noetl.event SET event_type = 'x' {where}", int(execution_id), victim["stream_version"])  # noqa: S608
    return {str(victim["event_id"])}


def removed(stack: LocalStack, execution_id: str, victim: Any) -> set[str]:
    """One event; its neighbours do not know it by name, so it is named by its place."""
    where = "WHERE execution_id = $1 AND stream_version = $2"
    owner(stack, f"DELETE FROM noetl.event {where}", int(execution_id), victim["stream_version"])  # noqa: S608
    return set()


def swapped(stack: LocalStack, execution_id: str, victim: Any) -> set[str]:
    """Two events take each other's places, with everything that they say."""
    first, second = int(victim["stream_version"]), int(victim["stream_version"]) + 1
    other = events_of(stack, execution_id)[second - 1]
    statement = "UPDATE noetl.event SET stream_version = $3 WHERE execution_id = $1 AND stream_version = $2"
    for old, new in ((first, 1_000_000), (second, first), (1_000_000, second)):
        owner(stack, statement, int(execution_id), old, new)
    return {str(victim["event_id"]), str(other["event_id"])}


@pytest.mark.parametrize("tamper", [changed, renamed, removed, swapped])
def test_an_event_that_somebody_changed_removed_or_swapped_is_named(
    stack: LocalStack, execution_id: str, tamper: Any
) -> None:
    victim = events_of(stack, execution_id)[6]
    with as_it_was(stack, execution_id):
        named = tamper(stack, execution_id, victim)

        drift = stack.noetl("replay", "drift", "-o", "json")
        one = stack.noetl("verify", "run", execution_id, "--no-bundle", "-o", "json")
        every = stack.noetl("verify", "all", "--engine", "process", "-o", "json")

    assert (one.code, every.code) == (1, 1), (one.err, every.err)
    # A column is no part of a history: only lookups would go wrong.
    untold = [] if tamper is renamed else [execution_id]
    assert [told["execution_id"] for told in drift.document["not_comparable"]] == untold
    assert (drift.code, drift.document["drifted"]) == (len(untold), [])
    assert drift.document["executions"] == every.document["executions"] > 1
    (verdict,) = every.document["failed"]
    assert verdict["execution_id"] == execution_id
    for findings in (one.document["findings"], verdict["findings"]):
        first = findings[0]
        assert first["code"] in {"event.changed", "event.missing", "event.not_linked", "event.column_differs"}
        assert first["stream_version"] == victim["stream_version"]
        assert {finding.get("event_id") for finding in findings} >= named
    assert stack.noetl("verify", "run", execution_id, "--no-bundle").code == 0


def test_the_last_events_cannot_be_cut_off_even_with_the_head(stack: LocalStack, execution_id: str) -> None:
    last = events_of(stack, execution_id)[-1]
    with as_it_was(stack, execution_id):
        (head,) = owner(
            stack,
            "SELECT version, last_checksum, terminal FROM noetl.stream WHERE execution_id = $1",
            int(execution_id),
        )
        removed(stack, execution_id, last)
        told = stack.noetl("verify", "run", execution_id, "--no-bundle", "-o", "json")
        set_head = "UPDATE noetl.stream SET version = $2, last_checksum = $3, terminal = $4 WHERE execution_id = $1"
        owner(stack, set_head, int(execution_id), last["stream_version"] - 1, last["prev_checksum"], False)
        cut = stack.noetl("verify", "run", execution_id, "--no-bundle", "-o", "json")
        owner(stack, set_head, int(execution_id), *head.values())

    assert told.document["findings"][0]["code"] == "event.missing"
    assert cut.document["findings"][0]["code"] == "projection.ahead"
    assert cut.document["findings"][0]["stream_version"] == last["stream_version"]


@pytest.mark.parametrize(
    ("tamper", "code"),
    [
        ("DELETE FROM noetl.stream WHERE execution_id = $1", "stream.missing"),
        ("UPDATE noetl.stream SET tenant_id = 'evil' WHERE execution_id = $1", "stream.missing"),
        ("UPDATE noetl.stream SET terminal = false WHERE execution_id = $1", "stream.differs"),
    ],
)
def test_one_row_of_streams_cannot_hide_an_execution_or_speak_for_it(
    stack: LocalStack, execution_id: str, tamper: str, code: str
) -> None:
    (row,) = owner(stack, "SELECT * FROM noetl.stream WHERE execution_id = $1", int(execution_id))
    columns, places = ", ".join(row.keys()), ", ".join(f"${place + 1}" for place in range(len(row)))
    owner(stack, tamper, int(execution_id))
    try:
        told = stack.noetl("verify", "all", "--engine", "process", "-o", "json")
        shown = stack.noetl("verify", "all", "--engine", "process")
    finally:
        owner(stack, "DELETE FROM noetl.stream WHERE execution_id = $1", int(execution_id))
        owner(stack, f"INSERT INTO noetl.stream ({columns}) VALUES ({places})", *row.values())  # noqa: S608
    whole = stack.noetl("verify", "all", "--engine", "process")

    assert (told.code, shown.code, whole.code) == (1, 1, 0), (told.out + told.err, whole.out)
    assert not told.document["proved"]
    (verdict,) = told.document["failed"]
    assert verdict["execution_id"] == execution_id
    assert [one["code"] for one in verdict["findings"]] == [code]
    assert f"execution {execution_id}: {code}" in shown.out
    assert "NOT PROVED, 1 failed" in shown.out


def test_a_tenant_of_which_nothing_but_live_rows_is_left_is_found_by_whoever_sees_all_tenants(
    stack: LocalStack, execution_id: str
) -> None:
    services = StackCredentials(directory=stack.home.root / "secrets").service_token_file.read_text().strip()
    every = Server(address=stack.endpoint.address, token=services)
    (row,) = owner(stack, "SELECT * FROM noetl.stream WHERE execution_id = $1", int(execution_id))
    columns, places = ", ".join(row.keys()), ", ".join(f"${place + 1}" for place in range(len(row)))
    give = "UPDATE noetl.execution SET tenant_id = $2 WHERE execution_id = $1"
    whole = asyncio.run(list_everything(every, None))
    with as_it_was(stack, execution_id):
        for table in ("event", "stream"):
            owner(stack, f"DELETE FROM noetl.{table} WHERE execution_id = $1", int(execution_id))  # noqa: S608
        owner(stack, give, int(execution_id), "gone")
        try:
            lost = asyncio.run(list_everything(every, None))
        finally:
            owner(stack, give, int(execution_id), row["tenant_id"])
            owner(stack, f"INSERT INTO noetl.stream ({columns}) VALUES ({places})", *row.values())  # noqa: S608

    assert whole.hidden == {}
    assert {one: finding.code for one, finding in lost.hidden.items()} == {int(execution_id): "stream.missing"}
    assert "of it for gone/" in lost.hidden[int(execution_id)].message


def test_evidence_is_proved_wherever_it_is_moved_and_by_itself(
    stack: LocalStack, execution_id: str, tmp_path: Path
) -> None:
    made = stack.noetl("verify", "run", execution_id, "--into", str(tmp_path / "made"), "-o", "json")
    again = stack.noetl("verify", "run", execution_id, "--into", str(tmp_path / "made"))
    shutil.move(tmp_path / "made", tmp_path / "moved")

    offline = alone("verify", "bundle", str(tmp_path / "moved"), "-o", "json", home=tmp_path)
    text = alone("verify", "bundle", str(tmp_path / "moved"), home=tmp_path)
    pinned = alone("verify", "bundle", str(tmp_path / "moved"), "--index-sha256", "0" * 64, home=tmp_path)

    assert made.code == 0, made.out + made.err
    assert again.code == 2
    assert "not written over" in again.err
    assert offline.code == 0, offline.out
    assert offline.document["index_sha256"] == made.document["index_sha256"]
    assert all(one["equal"] for one in offline.document["verdict"]["surfaces"].values())
    assert offline.document["verdict"]["upcasters"] == {
        "replayed": UPCASTERS.digest,
        "live": UPCASTERS.digest,
        "equal": True,
    }
    assert stack.noetl("status", execution_id, "-o", "json").document["upcasters"] == UPCASTERS.digest
    assert {name: one["rows"] > 0 for name, one in offline.document["verdict"]["surfaces"].items()} == dict.fromkeys(
        ("execution", "stages", "frames", "commands", "business_objects", "loops"), True
    )
    assert text.out.splitlines()[-1] == "proved"
    assert pinned.code == 1
    assert "bundle.another" in pinned.out


def test_every_byte_of_evidence_counts(stack: LocalStack, execution_id: str, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    assert stack.noetl("verify", "run", execution_id, "--into", str(bundle)).code == 0
    files = sorted(file for file in bundle.rglob("*") if file.is_file())
    assert {file.parent.name for file in files} == {"bundle", "payloads"}

    for file in files:
        data = file.read_bytes()
        file.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
        assert check_bundle(bundle).findings, file
        file.unlink()
        if file.name != "index.json":
            assert check_bundle(bundle).findings, file
        file.write_bytes(data)
    (bundle / "more.txt").write_text("more")

    assert [one.code for one in check_bundle(bundle).findings] == ["bundle.unlisted"]


def test_the_release_gate_passes_on_real_executions_and_fails_on_a_row_that_somebody_touched(
    stack: LocalStack, execution_id: str, tmp_path: Path
) -> None:
    passed = gate(stack, tmp_path / "passed")
    asked = json.loads((tmp_path / "passed" / "projectors.json").read_text())
    compared = json.loads((tmp_path / "passed" / "snapshots.json").read_text())
    touch = "UPDATE noetl.command SET attempt = attempt + $2 WHERE execution_id = $1"
    owner(stack, touch, int(execution_id), 1)
    failed = gate(stack, tmp_path / "failed", "--engine process")
    shown = stack.noetl("verify", "run", execution_id, "--no-bundle")
    owner(stack, touch, int(execution_id), -1)
    owner(stack, "UPDATE noetl.execution SET next_deadline = 'tomorrow' WHERE execution_id = $1", int(execution_id))
    late = stack.noetl("verify", "run", execution_id, "--no-bundle")
    owner(stack, "UPDATE noetl.execution SET next_deadline = NULL WHERE execution_id = $1", int(execution_id))

    assert passed.code == 0, passed.out + passed.err
    assert passed.out.splitlines()[-1] == "release gate: passed"
    assert (tmp_path / "passed" / execution_id / "manifest.json").is_file()
    assert (tmp_path / "passed" / execution_id / "projector-summary.json").is_file()
    assert [len(one["shards"]) for one in asked.values()] == [64]
    assert json.loads((tmp_path / "passed" / "all.json").read_text())["payloads"].keys() == {"verified"}
    assert (compared["executions"], compared["from_snapshots"]) == (1, 1)
    assert failed.code == 1
    assert "what is live is not what the log says" in failed.err
    assert "parity.differs" in failed.err
    assert "attempt is 2 and should be 1" in shown.out
    assert "parity.column_differs" in late.out
    assert "and should be none" in late.out


def test_payloads_that_are_gone_or_damaged_are_found_among_all_executions(stack: LocalStack, execution_id: str) -> None:
    gone, damaged = files_of(stack, execution_id)[:2]
    kept = {file: file.read_bytes() for file in (gone, damaged)}
    unseen = stack.noetl("verify", "all", "--engine", "process")
    whole = stack.noetl("verify", "all", "--engine", "process", "--payloads", "-o", "json")
    gone.unlink()
    damaged.write_bytes(b"X" * len(kept[damaged]))
    try:
        told = stack.noetl("verify", "all", "--engine", "process", "--payloads", "-o", "json")
        shown = stack.noetl("verify", "all", "--engine", "process", "--payloads")
    finally:
        for file, data in kept.items():
            file.write_bytes(data)

    assert (unseen.code, whole.code, told.code) == (0, 0, 1), told.err
    assert "payloads:" not in unseen.out
    assert set(whole.document["payloads"]) == {"verified"}
    (verdict,) = told.document["failed"]
    assert verdict["execution_id"] == execution_id
    assert {(one["code"], one["message"].split()[1]) for one in verdict["findings"]} == {
        ("payload.missing", gone.name),
        ("payload.corrupt", damaged.name),
    }
    verified = whole.document["payloads"]["verified"] - 2
    assert told.document["payloads"] == {"corrupt": 1, "missing": 1, "verified": verified}
    assert f"payloads: 1 corrupt, 1 missing, {verified} verified" in shown.out


def test_histories_may_come_from_a_lake(stack: LocalStack, execution_id: str, tmp_path: Path) -> None:
    touch = "UPDATE noetl.execution SET status = $2 WHERE execution_id = $1"
    owner(stack, touch, int(execution_id), "RUNNING")

    options = ("--lake", str(tmp_path / "lake"), "--jobs", "2", "--payloads", "-o", "json")
    told = stack.noetl("verify", "all", *options, seconds=400)
    owner(stack, touch, int(execution_id), "COMPLETED")

    assert told.code == 1, told.out + told.err
    assert (told.document["executions"], told.document["missing"]) == (5, 0)
    assert told.document["payloads"].keys() == {"verified"}
    (verdict,) = told.document["failed"]
    assert verdict["execution_id"] == execution_id
    assert [finding.get("surface") for finding in verdict["findings"]] == ["execution"]


def test_what_begins_after_a_lake_was_brought_up_is_verified_from_the_log(
    stack: LocalStack, execution_id: str, tmp_path: Path
) -> None:
    """One execution is in the lake only, too: it is no substitute for one that is not in it."""
    server = Server(address=stack.endpoint.address, token=stack.endpoint.token)
    bulk = Bulk(jobs=2, memory="512m", lake=str(tmp_path / "lake"))
    hello = str(ROOT / "examples" / "playbooks" / "hello_world.yaml")
    with bulk.spark_jobs() as jobs:
        bring_lake_up(server, bulk, jobs)
        later = str(stack.noetl("run", hello, "-o", "json").document["execution_id"])
        listed = asyncio.run(list_everything(server, None))
        lost = replace(listed, heads=[head for head in listed.heads if head.execution_id != int(execution_id)])
        seen: list[int] = []
        whole = verify_all(server, bulk, listed, jobs, lambda executions, events: seen.append(executions))
        masked = verify_all(server, bulk, lost, jobs, lambda executions, events: None)

    assert int(later) in {head.execution_id for head in listed.heads}
    assert whole.is_proved, whole.to_json()
    assert (whole.missing, whole.executions, seen[-1]) == (0, len(listed.heads), len(listed.heads))
    assert masked.missing == 0
    assert [one["execution_id"] for one in masked.failed] == [execution_id]
    assert masked.failed[0]["findings"][0]["code"] == "log.lost"


def gate(stack: LocalStack, directory: Path, options: str = "") -> Ran:
    """As whoever releases runs it."""
    ports = json.loads(stack.home.ports_file.read_text("utf-8"))
    environment = {
        **stack.environment(),
        "NOETL": f"{sys.executable} -P -m noetl_cli",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GATE_OPTIONS": options,
        "GATE_SAMPLES": "2",
        "GATE_SNAPSHOT_EVENTS": str(SNAPSHOT_EVENTS),
        "GATE_PROJECTORS": f"http://127.0.0.1:{ports['projector.ops']}",
    }
    ended = subprocess.run(
        ["bash", str(GATE), str(directory)],
        env=environment,
        cwd=directory.parent,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Ran(code=ended.returncode, out=ended.stdout, err=ended.stderr)


def alone(*arguments: str, home: Path) -> Ran:
    """Where there is no NoETL at all."""
    ended = subprocess.run(
        [sys.executable, "-P", "-m", "noetl_cli", *arguments],
        env={**environment_of_nobody(), "NOETL_HOME": str(home / "nothing")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return Ran(code=ended.returncode, out=ended.stdout, err=ended.stderr)
