"""States of a real execution at any point, on the command line, and what other code makes of its history."""

from __future__ import annotations

from pathlib import Path

import pytest
from noetl_core.replay.event_lines import read_event_line
from noetl_core.replay.golden import expectation
from noetl_testkit import other_releases
from noetl_testkit.local_stack import LocalStack

PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: replayed, path: tests/replayed}
workflow:
- step: each
  loop: {in: [1, 2, 3], iterator: n, spec: {mode: parallel, engine: inline, frame: {max_rows: 2}}}
  tool: {kind: noop, result: {n: "{{ iter.n }}"}}
  next: {arcs: [{step: after}]}
- {step: after, tool: {kind: noop}}
"""


@pytest.fixture(scope="module")
def execution_id(stack: LocalStack, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("replay") / "replayed.yaml"
    file.write_text(PLAYBOOK)
    ran = stack.noetl("run", str(file), "-o", "json").document
    return str(ran["execution_id"])


def test_a_history_can_be_looked_at_from_any_point(stack: LocalStack, execution_id: str) -> None:
    whole = stack.noetl("replay", "state", execution_id, "--resolve-payloads", "-o", "json").document
    begun = stack.noetl("replay", "state", execution_id, "--at", "3", "-o", "json").document
    changed = stack.noetl("replay", "diff", execution_id, "3", "-o", "json").document
    text = stack.noetl("replay", "diff", execution_id, "3")

    assert whole["row_counts"] == {
        "execution": 1,
        "stages": 1,
        "frames": 2,
        "commands": 1,
        "business_objects": 0,
        "loops": 1,
    }
    assert {row["status"] for row in whole["rows"]["frames"]} == {"committed"}
    assert {one["status"] for one in whole["payloads"]} == {"verified"}
    assert (begun["stream_version"], begun["rows"]["execution"][0]["status"]) == (3, "RUNNING")
    kinds = {(one["surface"], one["kind"]) for one in changed["differences"]}
    assert kinds >= {("execution", "changed"), ("frames", "added"), ("commands", "added")}
    assert any(line.strip() == "status: RUNNING -> COMPLETED" for line in text.out.splitlines()), text.out


def test_the_same_code_sees_no_drift_and_other_code_is_asked_in_a_process_of_its_own(
    stack: LocalStack, execution_id: str, tmp_path: Path
) -> None:
    here = stack.noetl("replay", "drift", execution_id)
    (tmp_path / "noetl_cli" / "replay").mkdir(parents=True)
    for place in ("noetl_cli", "noetl_cli/replay"):
        (tmp_path / place / "__init__.py").touch()
    (tmp_path / "noetl_cli/replay/fold_lines.py").write_text(
        "import json, sys\n"
        "for line in sys.stdin.buffer:\n"
        "    if line == b'\\n':\n"
        "        print(json.dumps({'format': 2, 'upcasters': 'x', 'surfaces': {}}), flush=True)\n"
    )

    there = stack.noetl("replay", "drift", execution_id, "--with", str(tmp_path), "-o", "json")

    nowhere = stack.noetl("replay", "drift", execution_id, "--with", str(tmp_path / "misspelt"))

    assert (here.code, there.code, nowhere.code) == (0, 1, 1), (here.err, there.err, nowhere.out)
    assert "does not exist" in nowhere.err
    assert here.out.splitlines()[0].removeprefix("server ") == here.out.splitlines()[1].removeprefix("other  ")
    assert there.document["other"]["places"]["noetl_cli"] == str(tmp_path / "noetl_cli" / "__init__.py")
    (drifted,) = there.document["drifted"]
    assert drifted["format"] == {"server": 1, "other": 2}
    assert len(drifted["drifted"]) == 6


def test_what_another_release_folds_otherwise_is_named_and_what_a_limit_leaves_out_is_counted(
    stack: LocalStack, execution_id: str, tmp_path: Path
) -> None:
    (tmp_path / "again.yaml").write_text(PLAYBOOK.replace("tests/replayed", "tests/replayed_again"))
    again = stack.noetl("run", str(tmp_path / "again.yaml"), "-o", "json").document["execution_id"]
    other = other_releases.with_another_fold(tmp_path / "other")

    told = stack.noetl("replay", "drift", execution_id, again, "--with", other, "-o", "json")
    text = stack.noetl("replay", "drift", execution_id, "--with", other)
    newest = stack.noetl("replay", "drift", "--limit", "1", "-o", "json")
    nobody = stack.noetl("replay", "drift", "4711")
    both = stack.noetl("replay", "drift", execution_id, "--limit", "1")

    assert (told.code, text.code, newest.code, nobody.code, both.code) == (1, 1, 0, 3, 2), (told, newest)
    assert [(one["execution_id"], one["drifted"]) for one in told.document["drifted"]] == [
        (execution_id, ["commands"]),
        (again, ["commands"]),
    ]
    assert told.document["complete"] is True
    assert text.out.splitlines()[-1] == "1 of 1 executions would change"
    assert (newest.document["executions"], newest.document["complete"]) == (1, False)
    assert newest.document["left_out"] >= 1


def test_events_are_printed_as_golden_histories_have_them(stack: LocalStack, execution_id: str) -> None:
    lines = stack.noetl("replay", "events", execution_id).out.splitlines()
    whole = stack.noetl("replay", "state", execution_id, "--surface", "none", "-o", "json").document

    expected, _ = expectation([read_event_line(line.encode()) for line in lines])

    assert expected["positions"][-1]["checksum"] == whole["checksum"]  # type: ignore[index,call-overload]
    assert expected["payload_root"] == whole["payload_root"]
