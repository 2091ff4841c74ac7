"""How commands name a tenant and its organization."""

from __future__ import annotations

from noetl_core.errors import InvalidInput
from noetl_core.ports.event_log import Scope


def named_tenant(tenant: str | None) -> Scope | None:
    """What `--tenant acme/ops` names."""
    if tenant is None:
        return None
    tenant_id, slash, organization_id = tenant.partition("/")
    if not slash or not tenant_id or not organization_id:
        raise InvalidInput(f"--tenant names a tenant and an organization, such as acme/ops, not {tenant!r}")
    return Scope(tenant_id=tenant_id, organization_id=organization_id)
