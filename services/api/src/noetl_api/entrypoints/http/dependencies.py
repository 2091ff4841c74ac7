"""What every route is given: who calls, for whom, and the use cases."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Depends, Path, Query, Security
from fastapi.security import HTTPBearer
from noetl_core.errors import NotPermitted
from noetl_core.ids import parse_id
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller
from noetl_servicekit.stage_tokens import StageCaller
from noetl_servicekit.tokens import Tokens
from starlette.requests import Request

from noetl_api.application.scopes import named_scope
from noetl_api.application.use_cases import UseCases


class BearerToken(HTTPBearer):
    """The same tokens as over gRPC; no other header says who somebody is."""

    def __init__(self) -> None:
        super().__init__(
            scheme_name="token",
            description="A token of the installation: it maps to one tenant, organization and role.",
            auto_error=False,
        )

    async def __call__(self, request: Request) -> Caller:  # type: ignore[override]  # a caller, not what was sent
        tokens = cast("Tokens", request.app.state.tokens)
        caller = tokens.authenticate(request.headers.get("authorization"))
        if isinstance(caller, StageCaller):
            raise NotPermitted("a token of a stage is for gRPC, and for its frames")
        return caller


def use_cases_of(request: Request) -> UseCases:
    """What bootstrap has put there."""
    return cast("UseCases", request.app.state.use_cases)


def scope_of(
    tenant_id: Annotated[str, Query(description="For whom; only a service names it, others are known.")] = "",
    organization_id: Annotated[str, Query(description="The organization within the tenant.")] = "",
) -> Scope | None:
    """The scope that a request names."""
    return named_scope(tenant_id, organization_id)


def execution_id_of(
    execution_id: Annotated[str, Path(description="The execution; a 63-bit number as digits.")],
) -> int:
    """Ids are text in JSON and in addresses: they are too large for the numbers of many clients."""
    return parse_id(execution_id, what="execution_id")


CallerOf = Annotated[Caller, Security(BearerToken())]
UseCasesOf = Annotated[UseCases, Depends(use_cases_of)]
ScopeOf = Annotated[Scope | None, Depends(scope_of)]
ExecutionIdOf = Annotated[int, Depends(execution_id_of)]
PageSize = Annotated[int, Query(ge=0, le=1000, description="Largest number of entries; 0 means the usual number.")]
PageToken = Annotated[str, Query(description="From the page before; empty for the first.")]
