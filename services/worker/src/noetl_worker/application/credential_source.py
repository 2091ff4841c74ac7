"""The port to stored credentials."""

from __future__ import annotations

from typing import Protocol

from noetl_core.ids import ExecutionId
from noetl_core.ports.credentials import Credential


class Credentials(Protocol):
    """Where credentials are fetched from, for each call anew."""

    async def get(
        self, *, tenant_id: str, organization_id: str, name: str, execution_id: ExecutionId | None = None
    ) -> Credential:
        """The credential; raises `NotFound` with the code CREDENTIAL_NOT_FOUND, or `Unavailable`."""
        ...
