"""What `reference` of the data source may be: the address of a payload or of a stored result, or chunks by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from noetl_core.canonical import decode
from noetl_core.errors import InvalidInput, LocatorInvalid, NotCanonical
from noetl_core.locator import parse, payload_locator
from noetl_core.payloads import PayloadRef
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE

from noetl_adapters.spark.payload_access import BlockingPayloads

JSON_MEDIA_TYPE = "application/json"
MARK = "_chunks"
"""What stands in a result instead of rows that are stored in several payloads (ADR 0019)."""
_ARROW_STREAM = b"\xff\xff\xff\xff"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReference:
    """Payloads that are one table, in order, and its columns if they are known."""

    chunks: tuple[PayloadRef, ...]
    schema: str | None = None
    """As Spark writes it: `a bigint, b string`."""

    @classmethod
    def of_chunks(
        cls, entries: object, *, tenant_id: str, organization_id: str, schema: object = None
    ) -> TableReference:
        """From the mark of a result: `[[sha256, bytes, rows, media type], …]`."""
        if not isinstance(entries, list) or not all(isinstance(one, list) and len(one) == 4 for one in entries):
            raise InvalidInput("chunks are a list of [sha256, bytes, rows, media type]")
        refs = (
            PayloadRef(
                uri=str(payload_locator(tenant_id=tenant_id, organization_id=organization_id, sha256=str(sha256))),
                sha256=str(sha256),
                media_type=str(media_type),
                bytes=int(size),
            )
            for sha256, size, _, media_type in entries
        )
        return cls(chunks=tuple(refs), schema=written_schema(schema))


def chunks_option(chunks: list[Any], *, tenant_id: str, organization_id: str, schema: object = None) -> str:
    """The value of `reference` for chunks that are known."""
    return json.dumps({"tenant": tenant_id, "organization": organization_id, MARK: chunks, "schema": schema})


def resolve(option: str, payloads: BlockingPayloads) -> TableReference:
    """The table that `reference` speaks of; raises `InvalidInput` where it speaks of none."""
    if option.lstrip().startswith("{"):
        return _written_out(option)
    try:
        locator = parse(option)
    except LocatorInvalid as exc:
        raise InvalidInput(f"`reference` is no address of a payload: {exc.message}") from exc
    if locator.kind != "payload":
        raise InvalidInput("`reference` is the address of a payload: noetl://tenant/…/payloads/sha256/…")
    tenant_id, organization_id, sha256 = locator.segments[1], locator.segments[3], locator.segments[-1]
    ref = PayloadRef(uri=option, sha256=sha256, media_type=JSON_MEDIA_TYPE, bytes=0)
    if payloads.head(ref).startswith(_ARROW_STREAM):
        return TableReference(chunks=(PayloadRef(uri=option, sha256=sha256, media_type=TABLE_MEDIA_TYPE, bytes=0),))
    return _in_result(ref, payloads.get(ref), tenant_id=tenant_id, organization_id=organization_id)


def written_schema(schema: object) -> str | None:
    """Columns as Spark writes them, from `schema` of a result."""
    if not isinstance(schema, list) or not schema:
        return None
    columns = [(one.get("name"), one.get("type")) for one in schema if isinstance(one, Mapping)]
    if len(columns) != len(schema) or not all(isinstance(kind, str) for _, kind in columns):
        return None
    return ", ".join(f"`{str(name).replace('`', '``')}` {kind}" for name, kind in columns)


def _written_out(option: str) -> TableReference:
    try:
        value = json.loads(option)
        return TableReference.of_chunks(
            value[MARK],
            tenant_id=str(value["tenant"]),
            organization_id=str(value["organization"]),
            schema=value.get("schema"),
        )
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(f"`reference` is no reference to chunks: {exc}") from exc


def _in_result(ref: PayloadRef, data: bytes, *, tenant_id: str, organization_id: str) -> TableReference:
    """A result that has its rows in chunks, or rows that stand in a payload of their own."""
    try:
        value = decode(data)
    except NotCanonical as exc:
        raise InvalidInput(f"{ref.uri} is neither an Arrow stream nor JSON") from exc
    rows = value.get("rows", value) if isinstance(value, dict) else value
    if isinstance(value, dict) and isinstance(rows, dict) and MARK in rows:
        return TableReference.of_chunks(
            rows[MARK], tenant_id=tenant_id, organization_id=organization_id, schema=value.get("schema")
        )
    return TableReference(chunks=(ref,))
