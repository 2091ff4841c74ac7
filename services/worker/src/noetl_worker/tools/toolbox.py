"""All tools of a worker with what they share, opened together and closed together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path

from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import Tables
from noetl_core.ports.upkeep import Keep, leave_untidy
from noetl_servicekit.env import Env
from noetl_servicekit.stored_values import StoredValues

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.tool_call import Tool
from noetl_worker.tools.artifact import ArtifactTool, EarlierResults, ResultReferences
from noetl_worker.tools.duckdb import DuckdbTool
from noetl_worker.tools.duckdb_sessions import DuckdbLimits, DuckdbSessions
from noetl_worker.tools.http import HttpTool
from noetl_worker.tools.http_clients import HttpClients, HttpLimits
from noetl_worker.tools.nats import NatsTool
from noetl_worker.tools.nats_connections import NatsConnections, NatsLimits
from noetl_worker.tools.noop import NoopTool
from noetl_worker.tools.plugin import ToolEnvironment
from noetl_worker.tools.plugins import UnavailableTool, installed_plugins, load_plugins, settings_of
from noetl_worker.tools.postgres import PostgresTool
from noetl_worker.tools.postgres_pools import PostgresLimits, PostgresPools
from noetl_worker.tools.python import PythonTool
from noetl_worker.tools.python_pool import PoolLimits, PythonPool
from noetl_worker.tools.python_process import ProcessLimits
from noetl_worker.tools.registry import ToolRegistry
from noetl_worker.tools.script import ScriptTool
from noetl_worker.tools.script_source import ScriptLimits, ScriptSources
from noetl_worker.tools.shared_resources import SharingLimits
from noetl_worker.tools.shell import MAX_OUTPUT_BYTES, ShellTool
from noetl_worker.tools.transfer import TransferTool
from noetl_worker.tools.transfer_sources import TransferAccess

SHELL_OFF = "the operator of this worker has switched the shell off (NOETL_TOOL_SHELL_ENABLED)"
SCRIPTS_OFF = "the operator of this worker has switched scripts off (NOETL_TOOL_SCRIPT_ENABLED)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolboxSettings:
    """What the operator allows the tools of a worker."""

    slots: int = 8
    python_spares: int = 2
    shell_enabled: bool = True
    plugins_enabled: bool = True
    http_timeout_seconds: float = 30.0
    sql_timeout_seconds: float = 600.0
    scripts: ScriptLimits = field(default_factory=ScriptLimits)
    python: ProcessLimits = field(default_factory=ProcessLimits)
    http: HttpLimits = field(default_factory=HttpLimits)
    postgres: PostgresLimits = field(default_factory=PostgresLimits)
    duckdb: DuckdbLimits = field(default_factory=DuckdbLimits)
    nats: NatsLimits = field(default_factory=NatsLimits)

    @classmethod
    def read(cls, env: Env, *, slots: int, python_spares: int) -> ToolboxSettings:
        """From the variables of the worker, whose settings know the number of slots; `env.check()` is the caller's."""
        sharing = SharingLimits(
            max_open=env.integer("NOETL_TOOL_MAX_POOLS", default=32, minimum=1),
            idle_seconds=env.number("NOETL_TOOL_IDLE_SECONDS", default=60.0, minimum=0.1),
        )
        max_result_bytes = env.integer("NOETL_TOOL_MAX_RESULT_BYTES", default=512 * 1024 * 1024, minimum=1024)
        max_response_bytes = env.integer("NOETL_TOOL_MAX_RESPONSE_BYTES", default=64 * 1024 * 1024, minimum=1024)
        root = env.optional_path("NOETL_SCRIPT_ROOT")
        return cls(
            slots=slots,
            python_spares=python_spares,
            shell_enabled=env.boolean("NOETL_TOOL_SHELL_ENABLED", default=True),
            plugins_enabled=env.boolean("NOETL_TOOL_PLUGINS_ENABLED", default=True),
            http_timeout_seconds=env.number("NOETL_TOOL_HTTP_TIMEOUT_SECONDS", default=30.0, minimum=0.1),
            sql_timeout_seconds=env.number("NOETL_TOOL_SQL_TIMEOUT_SECONDS", default=600.0, minimum=0.1),
            scripts=ScriptLimits(root=root, enabled=env.boolean("NOETL_TOOL_SCRIPT_ENABLED", default=True)),
            python=ProcessLimits(max_result_bytes=max_result_bytes),
            http=HttpLimits(max_response_bytes=max_response_bytes),
            postgres=PostgresLimits(
                max_connections_per_pool=env.integer("NOETL_TOOL_POSTGRES_POOL_SIZE", default=8, minimum=1),
                max_result_bytes=max_result_bytes,
                sharing=sharing,
            ),
            duckdb=DuckdbLimits(
                max_sessions=env.integer("NOETL_TOOL_DUCKDB_SESSIONS", default=4, minimum=1),
                memory_limit=env.text("NOETL_TOOL_DUCKDB_MEMORY", default=""),
                threads=env.integer("NOETL_TOOL_DUCKDB_THREADS", default=0, minimum=0),
                root=env.optional_path("NOETL_TOOL_DUCKDB_ROOT"),
                max_result_bytes=max_result_bytes,
            ),
            nats=NatsLimits(max_value_bytes=max_response_bytes, sharing=sharing),
        )


