"""Tools of other packages: the worked example, and packages that are broken in every way."""

import asyncio
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from importlib.metadata import EntryPoint
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_core.playbook.expressions import TemplateFailed
from noetl_testkit.memory.payloads import InMemoryPayloadStore
from noetl_testkit.memory.tool_credentials import InMemoryToolCredentials
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import Tool, ToolCall
from noetl_worker.tools.plugin import ENTRY_POINT_GROUP, ToolEnvironment
from noetl_worker.tools.plugins import installed_plugins, load_plugins, settings_of
from structlog.testing import capture_logs

EXAMPLE = Path(__file__).parents[4] / "examples" / "plugins" / "noetl-tool-hello"


class WellBehaved:
    """A tool that is entered, left, and tells what it was given."""

    def __init__(self, environment: ToolEnvironment) -> None:
        self.environment = environment
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    async def run(self, call: ToolCall) -> Outcome:
        return Outcome(data={"open": self.is_open, "settings": dict(self.environment.settings)})


class Slow:
    def __init__(self, environment: ToolEnvironment) -> None:
        self.was_cancelled = False

    async def run(self, call: ToolCall) -> Outcome:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.was_cancelled = True
            raise
        raise AssertionError


class Raising:
    def __init__(self, environment: ToolEnvironment) -> None:
        pass

    async def run(self, call: ToolCall) -> Outcome:
        if call.config.get("template"):
            call.render(call.config["template"])
        raise LookupError("with a secret in it")


class Careless:
    def __init__(self, environment: ToolEnvironment) -> None:
        pass

    async def run(self, call: ToolCall) -> dict[str, int]:
        return {"not": 1}


def broken_factory(environment: ToolEnvironment) -> Tool:
    raise RuntimeError("no licence")


def gives_nothing(environment: ToolEnvironment) -> None:
    return None


def point(kind: str, thing: str) -> EntryPoint:
    return EntryPoint(name=kind, value=f"{__name__}:{thing}", group=ENTRY_POINT_GROUP)


@pytest.fixture(autouse=True)
def _importable() -> Iterator[None]:
    """Entry points are loaded by name, and tests are not imported as packages."""
    sys.modules.setdefault(__name__, sys.modules[WellBehaved.__module__])
    yield


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def loaded(stack: AsyncExitStack, *points: EntryPoint, taken: tuple[str, ...] = ("noop",)) -> dict[str, Tool]:
    variables = {"NOETL_TOOL_GOOD_COLOUR": "red", "NOETL_TOOL_OTHER_COLOUR": "blue", "NOETL_TOKEN": "secret"}

    def environment(kind: str) -> ToolEnvironment:
        return ToolEnvironment(
            settings=settings_of(kind, variables),
            payloads=InMemoryPayloadStore(),
            tables=ArrowTables(),
            credentials=InMemoryToolCredentials(),
        )

    return await load_plugins(points, taken=taken, environment=environment, stack=stack, default_timeout_seconds=30.0)


def call(kind: str, *, timeout_seconds: float | None = None, **config: str) -> ToolCall:
    return ToolCall(
        tenant_id="default",
        organization_id="default",
        execution_id=1,
        step="s",
        kind=kind,
        config=config,
        names={"who": "Ada"},
        timeout_seconds=timeout_seconds,
    )


def failure(outcome: Outcome) -> tuple[ErrorKind, str, bool]:
    assert outcome.error is not None, outcome.data
    return outcome.error.kind, outcome.error.code, outcome.error.retryable


async def test_a_tool_is_made_entered_and_left() -> None:
    async with AsyncExitStack() as stack:
        with capture_logs() as logs:
            tools = await loaded(stack, point("good", "WellBehaved"))
        inside = await tools["good"].run(call("good"))
    after = await tools["good"].run(call("good"))

    assert inside.data == {"open": True, "settings": {"colour": "red"}}
    assert isinstance(after.data, dict)
    assert after.data["open"] is False
    assert logs == [
        {
            "event": "worker.tool_plugin_loaded",
            "kind": "good",
            "package": f"{__name__}:WellBehaved",
            "log_level": "info",
        }
    ]


