"""Where api is and who asks, for tasks that read through it."""

from __future__ import annotations

from dataclasses import dataclass, field

import grpc
from noetl_contracts.channel import open_channel
from noetl_contracts.clients import IDEMPOTENT_METHODS


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAccess:
    """Travels to tasks inside of what is pickled for them, and never in the configuration of Spark."""

    address: str
    token: str | None = field(repr=False)
    tls: bool = False

    def open(self) -> grpc.aio.Channel:
        """A channel, for whoever is in an event loop; connects on first use, and is closed with `async with`."""
        return open_channel(
            self.address,
            token=self.token,
            retryable_methods=IDEMPOTENT_METHODS,
            credentials=grpc.ssl_channel_credentials() if self.tls else None,
        )
