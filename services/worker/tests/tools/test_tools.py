"""Calls as the worker makes them: templates in, outcomes out."""

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Mapping

import pytest
from noetl_core.canonical import JsonValue
from noetl_core.playbook.views import StepView
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.noop import NoopTool
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_pool import PoolLimits, PythonPool
from noetl_worker.tools.registry import ToolRegistry


@pytest.fixture
async def pool() -> AsyncIterator[PythonPool]:
    async with PythonPool(limits=PoolLimits(), environment=os.environ) as pool:
        yield pool


@pytest.fixture
def tools(pool: PythonPool) -> ToolRegistry:
    return ToolRegistry({"noop": NoopTool(), "python": PythonTool(pool)})


def call(
    kind: str,
    config: Mapping[str, JsonValue],
    *,
    inputs: Mapping[str, JsonValue] | None = None,
    names: Mapping[str, object] | None = None,
    timeout_seconds: float | None = None,
    attempt: int = 1,
) -> ToolCall:
    return ToolCall(
        tenant_id="acme",
        organization_id="ops",
        execution_id=42,
        step="s",
        kind=kind,
        config=config,
        input=inputs or {},
        names=names or {},
        now="2024-01-02T03:04:05Z",
        timeout_seconds=timeout_seconds,
        attempt=attempt,
    )


def python(code: str, **inputs: JsonValue) -> ToolCall:
    return call("python", {"code": code}, inputs=inputs)


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


# --- registry and noop ------------------------------------------------------------------------------------


async def test_a_kind_that_nobody_answers_to_is_an_outcome() -> None:
    outcome = await ToolRegistry({"noop": NoopTool()}).run(call("snowflake", {}))

    assert failure(outcome) == (ErrorKind.UNKNOWN, "TOOL_UNAVAILABLE", False)


async def test_an_outcome_says_which_attempt_it_was_and_how_long_it_took() -> None:
    clock = iter([10.0, 10.0125])
    tools = ToolRegistry({"noop": NoopTool()}, clock=lambda: next(clock))

    outcome = await tools.run(call("noop", {}, attempt=3))

    assert outcome.envelope() == {
        "status": "ok",
        "data": {"status": "noop"},
        "meta": {"attempt": 3, "duration_ms": 12.5},
    }


async def test_noop_gives_its_rendered_result() -> None:
    tools = ToolRegistry({"noop": NoopTool()})
    config: dict[str, JsonValue] = {"result": {"risk": "{{ amount / 100 }}", "at": "{{ now() }}"}}

    assert (await tools.run(call("noop", config, names={"amount": 120}))).data == {
        "risk": 1.2,
        "at": "2024-01-02T03:04:05Z",
    }
    assert (await tools.run(call("noop", {"result": None}))).data is None


async def test_a_template_without_a_value_is_an_outcome() -> None:
    outcome = await ToolRegistry({"noop": NoopTool()}).run(call("noop", {"result": "{{ 1 + x }}"}, names={"x": None}))

    assert failure(outcome) == (ErrorKind.TRANSFORM, "TEMPLATE_ERROR", False)


# --- python -----------------------------------------------------------------------------------------------


async def test_inputs_are_rendered_to_native_values(tools: ToolRegistry) -> None:
    given = call(
        "python",
        {"code": "result = [type(n).__name__, text]"},
        inputs={"n": "{{ numbers[1] }}", "text": "n = {{ numbers[1] }}"},
        names={"numbers": [1, 2]},
    )

    assert (await tools.run(given)).data == ["int", "n = 2"]


async def test_the_context_is_what_templates_see(tools: ToolRegistry) -> None:
    code = "def main(context, amount): return [context['workload'], amount]"
    names = {"workload": {"amount": 3}, "amount": 3}

    assert (await tools.run(call("python", {"code": code}, names=names))).data == [{"amount": 3}, 3]


