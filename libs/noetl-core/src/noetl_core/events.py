"""The closed set of typed events; importing it makes every declared type known to the catalog."""

from noetl_core.catalog import is_allowed_after_end, is_reserved, is_terminal, known_types, to_draft, typed
from noetl_core.checkpoints.events import CheckpointCommitted
from noetl_core.children.events import ChildEvent
from noetl_core.collection.events import CollectionEvent
from noetl_core.commands.events import CommandEvent
from noetl_core.deadlines.events import DeadlineEvent
from noetl_core.executions.events import ExecutionEvent
from noetl_core.loops.events import LoopEvent
from noetl_core.stages.events import StageEvent
from noetl_core.stages.shard_events import ShardEvent
from noetl_core.steering.events import SteeringEvent
from noetl_core.streams.events import ChunkRouted

Event = (
    ExecutionEvent
    | CommandEvent
    | LoopEvent
    | StageEvent
    | ShardEvent
    | ChildEvent
    | DeadlineEvent
    | SteeringEvent
    | ChunkRouted
    | CollectionEvent
    | CheckpointCommitted
)

__all__ = [
    "Event",
    "is_allowed_after_end",
    "is_reserved",
    "is_terminal",
    "known_types",
    "to_draft",
    "typed",
]
