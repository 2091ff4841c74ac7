"""What every route is given: who calls, for whom, and the use cases."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, cast

from fastapi import Depends, Path, Query, Security
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from noetl_core.errors import InvalidInput, NotPermitted
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


def only_known_parameters(request: Request, caller: CallerOf) -> None:
    """For routes on which a parameter that is left out means something: a misspelt one would mean that too."""
    known = sorted(_query_names(cast("APIRoute", request.scope["route"]).dependant))
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if not unknown:
        return
    told = []
    for name in unknown:
        near = get_close_matches(name[:100], known, n=1)
        told.append(f"{name!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    raise InvalidInput(f"there is no parameter {', '.join(told)}", parameters=", ".join(unknown))


def _query_names(dependant: Dependant) -> Iterator[str]:
    for parameter in dependant.query_params:
        yield parameter.alias
    for one in dependant.dependencies:
        yield from _query_names(one)
