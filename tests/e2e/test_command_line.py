"""What scripts and people rely on, against the whole of NoETL."""

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from noetl_adapters.arrow.ipc import open_table
from noetl_testkit.eventually import eventually
from noetl_testkit.local_stack import LocalStack

ECHO = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: echo, path: tests/echo}
workload: {who: world, limits: {low: 1, high: 9}}
workflow:
- step: echo
  tool: {kind: noop, result: {who: "{{ who }}", limits: "{{ limits }}"}}
"""

LINEAGE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: lineage, path: tests/lineage}
workflow:
- step: load
  tool: {kind: python, code: 'result = [{"n": 1}, {"n": 2}]'}
  next: {arcs: [{step: total}]}
- step: total
  tool: {kind: noop, result: {total: 3}}
"""


@pytest.fixture
def echo(tmp_path: Path) -> str:
    file = tmp_path / "echo.yaml"
    file.write_text(ECHO)
    return str(file)


def result_of_echo(stack: LocalStack, execution_id: str) -> object:
    document = stack.noetl("result", execution_id, "echo", "-o", "json").document
    return document["result"]


def test_variables_come_from_settings_a_file_and_stdin(stack: LocalStack, echo: str, tmp_path: Path) -> None:
    set_on_the_line = stack.noetl("run", echo, "--set", "who=Ada", "--set", 'limits={"high": 5}', "-o", "json")
    (tmp_path / "variables.json").write_text('{"who": "Bob", "limits": {"low": 2}}')
    from_file = stack.noetl("run", echo, "--payload", str(tmp_path / "variables.json"), "-o", "json")
    from_stdin = stack.noetl("run", echo, "--payload", "-", "--set", "limits.low=4", "-o", "json", stdin='{"who": 5}')

    assert [ran.code for ran in (set_on_the_line, from_file, from_stdin)] == [0, 0, 0]
    results = [result_of_echo(stack, ran.document["execution_id"]) for ran in (set_on_the_line, from_file, from_stdin)]
    assert results == [
        {"who": "Ada", "limits": {"high": 5}},
        {"who": "Bob", "limits": {"low": 2}},
        {"who": 5, "limits": {"low": 4}},
    ]


@pytest.mark.parametrize(
    ("change", "line", "code"),
    [
        (("kind: noop", "kind: nop"), 7, "playbook.unknown_tool"),
        (("noetl.io/v2", "noetl.io/v99"), 1, "playbook.api_version"),
        (("{kind: noop", "kind: noop"), 7, "playbook.yaml_invalid"),
        (("workflow:", "executor: {spec: {entry_step: nowhere}}\nworkflow:"), 5, "playbook.unknown_step"),
        (("{{ who }}", "{{ who"), 7, "playbook.template_syntax"),
    ],
)
def test_a_broken_playbook_is_refused_with_line_and_reason_and_nothing_is_stored(
    stack: LocalStack, tmp_path: Path, change: tuple[str, str], line: int, code: str
) -> None:
    path = f"tests/broken_{code.rpartition('.')[2]}"
    file = tmp_path / "broken.yaml"
    file.write_text(ECHO.replace("tests/echo", path).replace(*change))

    ran = stack.noetl("run", str(file))

    assert ran.code == 2
    assert any(text.startswith(f"{file}:{line}:") and code in text for text in ran.err.splitlines()), ran.err
    assert stack.noetl("catalog", "get", path).code == 3
    listed = stack.noetl("list", "--path", path, "-o", "json").document
    assert listed["executions"] == []
    offline = stack.noetl("playbook", "validate", str(file), "-o", "json")
    assert (offline.code, offline.document["files"][0]["problems"][0]["line"]) == (2, line)


def test_a_condition_that_is_no_expression_is_refused_even_where_nothing_leads(
    stack: LocalStack, tmp_path: Path
) -> None:
    file = tmp_path / "unreachable.yaml"
    file.write_text(
        ECHO.replace("tests/echo", "tests/unreachable")
        + "- step: never\n  tool: {kind: noop}\n"
        + '  next: {arcs: [{step: echo, when: "{{ 1 + }}"}]}\n'
    )

    ran = stack.noetl("catalog", "register", str(file), "-o", "json")

    assert ran.code == 2
    (problem,) = ran.document["error"]["problems"]
    assert (problem["line"], problem["code"]) == (10, "playbook.template_syntax")
    assert stack.noetl("catalog", "get", "tests/unreachable").code == 3


