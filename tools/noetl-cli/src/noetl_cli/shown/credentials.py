"""Credentials for people and programs; secrets only where a command was asked for them."""

from collections.abc import Iterator, Sequence
from typing import Any

from noetl_core.ports.credentials import CredentialInfo, UnreadableCredential

from noetl_cli.shown.durations import clock_text, time_text
from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line


def credential_document(info: CredentialInfo) -> dict[str, Any]:
    """For programs."""
    return {
        "credential_id": info.credential_id,
        "name": info.name,
        "type": info.type,
        "description": info.description,
        "tags": list(info.tags),
        "key_id": info.key_id,
        "created_at": time_text(info.created_at),
        "created_by": info.created_by,
        "updated_at": time_text(info.updated_at),
        "updated_by": info.updated_by,
    }


def unreadable_document(unreadable: UnreadableCredential) -> dict[str, str]:
    """A credential that a rotation had to leave alone, for programs."""
    return {
        "tenant_id": unreadable.tenant_id,
        "organization_id": unreadable.organization_id,
        "name": unreadable.name,
        "key_id": unreadable.key_id,
    }


def credential_lines(info: CredentialInfo) -> Iterator[str]:
    """One credential, for people."""
    rows = [
        ("name", info.name),
        ("type", info.type),
        ("description", info.description),
        ("tags", ", ".join(info.tags)),
        ("key", info.key_id),
        ("created", f"{clock_text(info.created_at)} by {info.created_by}"),
        ("updated", f"{clock_text(info.updated_at)} by {info.updated_by}"),
    ]
    yield from (f"{label.ljust(11)}  {one_line(value)}" for label, value in rows if value)


def list_lines(credentials: Sequence[CredentialInfo]) -> Iterator[str]:
    """One line each."""
    rows = [("NAME", "TYPE", "TAGS", "KEY", "UPDATED", "BY")]
    rows += [
        (info.name, info.type, ", ".join(info.tags), info.key_id, clock_text(info.updated_at), info.updated_by)
        for info in credentials
    ]
    yield from table_lines(rows)
