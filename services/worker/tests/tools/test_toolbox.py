"""All tools together: made from settings, opened and closed as one."""

import os
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.canonical import JsonValue
from noetl_servicekit.env import Env, SettingsInvalid
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.plugin import ENTRY_POINT_GROUP
from noetl_worker.tools.registry import ToolRegistry
from noetl_worker.tools.toolbox import ToolboxSettings, build_toolbox

KINDS = ("artifact", "duckdb", "http", "nats", "noop", "postgres", "python", "script", "shell", "transfer")


class Waiting:
    """A tool that the caller brings along."""

    async def run(self, call: ToolCall) -> Outcome:
        return Outcome(data="waited")


def call(kind: str, **config: JsonValue) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind=kind,
        config=config,
        timeout_seconds=60,
    )


async def codes(tools: ToolRegistry, *calls: ToolCall) -> list[str]:
    outcomes = [await tools.run(one) for one in calls]
    return [outcome.status if outcome.error is None else outcome.error.code for outcome in outcomes]


async def test_every_tool_is_there_and_answers() -> None:
    async with build_toolbox(
        ToolboxSettings(slots=1, python_spares=0),
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=InMemoryToolCredentials(),
        variables=os.environ,
        more_tools={"playbook": Waiting()},
        plugins=(),
    ) as tools:
        assert tools.kinds == tuple(sorted((*KINDS, "playbook")))
        assert await codes(
            tools,
            call("noop"),
            call("playbook"),
            call("python", code="result = 1"),
            call("shell", cmds="true"),
            call("duckdb", command="SELECT 1"),
            call("http", url="http://127.0.0.1:1/"),
            call("postgres", command="SELECT 1"),
            call("nats", operation="kv_keys", bucket="b"),
            call("transfer"),
            call("artifact"),
            call("snowflake"),
            call("http", url="{{ 1 + none_such }}"),
        ) == [
            *("ok", "ok", "ok", "ok", "ok"),
            *("CONN_REFUSED", "AUTH_MISSING", "AUTH_MISSING", "TOOL_CONFIG", "TOOL_CONFIG"),
            *("TOOL_UNAVAILABLE", "TEMPLATE_ERROR"),
        ]
    assert await codes(
        tools, call("python", code="1"), call("shell", cmds="true"), call("duckdb", command="FROM t")
    ) == [*("PY_CHILD_UNAVAILABLE", "SHELL_UNAVAILABLE", "DUCKDB_UNAVAILABLE")]


async def test_no_message_of_any_tool_says_a_secret_of_the_keychain() -> None:
    names = {"keychain": {"api": {"token": "nobody-may-see-this"}}}
    async with build_toolbox(
        ToolboxSettings(slots=1, python_spares=0),
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=InMemoryToolCredentials(),
        variables={},
        plugins=(),
    ) as tools:
        raising = replace(call("python", code="raise ValueError('{{ keychain.api.token }}')"), names=names)
        wrong_name = replace(
            call("nats", operation="kv_keys", bucket="b"), auth="{{ keychain.api.token }}", names=names
        )
        for outcome in (await tools.run(raising), await tools.run(wrong_name)):
            assert outcome.error is not None
            assert "***" in outcome.error.message
            assert "nobody-may-see-this" not in outcome.error.message


async def test_what_the_operator_switches_off_says_so() -> None:
    settings = ToolboxSettings.read(
        Env({"NOETL_TOOL_SHELL_ENABLED": "off", "NOETL_TOOL_SCRIPT_ENABLED": "no", "NOETL_TOOL_PLUGINS_ENABLED": "0"}),
        slots=1,
        python_spares=0,
    )
    broken = EntryPoint(name="broken", value="no_such_module:x", group=ENTRY_POINT_GROUP)
    async with build_toolbox(
        settings,
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=InMemoryToolCredentials(),
        variables={},
        plugins=(broken,),
    ) as tools:
        assert "broken" not in tools.kinds
        outcome = await tools.run(call("shell", cmds="true"))
        assert outcome.error is not None
        assert (outcome.error.code, "switched" in outcome.error.message) == ("TOOL_UNAVAILABLE", True)
        script: JsonValue = {"uri": "x.py", "source": {"type": "file"}}
        assert await codes(tools, call("python", script=script)) == ["SCRIPT_DISABLED"]
        assert await codes(tools, call("script", script=script)) == ["TOOL_UNAVAILABLE"]


async def test_a_broken_plugin_stops_no_worker() -> None:
    broken = EntryPoint(name="broken", value="no_such_module:x", group=ENTRY_POINT_GROUP)
    async with build_toolbox(
        ToolboxSettings(slots=1, python_spares=0),
        payloads=InMemoryPayloadStore(),
        tables=ArrowTables(),
        credentials=InMemoryToolCredentials(),
        variables={},
        plugins=(broken,),
    ) as tools:
        assert await codes(tools, call("broken"), call("noop")) == ["TOOL_UNAVAILABLE", "ok"]


def test_settings_come_from_the_environment(tmp_path: Path) -> None:
    settings = ToolboxSettings.read(
        Env(
            {
                "NOETL_SCRIPT_ROOT": str(tmp_path),
                "NOETL_TOOL_MAX_RESULT_BYTES": "2048",
                "NOETL_TOOL_MAX_RESPONSE_BYTES": "4096",
                "NOETL_TOOL_POSTGRES_POOL_SIZE": "2",
                "NOETL_TOOL_DUCKDB_MEMORY": "1GB",
                "NOETL_TOOL_IDLE_SECONDS": "5",
            }
        ),
        slots=3,
        python_spares=1,
    )

    assert (settings.slots, settings.python_spares, settings.scripts.root) == (3, 1, tmp_path)
    assert (settings.postgres.max_connections_per_pool, settings.postgres.max_result_bytes) == (2, 2048)
    assert (settings.duckdb.memory_limit, settings.duckdb.max_result_bytes) == ("1GB", 2048)
    assert settings.python.max_result_bytes == 2048
    assert (settings.http.max_response_bytes, settings.nats.max_value_bytes) == (4096, 4096)
    assert settings.postgres.sharing.idle_seconds == settings.nats.sharing.idle_seconds == 5


def test_all_bad_settings_are_refused_together() -> None:
    env = Env({"NOETL_TOOL_SHELL_ENABLED": "perhaps", "NOETL_TOOL_DUCKDB_SESSIONS": "0"})
    ToolboxSettings.read(env, slots=1, python_spares=0)

    with pytest.raises(SettingsInvalid) as refusal:
        env.check()

    assert len(refusal.value.problems) == 2
