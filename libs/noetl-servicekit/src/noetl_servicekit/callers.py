"""Who is calling: a name, a tenant and organization, and a role, known for the length of one call."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Final

from noetl_core.errors import NotAuthenticated, NotPermitted

ANY: Final = "*"


class Role(Enum):
    """What a caller may do; each role may do what the ones before it may."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"
    """Sees the secrets of its own organization."""
    SERVICE = "service"
    """One of NoETL's own processes, which may act for any tenant."""

    def includes(self, other: "Role") -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whom a token belongs to."""

    name: str
    tenant_id: str
    organization_id: str
    role: Role

    def may(self, role: Role) -> bool:
        return self.role.includes(role)

    def require(self, role: Role) -> None:
        """Raise NotPermitted unless the caller may."""
        if not self.may(role):
            raise NotPermitted(
                f"{self.name!r} has the role {self.role.value}, this takes {role.value}", role=role.value
            )

    def sees(self, tenant_id: str, organization_id: str) -> bool:
        """What a caller does not see does not exist for it."""
        return self.tenant_id in (ANY, tenant_id) and self.organization_id in (ANY, organization_id)


_caller: Final[ContextVar[Caller | None]] = ContextVar("noetl_caller", default=None)
_method: Final[ContextVar[str]] = ContextVar("noetl_method", default="")


def current_caller() -> Caller:
    """The caller of the request that is being answered."""
    caller = _caller.get()
    if caller is None:
        raise NotAuthenticated("this needs a caller, and there is none")
    return caller


def answer_as(caller: Caller, method: str) -> None:
    """From here on our task works for this caller: a call has a task of its own, so nothing is put back."""
    _caller.set(caller)
    _method.set(method)


def call_fields() -> dict[str, str]:
    """What lines of the log say of the call that is being answered."""
    method, caller = _method.get(), _caller.get()
    if not method or caller is None:
        return {}
    fields = {"rpc_method": method, "caller": caller.name}
    if caller.tenant_id != ANY:
        fields |= {"tenant_id": caller.tenant_id, "organization_id": caller.organization_id}
    return fields
