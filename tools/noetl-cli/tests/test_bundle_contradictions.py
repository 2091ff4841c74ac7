"""Evidence that contradicts itself: all digests are right, and one document says what another one does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from noetl_cli.verify.bundle_report import bundle_report
from noetl_cli.verify.check_bundle import CheckedBundle, check_bundle
from noetl_cli.verify.report_formats import FORMATS
from noetl_core.canonical import decode, encode
from noetl_core.evidence.bundle import FILES, INDEX, PAYLOADS, artifact, index_document
from noetl_core.evidence.documents import payload_summary
from noetl_core.executions.events import PlaybookCompleted
from noetl_core.ports.event_log import Scope
from noetl_core.ports.streams import StreamHead
from noetl_testkit.histories import EXECUTION
from noetl_testkit.verifying import Evidence, Scene, keep, ref_to

SUMMARY = {"quarantined": [], "quarantined_count": 0}


class Bundle:
    """One that somebody edits."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def edit(self, role: str, change: Callable[[Any], None]) -> None:
        """Change a document."""
        file = self.directory / FILES[role]
        document: Any = decode(file.read_bytes())
        change(document)
        file.write_bytes(json.dumps(document).encode() + b"\n")

    def edit_payloads(self, change: Callable[[list[Any]], None]) -> None:
        """Change what is said of payloads, and the summary of it."""

        def both(document: Any) -> None:
            change(document["payloads"])
            document["payload_summary"] = payload_summary(document["payloads"])

        self.edit("replay", both)

    def edit_lines(self, change: Callable[[list[bytes]], None]) -> None:
        """Change the lines of events."""
        file = self.directory / FILES["events"]
        lines = file.read_bytes().splitlines(keepends=True)
        change(lines)
        file.write_bytes(b"".join(lines))

    def add_summary(self, **said: Any) -> None:
        """Of a projector, as if it had been asked."""
        (self.directory / FILES["projector"]).write_bytes(encode({**SUMMARY, **said}) + b"\n")
        self.edit("manifest", lambda one: one["config"].update(projector=True))
        self.edit("manifest", lambda one: one["artifacts"].update(projector=FILES["projector"]))

    def codes(self) -> set[str]:
        """What is found when everything has been digested anew."""
        return {one.code for one in self.checked().findings}

    def checked(self) -> CheckedBundle:
        """The same, in full."""
        roles = {path: role for role, path in FILES.items()}
        files = [file for file in self.directory.rglob("*") if file.is_file() and file.name != INDEX]
        paths = {file.relative_to(self.directory).as_posix(): file.read_bytes() for file in files}
        listed = [artifact(roles.get(path, "payload"), path, data) for path, data in paths.items()]
        (self.directory / INDEX).write_bytes(encode(index_document(listed)) + b"\n")
        return check_bundle(self.directory)


@pytest.fixture
async def bundle(tmp_path: Path) -> Bundle:
    """Evidence that holds."""
    scene = Scene(ref_to(b"[1]"), ref_to(b"[2]"))
    await keep(scene, b"[1]")
    await keep(scene, b"[2]")
    assert (await scene.verify(tmp_path / "bundle")).findings == []
    made = Bundle(tmp_path / "bundle")
    assert made.codes() == set()
    return made


def test_no_payload_is_listed_twice(bundle: Bundle) -> None:
    bundle.edit_payloads(lambda listed: listed.insert(0, {**listed[0], "status": "corrupt", "included": False}))

    assert bundle.codes() == {"payload.order", "payload.corrupt"}


@pytest.mark.parametrize("status", ["verified", "present"])
def test_payloads_that_were_to_come_along_cannot_be_left_out(bundle: Bundle, status: str) -> None:
    def left_out(listed: list[Any]) -> None:
        listed[:] = [{**one, "status": status, "included": False} for one in listed]

    bundle.edit_payloads(left_out)
    shutil.rmtree(bundle.directory / PAYLOADS)

    assert bundle.codes() == {"payload.included"}


