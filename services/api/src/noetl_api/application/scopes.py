"""Whose data a caller may touch: the token decides, and only a service may say for whom it acts."""

from __future__ import annotations

from noetl_core.errors import InvalidInput, NotPermitted
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import ANY, Caller


def named_scope(tenant_id: str, organization_id: str) -> Scope | None:
    """The scope that a request names, if it names one."""
    if not tenant_id and not organization_id:
        return None
    if not (tenant_id and organization_id) or ANY in (tenant_id, organization_id):
        raise InvalidInput("a scope names one tenant and one organization")
    return Scope(tenant_id=tenant_id, organization_id=organization_id)


def acting_scope(caller: Caller, named: Scope | None) -> Scope:
    """Whose data a request is about; a caller that may act for anybody has to say for whom."""
    scope = visible_scope(caller, named)
    if scope is None:
        raise InvalidInput(f"{caller.name!r} may act for any tenant and must name a scope")
    return scope


def visible_scope(caller: Caller, named: Scope | None) -> Scope | None:
    """Whose data a reader sees; None is everybody's, which only a caller for any tenant gets."""
    if named is not None:
        if not caller.sees(named.tenant_id, named.organization_id):
            raise NotPermitted(f"{caller.name!r} belongs to another tenant or organization")
        return named
    if ANY in (caller.tenant_id, caller.organization_id):
        return None
    return Scope(tenant_id=caller.tenant_id, organization_id=caller.organization_id)
