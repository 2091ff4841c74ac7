"""The in-memory twin of what tools get credentials from."""

from collections.abc import Mapping

from noetl_core.canonical import JsonValue
from noetl_core.credentials import CREDENTIAL_NOT_FOUND
from noetl_core.errors import NotFound, Unavailable
from noetl_core.ids import ExecutionId
from noetl_core.ports.credentials import Credential


class InMemoryToolCredentials:
    """Credentials of one process; `fetched` tells in which order they were asked for."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str, str], Credential] = {}
        self.fetched: list[str] = []
        self.is_away = False
        """Whether every request fails, as if the api were not there."""

    def add(
        self,
        name: str,
        kind: str,
        data: Mapping[str, JsonValue],
        *,
        tenant_id: str = "default",
        organization_id: str = "default",
    ) -> None:
        """Store a credential, or another one under the same name."""
        credential = Credential(name=name, type=kind, data=dict(data))
        self._stored[tenant_id, organization_id, name] = credential

    async def get(
        self, *, tenant_id: str, organization_id: str, name: str, execution_id: ExecutionId | None = None
    ) -> Credential:
        """The credential of this organization."""
        self.fetched.append(name)
        if self.is_away:
            raise Unavailable("credentials cannot be fetched")
        try:
            return self._stored[tenant_id, organization_id, name]
        except KeyError as exc:
            raise NotFound("credential", name, code=CREDENTIAL_NOT_FOUND) from exc