@pytest.mark.parametrize(
    "said",
    [
        {"uses": 9},
        {"media_type": "text/html"},
        {"stored_bytes": 4},
        {"stored_bytes": 4, "included": False},
        {"stored_bytes": 9_000_000, "included": False},
    ],
)
def test_what_is_said_of_a_payload_is_what_events_and_bytes_say(bundle: Bundle, said: dict[str, Any]) -> None:
    bundle.edit_payloads(lambda listed: listed[0].update(said))

    assert "payload.differs" in bundle.codes()


def test_a_payload_that_came_along_is_not_too_large_for_it(bundle: Bundle) -> None:
    bundle.edit_payloads(lambda listed: listed[0].update(stored_bytes=9_000_000))

    assert bundle.codes() == {"payload.included"}


@pytest.mark.parametrize("left", [None, b"not json at all", b"null", b""])
def test_a_summary_that_was_asked_for_is_there_and_can_be_read(bundle: Bundle, left: bytes | None) -> None:
    bundle.add_summary()
    assert bundle.codes() == set()

    file = bundle.directory / FILES["projector"]
    if left is None:
        file.unlink()
        bundle.edit("manifest", lambda one: one["artifacts"].pop("projector"))
    else:
        file.write_bytes(left)

    assert bundle.codes() == {"projector", *({"manifest.artifacts"} if left is None else ())}


def test_a_summary_that_nobody_asked_for_is_none(bundle: Bundle) -> None:
    bundle.add_summary()
    bundle.edit("manifest", lambda one: one["config"].update(projector=False))

    assert bundle.codes() == {"manifest.artifacts", "projector"}


@pytest.mark.parametrize(
    "named", [["EXECUTION"], [["EXECUTION"]], [{"execution_id": "EXECUTION "}], [{"execution_id": ["EXECUTION"]}], [{}]]
)
def test_what_a_projector_has_given_up_is_named_by_ids(bundle: Bundle, named: Any) -> None:
    said = decode(encode(named).replace(b"EXECUTION", str(EXECUTION).encode()))
    bundle.add_summary(quarantined=said, quarantined_count=0 if type(named[0]) is not dict else 1)

    assert bundle.codes() == {"projector"}


