"""Everything that api does for its callers, wired once and offered over gRPC and HTTP alike."""

from __future__ import annotations

from dataclasses import dataclass

from noetl_core.ports.leases import ShardLeases

from noetl_api.application.append_events import AppendEvents
from noetl_api.application.cancel_execution import CancelExecution
from noetl_api.application.check_columns import CheckColumns
from noetl_api.application.collect_payloads import CollectPayloads
from noetl_api.application.commands import IssuedCommands
from noetl_api.application.credentials import Credentials
from noetl_api.application.explain_execution import ExplainExecution
from noetl_api.application.finalize_execution import FinalizeExecution
from noetl_api.application.frames import StageFrames
from noetl_api.application.ingest_events import IngestEvents
from noetl_api.application.list_rows import ListLive, ListRows
from noetl_api.application.list_streams import ListStreams
from noetl_api.application.payloads import ReadPayloads
from noetl_api.application.playbooks import FindPlaybooks, RegisterPlaybook
from noetl_api.application.query_executions import QueryExecutions
from noetl_api.application.read_events import ReadEvents
from noetl_api.application.read_logs import ReadLogs
from noetl_api.application.redrive_execution import RedriveExecution
from noetl_api.application.replay_state import ReplayState
from noetl_api.application.rotate_credentials import RotateCredentials
from noetl_api.application.routing import Routing
from noetl_api.application.shards import Shards
from noetl_api.application.start_execution import StartExecution
from noetl_api.application.steer_execution import SteerExecution
from noetl_api.application.trace_result import TraceResult
from noetl_api.application.variables import ReadVariables
from noetl_api.application.watch_events import WatchEvents
from noetl_api.application.workers import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class UseCases:
    """One object each."""

    append_events: AppendEvents
    ingest_events: IngestEvents
    read_events: ReadEvents
    list_streams: ListStreams
    list_rows: ListRows
    list_live: ListLive
    check_columns: CheckColumns
    read_logs: ReadLogs
    read_payloads: ReadPayloads
    trace_result: TraceResult
    collect_payloads: CollectPayloads
    watch_events: WatchEvents
    register_playbook: RegisterPlaybook
    find_playbooks: FindPlaybooks
    start_execution: StartExecution
    cancel_execution: CancelExecution
    steer_execution: SteerExecution
    finalize_execution: FinalizeExecution
    redrive_execution: RedriveExecution
    query_executions: QueryExecutions
    replay_state: ReplayState
    explain_execution: ExplainExecution
    read_variables: ReadVariables
    issued_commands: IssuedCommands
    stage_frames: StageFrames
    credentials: Credentials
    rotate_credentials: RotateCredentials
    workers: Workers
    shards: Shards
    routing: Routing
    leases: ShardLeases
