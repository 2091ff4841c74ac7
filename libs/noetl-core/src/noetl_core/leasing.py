"""Who gets which shard: renewing, giving back and claiming, decided purely over the lease rows of a role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noetl_core.sharding import fair_share


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """A shard's lease as it stands; `instance` is empty if nobody holds it."""

    shard: int
    epoch: int
    instance: str
    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What a replica holds from now on, with epochs, and what it gives back."""

    held: tuple[tuple[int, int], ...]
    given_back: tuple[int, ...]


def share_out(rows: Sequence[LeaseRow], *, instance: str, reborn: bool, live_instances: int) -> Shares:
    """Keep what is one's own up to the fair share, and fill it up with what is free.

    Epochs grow with every change of owner, and a new process under an old name (`reborn`) is another owner. A lease
    of one's own that has expired is still one's own: nobody else had it meanwhile.
    """
    share = fair_share(shard_count=len(rows), owners=max(live_instances, 1))
    own = [row for row in rows if row.instance == instance]
    kept, surplus = own[:share], own[share:]
    free = [row for row in rows if row.instance != instance and (not row.instance or row.expired)]
    claimed = free[: share - len(kept)]
    held = [(row.shard, row.epoch + 1 if reborn else row.epoch) for row in kept]
    held += [(row.shard, row.epoch + 1) for row in claimed]
    return Shares(held=tuple(sorted(held)), given_back=tuple(row.shard for row in surplus))
