"""Facts that a fan-out tells of its items, besides those of the frames in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl_core.catalog import event_type
from noetl_core.values import dataclass


@event_type("loop.fanout.started")
@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutStarted:
    """Every item of a collection is to run by itself."""

    loop_id: str
    step: str
    activation: int
    total_shards: int


@event_type("loop.shard.enqueued")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnqueued:
    """An item is given to a worker, for the first time or once more."""

    loop_id: str
    step: str
    shard_id: str
    iter_index: int
    iter_key: str
    shard_attempt: int


@event_type("loop.shard.done")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardDone:
    """An item ended well."""

    loop_id: str
    step: str
    shard_id: str
    iter_index: int
    command_id: str = ""
    """The attempt at the frame that ran it: `<frame>/<attempt>`, as its worker knows it."""


@event_type("loop.shard.failed")
@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFailed:
    """An item has failed, and is not tried again."""

    loop_id: str
    step: str
    shard_id: str
    iter_index: int
    error: Mapping[str, Any]
    command_id: str = ""
    """The attempt at the frame that ran it: `<frame>/<attempt>`, as its worker knows it."""


@event_type("loop.fanin.completed", after_end=True)
@dataclass(frozen=True, slots=True, kw_only=True)
class FaninCompleted:
    """Every item of a fan-out has an outcome, or none will follow."""

    loop_id: str
    epoch_id: str
    step: str
    status: str
    done: int
    failed: int
    total: int


ShardEvent = FanoutStarted | ShardEnqueued | ShardDone | ShardFailed | FaninCompleted
