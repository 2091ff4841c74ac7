"""The scope that a message names."""

from noetl.common.v1 import common_pb2 as common
from noetl_core.ports.event_log import Scope

from noetl_api.application.scopes import named_scope


def scope_of(message: common.Scope) -> Scope | None:
    """Absent and empty are the same: the caller's token decides."""
    return named_scope(message.tenant_id, message.organization_id)
