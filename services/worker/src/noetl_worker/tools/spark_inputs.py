"""The inputs of a spark call: tables go by reference to payloads, everything else as it is."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.locator import payload_locator
from noetl_core.payloads import PayloadRef
from noetl_core.playbook.references import handed_on
from noetl_core.ports.payloads import PayloadStore
from noetl_core.ports.tables import MEDIA_TYPE as TABLE_MEDIA_TYPE
from noetl_core.ports.tables import Tables, is_table
from noetl_core.tabular import ROWS_KEYS
from noetl_servicekit.chunk_rows import MARK, StoredChunk, mark_of
from noetl_servicekit.stored_values import MEDIA_TYPE, decode_value, encode_value

from noetl_worker.application.known_secrets import KnownSecrets
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import misconfigured

_NAME: Final = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a call is given."""

    tables: Mapping[str, JsonObject] = field(default_factory=dict)
    values: Mapping[str, JsonValue] = field(default_factory=dict)


class SparkInputs:
    """Tells tables from other values; rows that are nowhere stored yet are stored first."""

    def __init__(self, payloads: PayloadStore, tables: Tables) -> None:
        self._payloads = payloads
        self._tables = tables

    async def read(
        self, call: ToolCall, rendered: Mapping[str, JsonValue], *, secrets: KnownSecrets, is_query: bool
    ) -> Inputs:
        """Raises `CallFailed` for what Spark cannot be given, and `NoetlError` if a table cannot be reached."""
        tables: dict[str, JsonObject] = {}
        values: dict[str, JsonValue] = {}
        for name, value in rendered.items():
            if secrets and secrets.hide_in_data(value, whole=True) != value:
                message = "is a secret, and rows of a spark step are stored where nobody could hide it"
                raise misconfigured(f"the input {name!r} {message}")
            table = await self._table(call, value, is_rows=_is_rows(call.input.get(name)))
            if table is None:
                values[name] = value
            else:
                tables[name] = table
        self._check(tables, values, is_query=is_query)
        return Inputs(tables=tables, values=values)

    async def _table(self, call: ToolCall, value: JsonValue, *, is_rows: bool) -> JsonObject | None:
        match value:
            case {"_ref": {"sha256": str(sha256)}}:
                return await self._stored(call, sha256)
            case {"_chunks": list(chunks)}:
                return {MARK: chunks}
            case dict():
                key = next((key for key in ROWS_KEYS if isinstance(value.get(key), list | dict)), None)
                below = None if key is None else await self._table(call, value[key], is_rows=True)
                return None if below is None else {**_known_columns(value), **below}
            case list() if value and all(isinstance(row, dict) and row for row in value):
                return await self._store(call, value)
            case [] if is_rows:
                return {MARK: []}
            case _:
                return None

    async def _store(self, call: ToolCall, rows: list[JsonValue]) -> JsonObject:
        encoded = await asyncio.to_thread(encode_value, rows, self._tables)
        ref = await self._payloads.put(
            tenant_id=call.tenant_id,
            organization_id=call.organization_id,
            data=encoded.data,
            media_type=encoded.media_type,
        )
        return mark_of([StoredChunk(ref=ref, row_count=len(rows))])

    async def _stored(self, call: ToolCall, sha256: str) -> JsonObject | None:
        """A large result that was handed on as its view: if it is stored as a table, nobody needs to look into it."""
        uri = str(payload_locator(tenant_id=call.tenant_id, organization_id=call.organization_id, sha256=sha256))
        data = await self._payloads.get(PayloadRef(uri=uri, sha256=sha256, media_type=MEDIA_TYPE, bytes=0))
        if is_table(data):
            return {MARK: [[sha256, len(data), 0, TABLE_MEDIA_TYPE]]}
        return await self._table(call, await asyncio.to_thread(decode_value, data, self._tables), is_rows=True)

    def _check(self, tables: Mapping[str, JsonObject], values: Mapping[str, JsonValue], *, is_query: bool) -> None:
        for name in tables if is_query else (*tables, *values):
            if not _NAME.fullmatch(name):
                raise misconfigured(f"the input {name!r} cannot be a {'view' if is_query else 'argument'}")
        if not is_query:
            if "spark" in {*tables, *values}:
                raise misconfigured("the input 'spark' has the name of the session")
            return
        for name, value in values.items():
            if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, dict) for one in value)):
                raise misconfigured(f"the input {name!r} is neither a table nor a parameter of a query")


def _is_rows(template: JsonValue) -> bool:
    """Whether an input is written as the rows of something: then an empty list is a table too."""
    path = handed_on(template) if isinstance(template, str) else None
    return path is not None and path[-1] in ROWS_KEYS


def _known_columns(result: Mapping[str, JsonValue]) -> JsonObject:
    """What a result says about its rows, for a table that may have none."""
    return {key: value for key in ("schema", "columns") if isinstance(value := result.get(key), list)}
