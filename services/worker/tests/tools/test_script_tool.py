"""script steps: files that run as the python tool or the shell tool would run them, within what the operator allows."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from importlib.metadata import EntryPoint
from io import BytesIO
from pathlib import Path

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.plugin import ENTRY_POINT_GROUP, ToolEnvironment
from noetl_worker.tools.registry import ToolRegistry
from noetl_worker.tools.script_source import ScriptLimits
from noetl_worker.tools.toolbox import ToolboxSettings, build_toolbox

FILES = {
    "double.py": "print('doubling')\nresult = n * 2",
    "plain": "def main(n): return n + 1",
    "rendered.py": "result = '{{ who }}'",
    "raises.py": "raise ValueError('no')",
    "forever.py": "while True: pass",
    "greet.sh": 'echo "$GREETING, $1 and $2"; echo "$0" >&2',
    "rendered.SH": "echo {{ who }}",
    "as_written.sh": "x=abc; echo ${#x}",
    "stops.sh": "echo one; false; echo never",
    "sleeps.sh": "echo before; sleep 600",
    "large.sh": "#" * 200_000,
}


@pytest.fixture
def settings(tmp_path: Path) -> ToolboxSettings:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return ToolboxSettings(slots=1, python_spares=0, scripts=ScriptLimits(root=tmp_path))


def toolbox(settings: ToolboxSettings, *plugins: EntryPoint) -> AbstractAsyncContextManager[ToolRegistry]:
    credentials = InMemoryToolCredentials()
    credentials.add("store", "s3", {"key": "me", "secret": "let-me-in-please"})
    return build_toolbox(
        settings,
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=credentials,
        variables=os.environ,
        plugins=plugins,
    )


@pytest.fixture
async def tools(settings: ToolboxSettings) -> AsyncIterator[ToolRegistry]:
    async with toolbox(settings) as tools:
        yield tools


def call(
    uri: str, *, timeout_seconds: float = 60.0, inputs: dict[str, JsonValue] | None = None, **more: JsonValue
) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind="script",
        config={"script": {"uri": uri}, **more},
        input=inputs or {},
        names={"who": "ada"},
        timeout_seconds=timeout_seconds,
    )


def failure(outcome: Outcome) -> tuple[ErrorKind, str]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code


async def test_python_is_given_its_inputs_and_has_a_result(tools: ToolRegistry) -> None:
    doubled = await tools.run(call("double.py", inputs={"n": "{{ 20 + 1 }}"}))
    plain = await tools.run(call("plain", inputs={"n": 1}))
    rendered = await tools.run(call("rendered.py"))

    assert (doubled.data, plain.data, rendered.data) == (42, 2, "ada")
    assert doubled.printed is not None
    assert doubled.printed.stdout == "doubling\n"


async def test_python_fails_as_code_of_a_python_step_does(tools: ToolRegistry) -> None:
    assert failure(await tools.run(call("raises.py")))[1] == "PY_ValueError"
    assert failure(await tools.run(call("forever.py", timeout_seconds=1))) == (ErrorKind.TIMEOUT, "TIMEOUT")


async def test_commands_are_given_arguments_and_variables(tools: ToolRegistry) -> None:
    by_map = call("greet.sh", args=["{{ who }}", 2], env={"GREETING": "{{ 'Hello' }}"})
    by_list = call("greet.sh", args=["a b", "$HOME"], env=[{"name": "GREETING", "value": "Hi"}])

    assert (await tools.run(by_map)).data == {"stdout": "Hello, ada and 2\n", "stderr": "greet.sh\n", "exit_code": 0}
    assert (await tools.run(by_list)).data == {
        "stdout": "Hi, a b and $HOME\n",
        "stderr": "greet.sh\n",
        "exit_code": 0,
    }


async def test_commands_are_a_template_or_run_as_they_are_written(tools: ToolRegistry) -> None:
    outcomes = [await tools.run(call(name)) for name in ("rendered.SH", "as_written.sh")]

    assert [outcome.data for outcome in outcomes] == [
        {"stdout": "ada\n", "stderr": "", "exit_code": 0},
        {"stdout": "3\n", "stderr": "", "exit_code": 0},
    ]


async def test_commands_fail_as_those_of_a_shell_step_do(tools: ToolRegistry) -> None:
    stopped = await tools.run(call("stops.sh"))

    assert failure(stopped)[1] == "SHELL_EXIT_1"
    assert stopped.data == {"stdout": "one\n", "stderr": "", "exit_code": 1}
    assert failure(await tools.run(call("sleeps.sh", timeout_seconds=1))) == (ErrorKind.TIMEOUT, "TIMEOUT")
    assert failure(await tools.run(call("large.sh")))[1] == "SCRIPT_TOO_LARGE"


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        (call("double.py", args=["x"]), "TOOL_CONFIG"),
        (call("double.py", env={"X": "y"}), "TOOL_CONFIG"),
        (call("greet.sh", env={"A=B": "y"}), "TOOL_CONFIG"),
        (call("greet.sh", env=["X"]), "TOOL_CONFIG"),
        (call("greet.sh", env="X"), "TOOL_CONFIG"),
        (call("greet.sh", args=[{}]), "TOOL_CONFIG"),
        (replace(call("x"), config={}), "TOOL_CONFIG"),
        (call("nothing.sh"), "SCRIPT_NOT_FOUND"),
        (call("../greet.sh"), "SCRIPT_NOT_ALLOWED"),
        (call("{{ 1 + none_such }}"), "TEMPLATE_ERROR"),
        (call("double.py", image="busybox"), "TOOL_UNAVAILABLE"),
    ],
)
async def test_what_cannot_run_says_why(tools: ToolRegistry, refused: ToolCall, code: str) -> None:
    assert failure(await tools.run(refused))[1] == code


async def test_code_of_the_playbook_is_python_whatever_it_ends_in(tools: ToolRegistry) -> None:
    inline: JsonValue = {"uri": "result = 1 # not.sh", "source": {"type": "inline"}}

    assert (await tools.run(replace(call("x"), config={"script": inline}))).data == 1


async def test_the_credential_of_the_step_opens_the_store(tools: ToolRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, object]] = []

    class ObjectStores:
        """What the package fsspec looks like to us."""

        def open(self, address: str, mode: str, **options: object) -> BytesIO:
            opened.append((address, options.get("key")))
            return BytesIO(b"echo from afar")

    monkeypatch.setitem(sys.modules, "fsspec", ObjectStores())
    outcome = await tools.run(replace(call("s3://bucket/far.sh"), auth="store"))

    assert outcome.data == {"stdout": "from afar\n", "stderr": "", "exit_code": 0}
    assert opened == [("s3://bucket/far.sh", "me")]


async def test_without_the_shell_only_python_runs(settings: ToolboxSettings) -> None:
    async with toolbox(replace(settings, shell_enabled=False)) as tools:
        assert (await tools.run(call("double.py", inputs={"n": 1}))).data == 2
        refused = await tools.run(call("greet.sh"))

    assert refused.error is not None
    assert (refused.error.code, "NOETL_TOOL_SHELL_ENABLED" in refused.error.message) == ("TOOL_UNAVAILABLE", True)


class Jobs:
    """A plug-in that runs scripts elsewhere."""

    def __init__(self, environment: ToolEnvironment) -> None:
        pass

    async def run(self, call: ToolCall) -> Outcome:
        return Outcome(data="a job")


async def test_a_plugin_takes_scripts_over_unless_the_operator_wants_none(settings: ToolboxSettings) -> None:
    jobs = EntryPoint(name="script", value=f"{__name__}:Jobs", group=ENTRY_POINT_GROUP)
    async with toolbox(settings, jobs) as tools:
        assert (await tools.run(call("double.py", image="busybox"))).data == "a job"
    async with toolbox(replace(settings, scripts=ScriptLimits(enabled=False)), jobs) as tools:
        refused = await tools.run(call("double.py", image="busybox"))

    assert refused.error is not None
    assert (refused.error.code, "NOETL_TOOL_SCRIPT_ENABLED" in refused.error.message) == ("TOOL_UNAVAILABLE", True)
