"""Playbooks and their problems as messages."""

from __future__ import annotations

from noetl.catalog.v1 import catalog_pb2 as pb
from noetl.common.v1 import common_pb2 as common
from noetl_core.errors import Problem
from noetl_core.ports.catalog import CatalogEntry, CatalogPage, PlaybookSource, Registered

from noetl_contracts.mapping.times import moment, timestamp


def entry_message(entry: CatalogEntry) -> pb.Entry:
    """A version as a message."""
    return pb.Entry(
        catalog_id=entry.catalog_id,
        path=entry.path,
        version=entry.version,
        name=entry.name,
        sha256=entry.sha256,
        created_at=timestamp(entry.created_at),
        created_by=entry.created_by,
    )


def entry(message: pb.Entry) -> CatalogEntry:
    """A version."""
    return CatalogEntry(
        catalog_id=message.catalog_id,
        path=message.path,
        version=message.version,
        name=message.name,
        sha256=message.sha256,
        created_at=moment(message.created_at),
        created_by=message.created_by,
    )


def problem_message(problem: Problem) -> common.Problem:
    """A problem as a message."""
    return common.Problem(
        code=problem.code,
        message=problem.message,
        path=problem.path,
        line=problem.line or 0,
        column=problem.column or 0,
        suggestion=problem.suggestion or "",
    )


def problem(message: common.Problem) -> Problem:
    """A problem."""
    return Problem(
        code=message.code,
        message=message.message,
        path=message.path,
        line=message.line or None,
        column=message.column or None,
        suggestion=message.suggestion or None,
    )


def registered_message(outcome: Registered) -> pb.RegisterResponse:
    """The outcome of a registration as a message."""
    return pb.RegisterResponse(
        entry=entry_message(outcome.entry),
        created=outcome.created,
        warnings=[problem_message(warning) for warning in outcome.warnings],
    )


def registered(message: pb.RegisterResponse) -> Registered:
    """The outcome of a registration."""
    return Registered(
        entry=entry(message.entry),
        created=message.created,
        warnings=tuple(problem(warning) for warning in message.warnings),
    )


def source(message: pb.GetResponse) -> PlaybookSource:
    """A version with its document."""
    return PlaybookSource(entry=entry(message.entry), content=message.content)


def page(message: pb.ListResponse | pb.ListVersionsResponse) -> CatalogPage:
    """A page of versions."""
    return CatalogPage(entries=tuple(entry(one) for one in message.entries), next_page_token=message.next_page_token)
