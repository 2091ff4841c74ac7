"""What the operator tells api."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noetl_servicekit.env import Address, Env
from noetl_servicekit.shared_memory import SharedMemoryLimits
from noetl_servicekit.tokens import parse_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where its database and neighbours are, what it serves, and what playbooks may see."""

    postgres_dsn: str = field(repr=False)
    pool_min_size: int
    pool_max_size: int
    background_pool_max_size: int
    shard_count: int
    max_open_executions: int
    """0 for any number."""
    payload_url: str
    shared_memory: SharedMemoryLimits
    payload_gc_grace_seconds: float
    payload_gc_min_grace_seconds: float
    projector_address: str
    planner_address: str
    token: str = field(repr=False)
    tokens_file: Path
    grpc_listen: Address
    http_listen: Address
    ops_listen: Address
    playbook_env: Mapping[str, str] = field(repr=False)
    plugin_kinds: tuple[str, ...]
    credential_keys: str = field(repr=False)
    credential_keys_file: Path | None
    credential_key_provider: str

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Read everything, and refuse all that is wrong together."""
        env = Env(values)
        settings = cls(
            postgres_dsn=env.url("NOETL_POSTGRES_DSN", schemes=("postgresql", "postgres")),
            pool_min_size=env.integer("NOETL_POSTGRES_POOL_MIN_SIZE", default=2, minimum=1),
            pool_max_size=env.integer("NOETL_POSTGRES_POOL_MAX_SIZE", default=32, minimum=2),
            background_pool_max_size=env.integer("NOETL_BG_POOL_MAX_SIZE", default=4, minimum=1),
            shard_count=env.integer("NOETL_SHARD_COUNT", default=64, minimum=1, maximum=4096),
            max_open_executions=env.integer("NOETL_MAX_OPEN_EXECUTIONS", default=10_000, minimum=0),
            payload_url=env.url("NOETL_PAYLOAD_URL", schemes=("file", "s3", "gs", "az")),
            shared_memory=SharedMemoryLimits.read(env),
            payload_gc_grace_seconds=env.number("NOETL_PAYLOAD_GC_GRACE_SECONDS", default=86_400.0, minimum=0.0),
            payload_gc_min_grace_seconds=env.number("NOETL_PAYLOAD_GC_MIN_GRACE_SECONDS", default=3_600.0, minimum=0.0),
            projector_address=str(env.address("NOETL_PROJECTOR_ADDRESS")),
            planner_address=env.text("NOETL_PLANNER_ADDRESS", default=""),
            token=env.secret("NOETL_TOKEN"),
            tokens_file=env.file("NOETL_TOKENS_FILE", check=parse_tokens),
            grpc_listen=env.address("NOETL_GRPC_LISTEN", default="127.0.0.1:0"),
            http_listen=env.address("NOETL_HTTP_LISTEN", default="127.0.0.1:0"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            playbook_env=_visible(values, env.text("NOETL_PLAYBOOK_ENV", default="")),
            plugin_kinds=_names(env.text("NOETL_PLUGIN_TOOL_KINDS", default="")),
            credential_keys=env.text("NOETL_CREDENTIAL_KEYS", default=""),
            credential_keys_file=env.optional_path("NOETL_CREDENTIAL_KEYS_FILE"),
            credential_key_provider=env.text("NOETL_CREDENTIAL_KEY_PROVIDER", default=""),
        )
        env.require(
            settings.pool_min_size <= settings.pool_max_size,
            "NOETL_POSTGRES_POOL_MIN_SIZE must not exceed NOETL_POSTGRES_POOL_MAX_SIZE",
        )
        env.require(
            settings.payload_gc_min_grace_seconds <= settings.payload_gc_grace_seconds,
            "NOETL_PAYLOAD_GC_GRACE_SECONDS must not be below NOETL_PAYLOAD_GC_MIN_GRACE_SECONDS",
        )
        sources = (settings.credential_keys, settings.credential_keys_file, settings.credential_key_provider)
        env.require(
            sum(map(bool, sources)) <= 1,
            "only one of NOETL_CREDENTIAL_KEYS, NOETL_CREDENTIAL_KEYS_FILE, NOETL_CREDENTIAL_KEY_PROVIDER can be set",
        )
        env.check()
        return settings


def _visible(values: Mapping[str, str], names: str) -> dict[str, str]:
    """The variables that templates may read: those that the operator names, and no others."""
    return {name: values[name] for name in _names(names) if name in values}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())
