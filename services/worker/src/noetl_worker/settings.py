"""What the operator tells a worker."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from noetl_core.locator import Distance
from noetl_core.ports.spark import SparkSettings
from noetl_servicekit.env import Address, Env
from noetl_servicekit.shared_memory import SharedMemoryLimits
from noetl_servicekit.tokens import parse_tokens

_MEMORY = re.compile(r"[1-9]\d*[mg]")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSettings:
    """What every process has to know that runs frames: the worker, and slots on Spark's executors."""

    api_address: str
    planner_address: str
    shard_count: int
    heartbeat_seconds: float
    payload_url: str
    payload_memory_bytes: int
    payload_cache_dir: Path | None
    payload_cache_bytes: int
    table_compression: Literal["zstd"] | None
    shared_memory: SharedMemoryLimits

    @classmethod
    def read(cls, env: Env) -> WorkSettings:
        """The caller checks `env`."""
        compression = env.choice("NOETL_PAYLOAD_COMPRESSION", ("none", "zstd"), default="none")
        return cls(
            api_address=env.text("NOETL_API_ADDRESS"),
            planner_address=env.text("NOETL_PLANNER_ADDRESS"),
            shard_count=env.integer("NOETL_SHARD_COUNT", default=64, minimum=1, maximum=4096),
            heartbeat_seconds=env.number("NOETL_HEARTBEAT_SECONDS", default=15.0, minimum=0.1),
            payload_url=env.url("NOETL_PAYLOAD_URL", schemes=("file", "s3", "gs", "az")),
            payload_memory_bytes=env.integer("NOETL_PAYLOAD_MEMORY_BYTES", default=64 * 1024 * 1024, minimum=0),
            payload_cache_dir=env.optional_path("NOETL_PAYLOAD_CACHE_DIR"),
            payload_cache_bytes=env.integer("NOETL_PAYLOAD_CACHE_BYTES", default=1024 * 1024 * 1024, minimum=0),
            table_compression="zstd" if compression == "zstd" else None,
            shared_memory=SharedMemoryLimits.read(env),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where its neighbours are, which pool it serves, and how much it runs at once."""

    work: WorkSettings
    nats_url: str
    nats_token: str = field(repr=False)
    token: str = field(repr=False)
    tokens_file: Path
    grpc_listen: Address
    ops_listen: Address
    pool: str
    max_distance: Distance
    """How far away data may be of which this worker takes work."""
    slots: int
    python_spares: int
    spark: SparkSettings
    spark_enabled: bool
    spark_warm: bool
    spark_slots: int
    """Slots of stages that this worker may have on Spark at once."""
    spark_token_seconds: float

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> Settings:
        """Everything but what the tools read; refuses all that is wrong together."""
        env = Env(values)
        settings = cls.read(env)
        env.check()
        return settings

    @classmethod
    def read(cls, env: Env) -> Settings:
        """The caller checks `env`, together with what the tools read of it."""
        return cls(
            work=WorkSettings.read(env),
            nats_url=env.url("NOETL_NATS_URL", schemes=("nats", "tls")),
            nats_token=env.secret("NOETL_NATS_TOKEN", default=""),
            token=env.secret("NOETL_TOKEN"),
            tokens_file=env.file("NOETL_TOKENS_FILE", check=parse_tokens),
            grpc_listen=env.address("NOETL_GRPC_LISTEN", default="127.0.0.1:0"),
            ops_listen=env.address("NOETL_OPS_LISTEN", default="127.0.0.1:0"),
            pool=env.text("NOETL_WORKER_POOL", default="default"),
            max_distance=Distance(env.choice("NOETL_WORKER_MAX_DISTANCE", tuple(Distance), default=Distance.ANY)),
            slots=env.integer("NOETL_WORKER_SLOTS", default=8, minimum=1, maximum=1000),
            python_spares=env.integer("NOETL_WORKER_PYTHON_SPARES", default=2, minimum=0, maximum=64),
            spark=_spark(env),
            spark_enabled=env.boolean("NOETL_SPARK_ENABLED", default=True),
            spark_warm=env.boolean("NOETL_SPARK_WARM", default=False),
            spark_slots=env.integer("NOETL_SPARK_SLOTS", default=64, minimum=1, maximum=10_000),
            spark_token_seconds=env.number("NOETL_SPARK_TOKEN_SECONDS", default=3600.0, minimum=60.0, maximum=86400.0),
        )


def _spark(env: Env) -> SparkSettings:
    memory = env.text("NOETL_SPARK_MEMORY", default="1g")
    env.require(_MEMORY.fullmatch(memory) is not None, "NOETL_SPARK_MEMORY is a size such as 512m or 2g")
    python_memory = env.text("NOETL_SPARK_PYTHON_MEMORY", default="")
    is_size = not python_memory or _MEMORY.fullmatch(python_memory) is not None
    env.require(is_size, "NOETL_SPARK_PYTHON_MEMORY is a size such as 2g, or empty for no limit")
    properties, problem = _properties(env.text("NOETL_SPARK_PROPERTIES", default=""))
    env.require(not problem, f"NOETL_SPARK_PROPERTIES {problem}")
    return SparkSettings(
        master=env.text("NOETL_SPARK_MASTER", default=""),
        memory=memory,
        python_memory=python_memory,
        properties=properties,
        max_calls=env.integer("NOETL_SPARK_MAX_CALLS", default=4, minimum=1, maximum=100),
        start_seconds=env.number("NOETL_SPARK_START_SECONDS", default=180.0, minimum=1.0),
        cancel_seconds=env.number("NOETL_SPARK_CANCEL_SECONDS", default=20.0, minimum=1.0),
    )


def _properties(text: str) -> tuple[dict[str, str], str]:
    """Spark's own settings, as JSON; what they mean is Spark's business."""
    try:
        read = json.loads(text or "{}")
    except ValueError:
        return {}, "is no JSON"
    if not isinstance(read, dict) or not all(isinstance(value, str | int | float) for value in read.values()):
        return {}, 'is a map of names to values: {"spark.executor.cores": 2}'
    strange = [name for name in read if not name.startswith("spark.")]
    if strange:
        return {}, f"has {strange[0]!r}, and names begin with spark."
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in read.items()}, ""
