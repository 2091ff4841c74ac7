"""Credentials over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response
from noetl_core.credentials import credential_of
from noetl_core.ports.credentials import Credential, CredentialInfo
from pydantic import BaseModel, ConfigDict, Field

from noetl_api.entrypoints.http.dependencies import CallerOf, PageSize, PageToken, ScopeOf, UseCasesOf

router = APIRouter(prefix="/api/credentials", tags=["credentials"])

CredentialName = Annotated[str, Path(description="Name of the credential; it may have slashes.")]


class CredentialBody(BaseModel):
    """A credential to store. Its secrets are in no `repr`, so that nothing can log them by accident."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    name: str = Field(description="Name by which playbooks will refer to it.")
    type: str | None = Field(default=None, description="What it opens, such as postgres; generic if it is left out.")
    credential_type: str | None = Field(default=None, description="Another name of type.")
    description: str | None = Field(default=None, description="What it is for.")
    tags: list[str] | str | None = Field(default=None, description="Labels; a text has them between commas.")
    data: dict[str, Any] = Field(repr=False, description="The secrets.")
    meta: dict[str, Any] | None = Field(default=None, description="Not stored; must be empty.")

    def credential(self) -> Credential:
        """The credential that this describes, if it is one."""
        return credential_of(dict(self))


class CredentialOut(BaseModel):
    """What everybody in the organization may know about a credential."""

    id: str
    name: str
    type: str
    description: str
    tags: list[str]
    key_id: str = Field(description="Encryption key that protects its data.")
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str

    @classmethod
    def fields_of(cls, info: CredentialInfo) -> dict[str, Any]:
        return {
            "id": info.credential_id,
            "name": info.name,
            "type": info.type,
            "description": info.description,
            "tags": list(info.tags),
            "key_id": info.key_id,
            "created_at": info.created_at,
            "created_by": info.created_by,
            "updated_at": info.updated_at,
            "updated_by": info.updated_by,
        }

    @classmethod
    def of(cls, info: CredentialInfo) -> CredentialOut:
        return cls(**cls.fields_of(info))


class StoredOut(CredentialOut):
    """What was stored, without its data."""

    created: bool = Field(description="False when a credential of this name was replaced.")


class CredentialDetailOut(CredentialOut):
    """A credential, and its secrets if they were asked for by an admin."""

    data: dict[str, Any] | None = Field(default=None, repr=False)


class CredentialsOut(BaseModel):
    """Some credentials, by name."""

    items: list[CredentialOut]
    next_page_token: str
    filter: dict[str, str | None] = Field(description="What the list was narrowed to.")


class DeletedOut(BaseModel):
    """A credential that is gone."""

    id: str
    name: str
    message: str = "credential deleted"


@router.post("")
async def put_credential(body: CredentialBody, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf) -> StoredOut:
    """Store a credential, in place of the one of its name."""
    stored = await use_cases.credentials.put(caller, scope, body.credential())
    return StoredOut(**CredentialOut.fields_of(stored.info), created=stored.created)


@router.get("")
async def list_credentials(
    *,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    type_name: Annotated[str, Query(alias="type", description="Only this type.")] = "",
    q: Annotated[str, Query(description="Only those with this text in their name or description.")] = "",
    page_size: PageSize = 0,
    page_token: PageToken = "",
) -> CredentialsOut:
    """Credentials by name, never with data."""
    page = await use_cases.credentials.list(
        caller, scope, type_name=type_name, contains=q, size=page_size, token=page_token
    )
    return CredentialsOut(
        items=[CredentialOut.of(info) for info in page.credentials],
        next_page_token=page.next_page_token,
        filter={"type": type_name or None, "q": q or None},
    )


@router.get("/{name:path}")
async def get_credential(
    *,
    name: CredentialName,
    caller: CallerOf,
    scope: ScopeOf,
    use_cases: UseCasesOf,
    response: Response,
    include_data: Annotated[bool, Query(description="Whether the secrets are wanted; takes an admin.")] = False,
) -> CredentialDetailOut:
    """One credential; who looks at its secrets is noted."""
    if not include_data:
        info = await use_cases.credentials.get(caller, scope, name)
        return CredentialDetailOut(**CredentialOut.fields_of(info))
    info, credential = await use_cases.credentials.reveal(caller, scope, name)
    response.headers["Cache-Control"] = "no-store"
    return CredentialDetailOut(**CredentialOut.fields_of(info), data=dict(credential.data))


@router.delete("/{name:path}")
async def delete_credential(
    name: CredentialName, caller: CallerOf, scope: ScopeOf, use_cases: UseCasesOf
) -> DeletedOut:
    """Remove a credential; calls that begin later do not find it."""
    info = await use_cases.credentials.delete(caller, scope, name)
    return DeletedOut(id=info.credential_id, name=info.name)
