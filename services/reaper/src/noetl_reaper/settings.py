"""What the operator tells a reaper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from noetl_servicekit.env import Address, Env
from noetl_servicekit.shard_ownership import OwnershipSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Whom it asks, how often, and how much at once."""

    api_address: str
    projector_address: str
    planner_address: str
    token: str = field(repr=False)
    ops_listen: Address
    ownership: OwnershipSettings
    interval_seconds: float
    deadline_seconds: float
    concurrency: int
    payload_gc_seconds: float
    quiet_seconds: float

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Read everything, and refuse all that is wrong together."""
        env = Env(values)
        settings = cls(
            api_address=env.text("NOETL_API_ADDRESS"),
            projector_address=env.text("NOETL_PROJECTOR_ADDRESS"),
            planner_address=env.text("NOETL_PLANNER_ADDRESS"),
            token=env.secret("NOETL_TOKEN"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            ownership=OwnershipSettings.read(env),
            interval_seconds=env.number("NOETL_REAPER_INTERVAL_SECONDS", default=5.0, minimum=0.1),
            deadline_seconds=env.number("NOETL_REAPER_DEADLINE_SECONDS", default=0.5, minimum=0.05),
            concurrency=env.integer("NOETL_REAPER_CONCURRENCY", default=16, minimum=1, maximum=1000),
            payload_gc_seconds=env.number("NOETL_REAPER_PAYLOAD_GC_SECONDS", default=0.0, minimum=0.0),
            quiet_seconds=env.number("NOETL_REAPER_QUIET_SECONDS", default=300.0, minimum=1.0),
        )
        env.check()
        return settings
