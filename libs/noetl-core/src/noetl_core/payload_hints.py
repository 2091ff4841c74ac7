"""Where on which machine a copy of a payload may be found for a while: worth a look, never worth trust."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from noetl_core.canonical import JsonObject
from noetl_core.errors import InvalidInput
from noetl_core.timestamps import format_time, parse_time

IPC: Final = "ipc"
"""The key of a result's reference that has the hint; the reference is whole without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IpcHint:
    """A copy in the shared memory of one node; its writer means to leave it there until `valid_until`."""

    node_id: str
    shm_name: str
    schema_digest: str
    valid_until: datetime

    def to_json(self) -> JsonObject:
        """The form that references carry."""
        return {
            "node_id": self.node_id,
            "shm_name": self.shm_name,
            "schema_digest": self.schema_digest,
            "valid_until": format_time(self.valid_until),
        }


def hint_in(reference: Mapping[str, Any]) -> IpcHint | None:
    """The hint of a reference; one that cannot be read is none, since nobody depends on it."""
    value = reference.get(IPC)
    if not isinstance(value, Mapping):
        return None
    texts = [value.get(key) for key in ("node_id", "shm_name", "schema_digest", "valid_until")]
    if not all(isinstance(text, str) for text in texts):
        return None
    node_id, shm_name, schema_digest, valid_until = map(str, texts)
    try:
        until = parse_time(valid_until)
    except InvalidInput:
        return None
    return IpcHint(node_id=node_id, shm_name=shm_name, schema_digest=schema_digest, valid_until=until)
