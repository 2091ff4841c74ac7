"""What the operator tells an outbox publisher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noetl_servicekit.env import Address, Env
from noetl_servicekit.tokens import parse_tokens

LEASE_IN_BATCHES = 4
"""A lease outlives this many batches that take as long as they may, so that no batch outlives its lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where outbox and bus are, and how much is published at once, for how long."""

    postgres_dsn: str = field(repr=False)
    nats_url: str = field(repr=False)
    nats_token: str = field(repr=False)
    stream_replicas: int
    tokens_file: Path
    grpc_listen: Address
    ops_listen: Address
    shard_count: int
    batch_rows: int
    publish_seconds: float
    lease_seconds: float
    poll_seconds: float

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Read everything, and refuse all that is wrong together."""
        env = Env(values)
        settings = cls(
            postgres_dsn=env.secret("NOETL_POSTGRES_DSN"),
            nats_url=env.url("NOETL_NATS_URL", schemes=("nats", "tls")),
            nats_token=env.secret("NOETL_NATS_TOKEN", default=""),
            stream_replicas=env.integer("NOETL_NATS_STREAM_REPLICAS", default=1, minimum=1, maximum=5),
            tokens_file=env.file("NOETL_TOKENS_FILE", check=parse_tokens),
            grpc_listen=env.address("NOETL_GRPC_LISTEN", default="127.0.0.1:0"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            shard_count=env.integer("NOETL_SHARD_COUNT", default=64, minimum=1, maximum=4096),
            batch_rows=env.integer("NOETL_OUTBOX_BATCH_ROWS", default=500, minimum=1, maximum=5_000),
            publish_seconds=env.number("NOETL_OUTBOX_PUBLISH_SECONDS", default=2.0, minimum=0.1),
            lease_seconds=env.number("NOETL_OUTBOX_LEASE_SECONDS", default=10.0, minimum=1.0, maximum=300.0),
            poll_seconds=env.number("NOETL_OUTBOX_POLL_SECONDS", default=1.0, minimum=0.01, maximum=60.0),
        )
        env.require(
            settings.publish_seconds * LEASE_IN_BATCHES <= settings.lease_seconds,
            f"NOETL_OUTBOX_LEASE_SECONDS must be at least {LEASE_IN_BATCHES} times NOETL_OUTBOX_PUBLISH_SECONDS",
        )
        env.check()
        return settings
