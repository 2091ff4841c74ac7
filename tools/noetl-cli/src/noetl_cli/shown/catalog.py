"""Playbooks of the catalog for people and programs."""

from collections.abc import Iterator, Sequence
from typing import Any

from noetl_core.ports.catalog import CatalogEntry, Registered

from noetl_cli.reporting import problem_document
from noetl_cli.shown.durations import clock_text, time_text
from noetl_cli.shown.tables import table_lines


def entry_document(entry: CatalogEntry) -> dict[str, Any]:
    """For programs."""
    return {
        "catalog_id": entry.catalog_id,
        "path": entry.path,
        "version": entry.version,
        "name": entry.name,
        "sha256": entry.sha256,
        "created_at": time_text(entry.created_at),
        "created_by": entry.created_by,
    }


def registered_document(registered: Registered) -> dict[str, Any]:
    """The outcome of a registration, for programs."""
    return {
        **entry_document(registered.entry),
        "created": registered.created,
        "warnings": [problem_document(warning) for warning in registered.warnings],
    }


def registered_line(registered: Registered) -> str:
    """The outcome of a registration, for people."""
    entry = registered.entry
    how = "registered as" if registered.created else "unchanged since"
    return f"{entry.path}: {how} version {entry.version}"


def entry_lines(entries: Sequence[CatalogEntry]) -> Iterator[str]:
    """One line each."""
    rows = [("PATH", "VERSION", "NAME", "REGISTERED", "BY")]
    rows += [
        (entry.path, str(entry.version), entry.name, clock_text(entry.created_at), entry.created_by)
        for entry in entries
    ]
    yield from table_lines(rows)
