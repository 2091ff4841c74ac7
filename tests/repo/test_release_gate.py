"""The release gate passes only if something was compared; what the installation says is given here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / "scripts" / "check_replay_release_gate.sh"
NOETL = """
import json, pathlib, sys
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
answer = answers[" ".join(sys.argv[1:3])]
if "--payloads" not in sys.argv:
    answer.pop("payloads", None)
print(json.dumps({"payloads": None, **answer}))
"""


NOTHING_GIVEN_UP = {"quarantined_count": 0, "quarantined": [], "live_instances": 1}


@contextmanager
def projector(summary: Mapping[str, object]) -> Iterator[str]:
    """The operator's port of one that says this."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/summary"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(summary).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def gate(
    directory: Path,
    *,
    missing: str = "",
    settings: Mapping[str, str] | None = None,
    summary: Mapping[str, object] = NOTHING_GIVEN_UP,
) -> tuple[int, str]:
    """What it makes of an installation that has one of everything else: exit code, and the last line."""
    with projector(summary) as address:
        projectors = {} if missing == "projectors" else {"GATE_PROJECTORS": address}
        return run_gate(directory, missing, {**projectors, **(settings or {})})


def run_gate(directory: Path, missing: str, settings: Mapping[str, str]) -> tuple[int, str]:
    objects, from_snapshots = int(missing != "objects"), int(missing != "snapshots")
    everything = {"executions": 1, "events": 9, "events_per_second": 9.0, "proved": True}
    answers = {
        "verify all": {
            **everything,
            "rows": {"execution": 1, "business_objects": objects},
            "payloads": {"verified": 1},
        },
        "verify snapshots": {
            "from_snapshots": from_snapshots,
            "executions": from_snapshots,
            "not_compared": 0,
            "proved": True,
        },
        "list --limit": {"executions": [{"execution_id": "7"}]},
        "verify run": {},
        "verify bundle": {},
    }
    (directory / "answers.json").write_text(json.dumps(answers))
    (directory / "noetl.py").write_text(NOETL)
    ended = subprocess.run(
        ["bash", str(GATE), str(directory / "evidence")],
        env={
            "PATH": os.environ["PATH"],
            "NOETL": f"{sys.executable} -I -S {directory / 'noetl.py'}",
            **settings,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, (ended.stderr or ended.stdout).splitlines()[-1]


def test_it_passes_where_a_snapshot_and_an_object_were_compared_and_nothing_was_given_up(
    tmp_path: Path,
) -> None:
    assert gate(tmp_path) == (0, "release gate: passed")


@pytest.mark.parametrize(
    ("missing", "setting", "reason"),
    [
        ("snapshots", "GATE_WITHOUT_SNAPSHOTS", "no snapshot was compared"),
        ("objects", "GATE_WITHOUT_OBJECTS", "too little was compared"),
        ("projectors", "GATE_WITHOUT_PROJECTORS", "no projector was asked, see GATE_PROJECTORS"),
    ],
)
def test_it_fails_where_there_was_none_unless_that_is_wanted(
    tmp_path: Path, missing: str, setting: str, reason: str
) -> None:
    for name in ("refused", "wanted"):
        (tmp_path / name).mkdir()

    assert gate(tmp_path / "refused", missing=missing) == (1, f"release gate: {reason}")
    assert gate(tmp_path / "wanted", missing=missing, settings={setting: "1"}) == (0, "release gate: passed")


@pytest.mark.parametrize(("setting", "looked_for"), [("", {"verified": 1}), ("1", None)])
def test_it_looks_for_all_payloads_unless_that_is_not_wanted(
    tmp_path: Path, setting: str, looked_for: Mapping[str, int] | None
) -> None:
    assert gate(tmp_path, settings={"GATE_WITHOUT_PAYLOADS": setting}) == (0, "release gate: passed")

    assert json.loads((tmp_path / "evidence" / "all.json").read_text())["payloads"] == looked_for


@pytest.mark.parametrize(
    "summary",
    [
        {**NOTHING_GIVEN_UP, "quarantined_count": 101, "quarantined": [{"execution_id": "8"}] * 100},
        {**NOTHING_GIVEN_UP, "quarantined_count": 1},
        {**NOTHING_GIVEN_UP, "live_instances": 2},
        {"shards": [], "quarantined": {}},
    ],
    ids=["more than are named", "none is named", "another projector was not asked", "not a projector"],
)
def test_it_fails_unless_every_projector_says_that_it_has_given_nothing_up(
    tmp_path: Path, summary: Mapping[str, object]
) -> None:
    reason = "release gate: not every projector says that it has given nothing up"
    assert gate(tmp_path, summary=summary) == (1, reason)