@pytest.mark.parametrize("later", [0, 1])
async def test_events_stand_in_the_order_of_their_versions(
    tmp_path: Path, later: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    scene.history.add(PlaybookCompleted())
    head = await scene.evidence.find_stream(None, EXECUTION)
    last = scene.history.stored[-1 - later]

    async def find_stream(self: Evidence, scope: Scope | None, execution_id: int) -> StreamHead:
        return replace(head, version=last.stream_version, checksum=last.checksum, terminal=not later)

    monkeypatch.setattr(Evidence, "find_stream", find_stream)
    assert (await scene.verify(tmp_path / "bundle")).findings == []
    bundle = Bundle(tmp_path / "bundle")
    assert bundle.codes() == set()

    bundle.edit_lines(list.reverse)

    assert "event.out_of_order" in bundle.codes()


@pytest.mark.parametrize(
    ("told", "instead"),
    [
        (b"\n", b"\r\n"),
        (b"{", b"{ "),
        (b".000000Z", b"Z"),
        (b'"stream_version":3}', b'"stream_version":3.0}'),
        (b'"stream_version":3}', b'"stream_version":3e0}'),
    ],
)
def test_events_are_spelt_in_one_way(bundle: Bundle, told: bytes, instead: bytes) -> None:
    def respell(lines: list[bytes]) -> None:
        assert told in lines[2]
        before, _, after = lines[2].rpartition(told) if told != b"{" else lines[2].partition(told)
        lines[2] = before + instead + after

    bundle.edit_lines(respell)

    assert bundle.codes() & {"event.respelt", "event.unreadable"}


@pytest.mark.parametrize("name", ["fetch", "locator", "artifact_index"])
def test_a_step_is_over_before_the_next_one_begins(bundle: Bundle, name: str) -> None:
    def longer(manifest: Any) -> None:
        next(step for step in manifest["steps"] if step["name"] == name)["duration_ms"] += 60_000

    bundle.edit("manifest", longer)

    assert bundle.codes() == {"manifest.steps"}


@pytest.mark.parametrize("milliseconds", [2**53 - 1, 10**15])
def test_a_step_of_any_length_is_judged(bundle: Bundle, milliseconds: int) -> None:
    bundle.edit("manifest", lambda one: one["steps"][0].update(duration_ms=milliseconds))

    assert bundle.codes() == {"manifest.steps"}


@pytest.mark.parametrize(
    ("role", "path", "value", "code"),
    [
        ("manifest", ("config", "tenant_id"), "acme", "manifest"),
        ("manifest", ("config", "organization_id"), "acme", "manifest"),
        ("manifest", ("head", "terminal"), True, "manifest"),
        ("live_rows", ("scope", "tenant_id"), "acme", "live_rows"),
        ("live_rows", ("exported_at",), "1999-01-01T00:00:00.000000Z", "manifest"),
        ("live_rows", ("exported_at",), "2999-01-01T00:00:00.000000Z", "manifest"),
        ("live_rows", ("adapter",), "somebody's own", "live_rows"),
        ("report", ("findings",), [{"code": "payload.missing"}], "report"),
    ],
)
def test_whose_it_is_and_when_and_whether_it_holds_is_said_once(
    bundle: Bundle, role: str, path: tuple[str, ...], value: Any, code: str
) -> None:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = value

    bundle.edit(role, change)

    assert code in bundle.codes()


@pytest.mark.parametrize("version", ["abc", None, [1], {}, 1.5, True])
def test_a_row_that_somebody_added_is_named_whatever_version_it_has(bundle: Bundle, version: Any) -> None:
    def add(document: Any) -> None:
        rows = document["rows"]["commands"]
        rows.append({**rows[-1], "command_id": "zzz", "stream_version": version})

    bundle.edit("live_rows", add)

    assert {"live_rows", "row.shape", "parity.row_removed"} <= bundle.codes()


@pytest.mark.parametrize("depth", [129, 500, 960, 985, 990])
@pytest.mark.parametrize(
    ("role", "path"),
    [
        ("live_rows", ("adapter",)),
        ("live_rows", ("rows", "commands", 0, "trace")),
        ("replay", ("payloads", 0, "status")),
        ("replay", ("payload_summary",)),
        ("report", ("verdict", "x")),
        ("manifest", ("program",)),
    ],
)
def test_what_is_nested_too_deep_to_be_spelt_is_found_beside_everything_else(
    bundle: Bundle, role: str, path: tuple[Any, ...], depth: int
) -> None:
    bundle.edit("manifest", lambda one: one.update(ended_at=one["started_at"]))

    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        document[path[-1]] = "here"

    bundle.edit(role, change)
    file = bundle.directory / FILES[role]
    file.write_bytes(file.read_bytes().replace(b'"here"', b"[" * depth + b"]" * depth))

    checked = bundle.checked()
    codes = {one.code for one in checked.findings}
    assert role in codes
    assert role == "manifest" or "manifest.steps" in codes
    for spell in FORMATS.values():
        assert "DOES NOT HOLD" in spell(bundle_report(checked))


@pytest.mark.parametrize("ended_before", [True, False])
async def test_whether_it_had_ended_is_judged_where_the_head_was(
    tmp_path: Path, ended_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    scene.history.add(PlaybookCompleted())
    head = await scene.evidence.find_stream(None, 1)
    first = scene.history.stored[0]
    earlier = replace(head, version=1, checksum=first.checksum)

    async def find_stream(self: Evidence, scope: Scope | None, execution_id: int) -> StreamHead:
        found = replace(head, terminal=True) if ended_before else earlier
        return replace(found, execution_id=execution_id)

    monkeypatch.setattr(Evidence, "find_stream", find_stream)
    assert (await scene.verify(tmp_path / "bundle")).findings == []
    bundle = Bundle(tmp_path / "bundle")

    assert bundle.codes() == set()
    bundle.edit("manifest", lambda one: one["head"].update(terminal=not ended_before))
    assert bundle.codes() == {"manifest"}
