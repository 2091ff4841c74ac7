"""What the operator tells a planner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from noetl_servicekit.env import Address, Env
from noetl_servicekit.shard_ownership import OwnershipSettings
from noetl_servicekit.tokens import parse_tokens

MIN_SNAPSHOT_EVENTS: Final = 100
"""Fewer are read sooner than a snapshot is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where its neighbours are, what it serves, and how long claims and leases last."""

    api_address: str
    nats_url: str
    nats_token: str = field(repr=False)
    token: str = field(repr=False)
    tokens_file: Path
    payload_url: str
    grpc_listen: Address
    ops_listen: Address
    advertised_address: str
    ownership: OwnershipSettings
    command_lease_seconds: float
    command_max_attempts: int
    head_poll_seconds: float
    rehint_seconds: float
    routing_snapshot_events: int

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Read everything, and refuse all that is wrong together."""
        env = Env(values)
        settings = cls(
            api_address=env.text("NOETL_API_ADDRESS"),
            nats_url=env.url("NOETL_NATS_URL", schemes=("nats", "tls")),
            nats_token=env.secret("NOETL_NATS_TOKEN", default=""),
            token=env.secret("NOETL_TOKEN"),
            tokens_file=env.file("NOETL_TOKENS_FILE", check=parse_tokens),
            payload_url=env.url("NOETL_PAYLOAD_URL", schemes=("file", "s3", "gs", "az")),
            grpc_listen=env.address("NOETL_GRPC_LISTEN", default="127.0.0.1:0"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            advertised_address=env.text("NOETL_ADVERTISED_ADDRESS", default=""),
            ownership=OwnershipSettings.read(env),
            command_lease_seconds=env.number("NOETL_COMMAND_LEASE_SECONDS", default=45.0, minimum=1.0),
            command_max_attempts=env.integer("NOETL_COMMAND_MAX_ATTEMPTS", default=3, minimum=1, maximum=100),
            head_poll_seconds=env.number("NOETL_HEAD_POLL_SECONDS", default=3.0, minimum=0.1),
            rehint_seconds=env.number("NOETL_REHINT_SECONDS", default=5.0, minimum=0.5),
            routing_snapshot_events=env.integer("NOETL_ROUTING_SNAPSHOT_EVENTS", default=5_000, minimum=0),
        )
        env.require(
            settings.routing_snapshot_events == 0 or settings.routing_snapshot_events >= MIN_SNAPSHOT_EVENTS,
            f"NOETL_ROUTING_SNAPSHOT_EVENTS must be 0 or at least {MIN_SNAPSHOT_EVENTS}",
        )
        env.check()
        return settings
