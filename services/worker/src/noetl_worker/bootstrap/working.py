"""What it takes to run commands and frames, opened once a process: by the worker, and by slots on executors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc
from noetl_adapters.arrow.ipc import ArrowTables
from noetl_adapters.payload.open_shm import SharedMemorySettings
from noetl_adapters.payload.open_store import open_tiered_store
from noetl_adapters.secrets.rs256 import sign_rs256
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import (
    IDEMPOTENT_METHODS,
    CatalogClient,
    CommandClient,
    EventLogClient,
    ExecutionClient,
    ResolvedCredentials,
)
from noetl_core.ports.commands import Worker
from noetl_core.ports.frames import Frames
from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import Tables
from noetl_core.ports.upkeep import Keep
from noetl_servicekit.chunk_rows import LoadRows
from noetl_servicekit.loop_results import LoopResults
from noetl_servicekit.pinned_playbooks import PinnedPlaybooks
from noetl_servicekit.scratch import scratch_directory
from noetl_servicekit.shared_memory import warn_of_shared_memory
from noetl_servicekit.tracing import current_traceparent

from noetl_worker.application.child_calls import ChildCalls
from noetl_worker.application.chunk_stream import TellChunks
from noetl_worker.application.claim_rows import ClaimRows
from noetl_worker.application.frame_credentials import FetchedOncePerFrame
from noetl_worker.application.frame_limits import FramesAtWork
from noetl_worker.application.keychain import Keychain
from noetl_worker.application.persist_before_emit import PersistBeforeEmit
from noetl_worker.application.pipeline import Pipeline
from noetl_worker.application.rate_limits import RateLimits
from noetl_worker.application.run_command import RunCommand
from noetl_worker.application.step_names import StepNames
from noetl_worker.application.tool_call import Tool
from noetl_worker.application.waiting_retries import WaitingRetries
from noetl_worker.settings import WorkSettings
from noetl_worker.telemetry import WorkerMetrics
from noetl_worker.tools.keychain import open_keychain
from noetl_worker.tools.registry import ToolRegistry
from noetl_worker.tools.shared_buckets import SharedBuckets
from noetl_worker.tools.toolbox import ToolboxSettings, build_toolbox

Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where payloads are, and how rows are read."""

    payloads: PayloadStore
    tables: Tables
    rows: LoadRows


MoreTools = Callable[[Data], Mapping[str, Tool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Working:
    """Tools, connections and caches; what is made of them for one worker is small."""

    data: Data
    channel: grpc.aio.Channel
    tools: ToolRegistry
    keychain: Keychain
    children: ChildCalls
    limits: RateLimits
    retries: WaitingRetries
    playbooks: PinnedPlaybooks
    loops: LoopResults
    at_work: FramesAtWork = field(default_factory=FramesAtWork)

    def runs(self, worker: Worker, *, frames: Frames, streams: TellChunks | None = None) -> RunCommand:
        """Runs what this worker has claimed. Rows of frames have no events of their own, and so no chunks."""
        persist = PersistBeforeEmit(self.data.payloads, self.data.tables)
        return RunCommand(
            playbooks=self.playbooks,
            names=StepNames(self.data.rows, self.loops),
            pipeline=self._pipeline(streams),
            persist=persist,
            payloads=self.data.payloads,
            rows=self.data.rows,
            loops=self.loops,
            frame_pipeline=self._pipeline(None),
            at_work=self.at_work,
            claim_rows=ClaimRows(self.tools, persist=persist, tell=frames, worker=worker, keychain=self.keychain),
        )

    def _pipeline(self, streams: TellChunks | None) -> Pipeline:
        return Pipeline(
            self.tools,
            keychain=self.keychain,
            children=self.children,
            limits=self.limits,
            retries=self.retries,
            streams=streams,
        )


def connect(address: str, token: Token) -> grpc.aio.Channel:
    """A channel as all of them are."""
    return open_channel(address, token=token, traceparent=current_traceparent, retryable_methods=IDEMPOTENT_METHODS)


def planners(settings: WorkSettings, token: Token) -> CommandClient:
    """Whoever owns the shard of an execution."""
    return CommandClient(
        default_address=settings.planner_address,
        shard_count=settings.shard_count,
        connect=lambda address: connect(address, token),
    )


@asynccontextmanager
async def open_working(
    settings: WorkSettings,
    tool_settings: ToolboxSettings,
    *,
    variables: Mapping[str, str],
    token: Token,
    metrics: WorkerMetrics,
    keep: Keep,
    more_tools: MoreTools = lambda data: {},
    rates: Path | None = None,
) -> AsyncIterator[Working]:
    """Everything is closed together, in the reverse order. `rates` is where processes share token buckets.

    What `keep` is told has to be done from the end of this on, and not any more when it is closed.
    """
    async with AsyncExitStack() as stack:
        payloads = await stack.enter_async_context(
            open_tiered_store(
                settings.payload_url,
                variables,
                memory_bytes=settings.payload_memory_bytes,
                shared_memory=SharedMemorySettings(**asdict(settings.shared_memory)),
                cache_directory=settings.payload_cache_dir,
                cache_bytes=settings.payload_cache_bytes,
                reports=metrics.payloads,
                warn=warn_of_shared_memory,
                keep=keep,
            )
        )
        channel = await stack.enter_async_context(connect(settings.api_address, token))
        tables = ArrowTables(compression=settings.table_compression)
        data = Data(payloads=payloads, tables=tables, rows=LoadRows(payloads, tables))
        scratch = await stack.enter_async_context(scratch_directory("noetl-tools-"))
        credentials = FetchedOncePerFrame(ResolvedCredentials(channel))
        tools = await stack.enter_async_context(
            build_toolbox(
                tool_settings,
                payloads=payloads,
                tables=tables,
                credentials=credentials,
                variables=variables,
                scratch=scratch,
                more_tools=more_tools(data),
                keep=keep,
            )
        )
        keychain = await stack.enter_async_context(
            open_keychain(
                credentials=credentials,
                variables=variables,
                sign=sign_rs256,
                count=lambda kind, outcome: metrics.keychain.labels(kind, outcome).inc(),
                plugins=None if tool_settings.plugins_enabled else (),
            )
        )
        loops = LoopResults(EventLogClient(channel), data.rows.values)
        yield Working(
            data=data,
            channel=channel,
            tools=tools,
            keychain=keychain,
            children=ChildCalls(ExecutionClient(channel), data.rows.values, loops=loops),
            limits=RateLimits(buckets=SharedBuckets(rates) if rates else None),
            retries=WaitingRetries(),
            playbooks=PinnedPlaybooks(CatalogClient(channel)),
            loops=loops,
        )
