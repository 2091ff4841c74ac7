"""Playbooks over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from noetl_api.entrypoints.http.dependencies import CallerOf, PageSize, PageToken, ScopeOf, UseCasesOf
from noetl_api.entrypoints.http.schemas import (
    EntriesOut,
    EntryOut,
    PlaybookOut,
    ProblemOut,
    RegisterBody,
    RegisteredOut,
)

router = APIRouter(prefix="/api/catalog", tags=["catalog"])

PlaybookPath = Annotated[str, Path(description="Catalog key of the playbook; it may have slashes.")]


@router.post("/register")
async def register(body: RegisterBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> RegisteredOut:
    """Check a playbook and store it; the same content again gives the version that exists."""
    registered = await use_cases.register_playbook(caller, scope, body.content)
    return RegisteredOut(
        **EntryOut.fields_of(registered.entry),
        created=registered.created,
        warnings=[ProblemOut.of(warning) for warning in registered.warnings],
    )


@router.get("")
async def list_playbooks(
    caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf, page_size: PageSize = 0, page_token: PageToken = ""
) -> EntriesOut:
    """The newest version of each playbook, by path."""
    page = await use_cases.find_playbooks.list(caller, scope, size=page_size, token=page_token)
    return EntriesOut(entries=[EntryOut.of(entry) for entry in page.entries], next_page_token=page.next_page_token)


@router.get("/{path:path}/versions")
async def list_versions(
    *,
    path: PlaybookPath,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> EntriesOut:
    """The versions of one playbook, newest first."""
    page = await use_cases.find_playbooks.versions(caller, scope, path, size=page_size, token=page_token)
    return EntriesOut(entries=[EntryOut.of(entry) for entry in page.entries], next_page_token=page.next_page_token)


@router.get("/{path:path}")
async def get_playbook(
    *,
    path: PlaybookPath,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    version: Annotated[int, Query(ge=0, description="Version; 0 means the newest.")] = 0,
) -> PlaybookOut:
    """One version of a playbook with its document."""
    source = await use_cases.find_playbooks.get(caller, scope, path=path, version=version)
    return PlaybookOut(**EntryOut.fields_of(source.entry), content=source.content)
