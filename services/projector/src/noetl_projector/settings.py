"""What the operator tells a projector."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noetl_servicekit.env import Address, Env
from noetl_servicekit.shard_ownership import OwnershipSettings
from noetl_servicekit.tokens import parse_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where its neighbours are, what it serves, and how much it takes at once."""

    postgres_dsn: str = field(repr=False)
    postgres_pool_max: int
    query_pool_max: int
    api_address: str
    nats_url: str = field(repr=False)
    nats_token: str = field(repr=False)
    token: str = field(repr=False)
    tokens_file: Path
    grpc_listen: Address
    ops_listen: Address
    advertised_address: str
    ownership: OwnershipSettings
    batch_size: int
    cached_executions: int
    head_poll_seconds: float
    away_poll_seconds: float
    checkpoint_seconds: float
    snapshot_interval: int

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Read everything, and refuse all that is wrong together."""
        env = Env(values)
        settings = cls(
            postgres_dsn=env.secret("NOETL_POSTGRES_DSN"),
            postgres_pool_max=env.integer("NOETL_POSTGRES_POOL_MAX_SIZE", default=5, minimum=2, maximum=100),
            query_pool_max=env.integer("NOETL_PROJECTOR_QUERY_POOL_MAX_SIZE", default=3, minimum=1, maximum=100),
            api_address=env.text("NOETL_API_ADDRESS"),
            nats_url=env.url("NOETL_NATS_URL", schemes=("nats", "tls")),
            nats_token=env.secret("NOETL_NATS_TOKEN", default=""),
            token=env.secret("NOETL_TOKEN"),
            tokens_file=env.file("NOETL_TOKENS_FILE", check=parse_tokens),
            grpc_listen=env.address("NOETL_GRPC_LISTEN", default="127.0.0.1:0"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            advertised_address=env.text("NOETL_ADVERTISED_ADDRESS", default=""),
            ownership=OwnershipSettings.read(env),
            batch_size=env.integer("NOETL_PROJECTION_BATCH_SIZE", default=500, minimum=1, maximum=5_000),
            cached_executions=env.integer("NOETL_PROJECTOR_CACHED_EXECUTIONS", default=5_000, minimum=1),
            head_poll_seconds=env.number("NOETL_HEAD_POLL_SECONDS", default=3.0, minimum=0.1),
            away_poll_seconds=env.number("NOETL_HEAD_POLL_AWAY_SECONDS", default=0.25, minimum=0.05),
            checkpoint_seconds=env.number("NOETL_PROJECTION_CHECKPOINT_SECONDS", default=1.0, minimum=1.0),
            snapshot_interval=env.integer("NOETL_SNAPSHOT_INTERVAL_EVENTS", default=10_000, minimum=1_000),
        )
        env.check()
        return settings