def test_an_execution_is_pinned_to_the_version_it_started_with(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "pinned.yaml"
    first = ECHO.replace("tests/echo", "tests/pinned")
    for text in (first, first.replace("who: world", "who: everyone"), first.replace("who: world", "who: everyone")):
        file.write_text(text)
        assert stack.noetl("catalog", "register", str(file)).code == 0

    versions = stack.noetl("catalog", "versions", "tests/pinned", "-o", "json").document
    assert [entry["version"] for entry in versions["entries"]] == [2, 1]
    old = stack.noetl("run", "--path", "tests/pinned", "--version", "1", "-o", "json")
    new = stack.noetl("run", "--path", "tests/pinned", "-o", "json")
    assert [(ran.document["version"], ran.document["status"]) for ran in (old, new)] == [
        (1, "COMPLETED"),
        (2, "COMPLETED"),
    ]
    unknown = stack.noetl("run", "--path", "tests/pinned", "--version", "7", "-o", "json")
    assert (unknown.code, unknown.document["error"]["code"]) == (3, "catalog.not_found")
    assert stack.noetl("catalog", "get", "tests/pinned", "--version", "1").out == first


def test_the_same_start_key_finds_the_first_execution(stack: LocalStack, echo: str) -> None:
    first = stack.noetl("run", echo, "--start-key", "once", "-o", "json").document
    second = stack.noetl("run", echo, "--start-key", "once", "-o", "json").document

    assert (first["execution_id"], first["created"]) == (second["execution_id"], True)
    assert second["created"] is False


def test_following_in_json_is_a_line_per_event_and_then_the_end(stack: LocalStack, echo: str) -> None:
    ran = stack.noetl("run", echo, "--follow", "-o", "json")

    *events, end = ran.lines
    assert [event["stream_version"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["event_type"] == "playbook.completed"
    assert (end["status"], end["stream_version"]) == ("COMPLETED", len(events))
    again = stack.noetl("events", end["execution_id"], "--follow", "--from", "5", "-o", "json")
    assert again.lines == events[4:]


def test_status_list_and_catalog_agree_with_what_ran(stack: LocalStack, echo: str) -> None:
    ran = stack.noetl("run", echo, "-o", "json").document

    def projected() -> bool:
        listed = stack.noetl("list", "--path", "tests/echo", "--status", "completed", "-o", "json").document
        return ran["execution_id"] in [one["execution_id"] for one in listed["executions"]]

    eventually(projected)
    status = stack.noetl("status", ran["execution_id"], "-o", "json").document
    assert status == {key: value for key, value in ran.items() if key != "created"}
    entries = stack.noetl("catalog", "list", "-o", "json").document["entries"]
    assert "tests/echo" in [entry["path"] for entry in entries]


def test_a_terminal_shows_the_steps_in_place(stack: LocalStack, echo: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "noetl_cli", "run", echo],
        env={**stack.environment(), "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        drawn = b""
        while chunk := _read(ours):
            drawn += chunk
    os.close(ours)

    text = drawn.decode()
    assert process.returncode == 0
    assert "\x1b[?25l" in text and "\x1b[?25h" in text
    assert "✓ echo  done" in text
    assert "COMPLETED" in text.rpartition("\x1b[?25h")[2]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how a terminal says that nobody writes to it any more
        return b""


def test_ctrl_c_detaches_and_the_execution_goes_on(stack: LocalStack, examples: Path) -> None:
    with stack.started("run", str(examples / "cancel_me.yaml"), "--follow", "-o", "json") as process:
        assert process.stdout is not None
        for line in process.stdout:
            event = json.loads(line)
            if event["event_type"] == "command.started":
                break
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130

    execution_id = event["execution_id"]
    assert stack.noetl("status", execution_id, "-o", "json").document["status"] == "RUNNING"
    assert stack.noetl("cancel", execution_id).code == 0


def test_a_token_sees_only_its_own_tenant_and_does_only_what_its_role_may(
    stack: LocalStack, echo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = stack.noetl("run", echo, "-o", "json").document["execution_id"]
    tokens_file = str(stack.home.root / "secrets" / "tokens.json")

    def token(name: str, *options: str) -> str:
        made = stack.noetl("token", "create", "--name", name, "--tokens-file", tokens_file, *options, "-o", "json")
        return str(made.document["token"])

    stranger = token("stranger", "--tenant", "another")
    reader = token("reader", "--role", "reader")

    # Servers notice a new token within a second.
    eventually(lambda: stack.noetl("status", execution_id, "--token", reader).code == 0)
    assert stack.noetl("status", execution_id, "--token", stranger).code == 3
    assert stack.noetl("events", execution_id, "--token", stranger).code == 3
    assert stack.noetl("catalog", "get", "tests/echo", "--token", stranger).code == 3
    refused = stack.noetl("run", echo, "--token", reader, "-o", "json")
    assert (refused.code, refused.document["error"]["code"]) == (1, "auth.forbidden")
    assert stack.noetl("status", execution_id, "--token", "made-up").code == 1


TALK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: talk, path: tests/talk}
workflow:
- step: speak
  tool:
  - {name: say, kind: python, code: 'import logging; print("héllo"); logging.warning("careful")'}
  - {name: run, kind: shell, cmds: 'echo from the shell; echo aside >&2'}
  next: {arcs: [{step: fall}]}
- step: fall
  tool: {kind: python, code: 'print("before"); raise ValueError("after")', spec: {policy: {rules: [
    {when: "{{ output.status == 'error' }}", then: {do: retry, attempts: 2, delay: 0}}]}}}
"""


def test_what_code_prints_is_shown_by_logs_also_of_failed_calls(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "talk.yaml"
    file.write_text(TALK)
    ran = stack.noetl("run", str(file), "-o", "json")
    execution_id = ran.document["execution_id"]

    text = stack.noetl("logs", execution_id, "speak").out
    document = stack.noetl("logs", execution_id, "-o", "json").document
    followed = stack.noetl("logs", execution_id, "--follow", "-o", "json")

    assert "speak.say | héllo\nspeak.say ! WARNING" in text
    assert "careful\n" in text
    assert "speak.run | from the shell\nspeak.run ! aside\n" in text
    assert "before" not in text
    speak, fall = document["logs"]
    assert (speak["step"], speak["failed"], fall["step"], fall["failed"]) == ("speak", False, "fall", True)
    assert [(one["run"], one["stdout"]) for one in fall["outputs"]] == [(1, "before\n"), (2, "before\n")]
    assert all("ValueError: after" in one["stderr"] for one in fall["outputs"])
    assert followed.code == 1
    assert [json.loads(line)["step"] for line in followed.out.splitlines()] == ["speak", "fall"]


def test_a_result_is_traced_and_its_payload_is_read_through_the_server(stack: LocalStack, tmp_path: Path) -> None:
    file = tmp_path / "lineage.yaml"
    file.write_text(LINEAGE)
    execution_id = stack.noetl("run", str(file), "-o", "json").document["execution_id"]

    traced = stack.noetl("trace", execution_id, "total", "-o", "json").document
    newest, oldest = traced["results"]
    assert [(newest["step"], oldest["step"]), newest["parent_ref"]["ref_id"]] == [
        ("total", "load"),
        oldest["reference"]["ref_id"],
    ]

    told = stack.noetl("payload", "stat", oldest["reference"]["ref_id"], "-o", "json").document
    assert (told["sha256"], told["bytes"]) == (oldest["reference"]["sha256"], oldest["reference"]["bytes"])
    got = stack.noetl("payload", "get", json.dumps(newest["reference"]))
    assert json.loads(got.out) == {"total": 3}
    loaded = stack.noetl("result", execution_id, "load", "-o", "json").document
    assert loaded["result"] == [{"n": 1}, {"n": 2}]
    assert stack.noetl("payload", "head", oldest["reference"]["uri"]).out.split() == ["n:", "int64", "n", "1", "2"]
    assert stack.noetl("payload", "verify", oldest["reference"]["uri"]).code == 0

    written = stack.noetl("payload", "get", oldest["reference"]["uri"], "-f", str(tmp_path / "rows.arrow"))
    assert (written.code, open_table((tmp_path / "rows.arrow").read_bytes()).to_pylist()) == (0, [{"n": 1}, {"n": 2}])
    missing = oldest["reference"]["uri"][:-4] + "0000"
    assert [stack.noetl("payload", command, missing).code for command in ("stat", "verify")] == [3, 3]
    assert stack.noetl("trace", execution_id, "nothing").code == 3

    garbage = stack.noetl("payload", "gc", "-o", "json").document
    assert (garbage["applied"], garbage["marked"], garbage["collections"]) == (False, 0, [])
    assert garbage["payloads"] >= 2
