"""NATS JetStream: one supervised connection, its streams, pipelined publishes and pulled deliveries."""

from noetl_contracts.lean_imports import without

# For WebSockets, by which no service reaches its bus: a quarter of a planner's start.
with without("aiohttp"):
    import nats.aio.client  # noqa: F401
