"""Executions that could not be projected: tried again a few times, then set aside so that their shard goes on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from noetl_servicekit.logging import get_logger

logger = get_logger()

FAILURES_BEFORE_QUARANTINE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What is wrong with an execution; no failures means that it only waits for something that is away."""

    shard: int
    target: int
    failures: int = 0
    reason: str = ""

    @property
    def is_quarantined(self) -> bool:
        """Whether it was set aside."""
        return self.failures >= FAILURES_BEFORE_QUARANTINE


class SetsAside(Protocol):
    """Whoever knows what was set aside."""

    def is_quarantined(self, execution_id: int) -> bool:
        """Whether its events are passed over."""
        ...


class Troubles:
    """Everything here is forgotten with the process or the shard, so that a later release or owner tries again."""

    def __init__(self) -> None:
        self._troubles: dict[int, Trouble] = {}

    def __contains__(self, execution_id: int) -> bool:
        return execution_id in self._troubles

    def is_quarantined(self, execution_id: int) -> bool:
        """Whether its events are passed over."""
        trouble = self._troubles.get(execution_id)
        return trouble is not None and trouble.is_quarantined

    def wait(self, execution_id: int, *, shard: int, target: int) -> None:
        """Something that it needs is away; it is no fault of the execution."""
        before = self._troubles.get(execution_id)
        self._troubles[execution_id] = Trouble(
            shard=shard,
            target=max(target, before.target if before else 0),
            failures=before.failures if before else 0,
            reason=before.reason if before else "",
        )

    def fail(self, execution_id: int, *, shard: int, target: int, version: int, reason: str) -> None:
        """It could not be folded or stored at a version."""
        before = self._troubles.get(execution_id)
        failures = 1 + (before.failures if before else 0)
        target = max(target, before.target if before else 0)
        trouble = Trouble(shard=shard, target=target, failures=failures, reason=reason)
        self._troubles[execution_id] = trouble
        facts = {"execution_id": str(execution_id), "shard": shard, "version": version, "reason": reason}
        if trouble.is_quarantined:
            logger.error("projection.quarantined", **facts)
        else:
            logger.warning("projection.failed", failures=failures, **facts)

    def settle(self, execution_id: int, *, version: int) -> None:
        """It has come as far as it was meant to."""
        trouble = self._troubles.get(execution_id)
        if trouble is not None and version >= trouble.target:
            del self._troubles[execution_id]

    def to_retry(self) -> Mapping[int, Trouble]:
        """Those that are worth another try."""
        return {key: trouble for key, trouble in self._troubles.items() if not trouble.is_quarantined}

    def quarantined(self) -> Mapping[int, Trouble]:
        """Those that were set aside."""
        return {key: trouble for key, trouble in self._troubles.items() if trouble.is_quarantined}

    def forget_shards(self, shards: Collection[int]) -> None:
        """They are somebody else's."""
        self._troubles = {key: trouble for key, trouble in self._troubles.items() if trouble.shard not in shards}