@pytest.mark.parametrize(
    ("thing", "reason"),
    [
        ("broken_factory", "RuntimeError: no licence"),
        ("gives_nothing", "has no `run`"),
        ("not_there", "AttributeError"),
    ],
)
async def test_a_broken_one_is_named_and_stops_nobody_else(stack: AsyncExitStack, thing: str, reason: str) -> None:
    with capture_logs() as logs:
        tools = await loaded(stack, point("bad", thing), point("good", "WellBehaved"))

    assert [log["event"] for log in logs] == ["worker.tool_plugin_failed", "worker.tool_plugin_loaded"]
    assert logs[0]["kind"] == "bad"
    assert reason in logs[0]["reason"]
    outcome = await tools["bad"].run(call("bad"))
    assert failure(outcome) == (ErrorKind.UNKNOWN, "TOOL_UNAVAILABLE", False)
    assert outcome.error is not None
    assert thing in outcome.error.message
    assert (await tools["good"].run(call("good"))).status == "ok"


async def test_a_package_that_cannot_be_imported_is_named_too(stack: AsyncExitStack) -> None:
    missing = EntryPoint(name="gone", value="no_such_package.tool:make", group=ENTRY_POINT_GROUP)

    tools = await loaded(stack, missing)

    outcome = await tools["gone"].run(call("gone"))
    assert outcome.error is not None
    assert "no_such_package" in outcome.error.message


async def test_no_plugin_takes_the_place_of_another_tool(stack: AsyncExitStack) -> None:
    with capture_logs() as logs:
        tools = await loaded(stack, point("noop", "WellBehaved"), point("a", "WellBehaved"), point("a", "Slow"))

    assert list(tools) == ["a"]
    assert [log["event"] for log in logs].count("worker.tool_plugin_failed") == 2


async def test_what_a_plugin_raises_is_an_outcome_without_its_words(stack: AsyncExitStack) -> None:
    tools = await loaded(stack, point("raising", "Raising"), point("careless", "Careless"))

    with capture_logs() as logs:
        raised = await tools["raising"].run(call("raising"))
    careless = await tools["careless"].run(call("careless"))

    assert failure(raised) == failure(careless) == (ErrorKind.UNKNOWN, "PLUGIN_FAILED", False)
    assert "secret" not in str(raised.error)
    assert [log["event"] for log in logs] == ["worker.tool_plugin_crashed"]


async def test_a_template_that_fails_stays_a_template_that_fails(stack: AsyncExitStack) -> None:
    tools = await loaded(stack, point("raising", "Raising"))

    with pytest.raises(TemplateFailed):
        await tools["raising"].run(call("raising", template="{{ 1 + who }}"))


async def test_a_slow_one_is_stopped(stack: AsyncExitStack) -> None:
    tools = await loaded(stack, point("slow", "Slow"))

    assert failure(await tools["slow"].run(call("slow", timeout_seconds=0.05))) == (ErrorKind.TIMEOUT, "TIMEOUT", True)


def test_settings_are_those_of_the_kind() -> None:
    variables = {"NOETL_TOOL_MY_KIND_X": "1", "NOETL_TOOL_MY_OTHER": "2", "NOETL_TOKEN": "3"}

    assert settings_of("my-kind", variables) == {"x": "1"}


def test_what_is_installed_can_be_asked_for() -> None:
    assert isinstance(installed_plugins(), tuple)


# --- the worked example -------------------------------------------------------------------------------------


@pytest.fixture
def example_point(monkeypatch: pytest.MonkeyPatch) -> EntryPoint:
    """The entry point that installing the example would make."""
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text("utf-8"))["project"]
    ((kind, value),) = project["entry-points"][ENTRY_POINT_GROUP].items()
    return EntryPoint(name=kind, value=value, group=ENTRY_POINT_GROUP)


async def test_the_worked_example_works(stack: AsyncExitStack, example_point: EntryPoint) -> None:
    tools = await loaded(stack, example_point)

    outcome = await tools["hello"].run(call("hello", name="{{ who }}"))

    assert outcome.data == {"greeting": "Hello, Ada!"}
    assert failure(await tools["hello"].run(call("hello"))) == (ErrorKind.SCHEMA, "HELLO_NOBODY", False)
