"""The release gate passes only if something was compared; what the installation says is given here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / "scripts" / "check_replay_release_gate.sh"
NOETL = """
import json, pathlib, sys
answers = json.loads(pathlib.Path(__file__).with_name("answers.json").read_text())
print(json.dumps(answers[" ".join(sys.argv[1:3])]))
"""


def gate(directory: Path, *, missing: str = "", settings: Mapping[str, str] | None = None) -> tuple[int, str]:
    """What it makes of an installation that has one of everything else: exit code, and the last line."""
    objects, from_snapshots = int(missing != "objects"), int(missing != "snapshots")
    everything = {"executions": 1, "events": 9, "events_per_second": 9.0, "proved": True}
    answers = {
        "verify all": {**everything, "rows": {"execution": 1, "business_objects": objects}},
        "verify snapshots": {"from_snapshots": from_snapshots, "executions": from_snapshots, "proved": True},
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
            **(settings or {}),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, (ended.stderr or ended.stdout).splitlines()[-1]


def test_it_passes_where_a_snapshot_and_a_business_object_were_compared(tmp_path: Path) -> None:
    assert gate(tmp_path) == (0, "release gate: passed")


@pytest.mark.parametrize(
    ("missing", "setting", "reason"),
    [
        ("snapshots", "GATE_WITHOUT_SNAPSHOTS", "no snapshot was compared"),
        ("objects", "GATE_WITHOUT_OBJECTS", "too little was compared"),
    ],
)
def test_it_fails_where_there_was_none_unless_that_is_wanted(
    tmp_path: Path, missing: str, setting: str, reason: str
) -> None:
    for name in ("refused", "wanted"):
        (tmp_path / name).mkdir()

    assert gate(tmp_path / "refused", missing=missing) == (1, f"release gate: {reason}")
    assert gate(tmp_path / "wanted", missing=missing, settings={setting: "1"}) == (0, "release gate: passed")
