"""Which shard an execution belongs to, and how many shards one of several owners should hold."""

from zlib import crc32

from noetl_core.errors import InvalidInput
from noetl_core.ids import ExecutionId

MAX_SHARD_COUNT = 4096
"""Every shard costs a lease row and a consumer; more than this is a mistake, not an installation."""


def shard_of(execution_id: ExecutionId, shard_count: int) -> int:
    """The shard of an execution for its whole life: crc32 of the id's digits, modulo the number of shards."""
    _check_shard_count(shard_count)
    return crc32(b"%d" % execution_id) % shard_count


def fair_share(*, shard_count: int, owners: int) -> int:
    """The most shards that one of several owners may hold, so that together they can hold every one."""
    _check_shard_count(shard_count)
    if owners < 1:
        raise InvalidInput(f"shards are shared among at least one owner, not {owners}")
    return -(-shard_count // owners)


def _check_shard_count(shard_count: int) -> None:
    if not 1 <= shard_count <= MAX_SHARD_COUNT:
        raise InvalidInput(f"the number of shards is from 1 to {MAX_SHARD_COUNT}, not {shard_count}")