async def test_results_behind_views_reach_the_code_as_plain_data(tools: ToolRegistry) -> None:
    view = StepView({"rows": [1, 2]})

    outcome = await tools.run(
        call("python", {"code": "result = context"}, names={"fetch": view, "steps": {"fetch": view}})
    )

    assert outcome.data == {"fetch": {"rows": [1, 2]}, "steps": {"fetch": {"rows": [1, 2]}}}


async def test_code_is_a_template_and_runs_as_written_if_it_is_none(tools: ToolRegistry) -> None:
    names = {"n": 7, "program": "result = 8"}

    assert (await tools.run(call("python", {"code": "result = {{ n }}"}, names=names))).data == 7
    assert (await tools.run(call("python", {"code": "{{ program }}"}, names=names))).data == 8
    assert (await tools.run(python("n = 5\nresult = f'{{{n}}}'"))).data == "{5}"
    assert (await tools.run(python("result = '{% oops'"))).data == "{% oops"


async def test_base64_code_wins_over_code(tools: ToolRegistry) -> None:
    encoded = base64.b64encode(b"result = 'encoded {{ n }}'").decode()

    outcome = await tools.run(call("python", {"code": "result = 1", "code_b64": encoded}, names={"n": 2}))

    assert outcome.data == "encoded 2"


@pytest.mark.parametrize("config", [{}, {"code_b64": "%"}, {"code_b64": "/w=="}, {"code": 3}])
async def test_without_code_there_is_nothing_to_run(tools: ToolRegistry, config: dict[str, JsonValue]) -> None:
    assert failure(await tools.run(call("python", config))) == (ErrorKind.SCHEMA, "PY_NO_CODE", False)


async def test_libs_are_imported_and_a_list_of_them_is_ignored(tools: ToolRegistry) -> None:
    libs: JsonValue = {"m": "math"}

    assert (await tools.run(call("python", {"code": "result = m.pi > 3", "libs": libs}))).data is True
    assert (await tools.run(call("python", {"code": "result = 1", "libs": ["math"]}))).data == 1


async def test_an_exception_is_an_error_with_the_users_lines(tools: ToolRegistry) -> None:
    outcome = await tools.run(python("print('so far')\nint(text)", text="x"))

    assert failure(outcome) == (ErrorKind.TRANSFORM, "PY_ValueError", False)
    assert outcome.py == {"stdout": "so far\n", "traceback": "line 2: int(text)"}


async def test_a_returned_error_is_data(tools: ToolRegistry) -> None:
    outcome = await tools.run(python("return {'status': 'error'}"))

    assert outcome.status == "ok"
    assert outcome.data == {"status": "error"}


async def test_a_timeout_is_retryable(tools: ToolRegistry) -> None:
    outcome = await tools.run(call("python", {"code": "while True: pass"}, timeout_seconds=0.05))

    assert failure(outcome) == (ErrorKind.TIMEOUT, "TIMEOUT", True)
    assert outcome.error is not None
    assert "0.05 s" in outcome.error.message


async def test_a_dead_child_is_not_retryable(tools: ToolRegistry) -> None:
    assert failure(await tools.run(python("os.abort()"))) == (ErrorKind.UNKNOWN, "PY_CHILD_DIED", False)


async def test_a_closed_pool_is_a_retryable_error() -> None:
    async with PythonPool(limits=PoolLimits(), environment={}) as pool:
        tools = ToolRegistry({"python": PythonTool(pool)})

    assert failure(await tools.run(python("result = 1"))) == (ErrorKind.UNKNOWN, "PY_CHILD_UNAVAILABLE", True)


async def test_a_full_pool_is_a_retryable_error() -> None:
    async with PythonPool(limits=PoolLimits(max_waiting=0), environment={}) as pool:
        tools = ToolRegistry({"python": PythonTool(pool)})

        assert failure(await tools.run(python("result = 1"))) == (ErrorKind.RATE_LIMIT, "PY_POOL_FULL", True)


async def test_cancelling_a_call_cancels(tools: ToolRegistry) -> None:
    running = asyncio.create_task(tools.run(python("import time\ntime.sleep(300)")))
    await asyncio.sleep(0)
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