@asynccontextmanager
async def build_toolbox(
    settings: ToolboxSettings,
    *,
    payloads: PayloadStore,
    tables: Tables,
    credentials: Credentials,
    variables: Mapping[str, str],
    scratch: Path | None = None,
    references: ResultReferences | None = None,
    more_tools: Mapping[str, Tool] | None = None,
    plugins: Iterable[EntryPoint] | None = None,
    keep: Keep = leave_untidy,
) -> AsyncIterator[ToolRegistry]:
    """The registry of all tools; leaving ends every call, connection and process of theirs.

    What they need no longer than that they have within `scratch`, if that is given.
    """
    async with AsyncExitStack() as stack:
        clients = await stack.enter_async_context(HttpClients(settings.http))
        pools = await stack.enter_async_context(PostgresPools(settings.postgres))
        sessions = await stack.enter_async_context(
            DuckdbSessions(settings.duckdb, environment=variables, scratch=scratch)
        )
        buses = await stack.enter_async_context(NatsConnections(settings.nats))
        keep(pools.upkeep)
        keep(buses.upkeep)
        limits = PoolLimits(size=settings.slots, spares=settings.python_spares, process=settings.python)
        children = await stack.enter_async_context(PythonPool(limits=limits, environment=variables))
        scripts = ScriptSources(limits=settings.scripts, clients=clients, credentials=credentials)
        sql_seconds = settings.sql_timeout_seconds
        python, shell = PythonTool(children, scripts), await _shell(settings, variables, stack)
        can_script = settings.scripts.enabled
        access = TransferAccess(clients=clients, pools=pools, sessions=sessions, credentials=credentials)
        tools: dict[str, Tool] = {
            "artifact": ArtifactTool(StoredValues(payloads, tables), references=references or EarlierResults()),
            "duckdb": DuckdbTool(
                sessions, credentials=credentials, scripts=scripts, default_timeout_seconds=sql_seconds
            ),
            "http": HttpTool(clients, credentials, default_timeout_seconds=settings.http_timeout_seconds),
            "nats": NatsTool(buses, credentials),
            "noop": NoopTool(),
            "postgres": PostgresTool(
                pools, credentials=credentials, scripts=scripts, default_timeout_seconds=sql_seconds
            ),
            "python": python,
            "script": ScriptTool(python, shell, scripts) if can_script else UnavailableTool(SCRIPTS_OFF),
            "shell": shell,
            "transfer": TransferTool(access, default_timeout_seconds=sql_seconds),
            **(more_tools or {}),
        }
        if settings.plugins_enabled:
            tools |= await load_plugins(
                installed_plugins() if plugins is None else plugins,
                # A plug-in may run scripts elsewhere, as Jobs of Kubernetes; not if the operator wants none.
                taken=tuple(kind for kind in tools if kind != "script" or not can_script),
                environment=lambda kind: ToolEnvironment(
                    settings=settings_of(kind, variables), payloads=payloads, tables=tables, credentials=credentials
                ),
                stack=stack,
            )
        yield ToolRegistry(tools)


async def _shell(
    settings: ToolboxSettings, variables: Mapping[str, str], stack: AsyncExitStack
) -> ShellTool | UnavailableTool:
    if not settings.shell_enabled:
        return UnavailableTool(SHELL_OFF)
    # Children of its own: what commands print may be more than what code prints.
    output = ProcessLimits(max_output_bytes=MAX_OUTPUT_BYTES, output_head_bytes=0)
    limits = PoolLimits(size=settings.slots, spares=0, process=output)
    return ShellTool(await stack.enter_async_context(PythonPool(limits=limits, environment=variables)))
