"""What is wrong with a history or with what was made of it, in words that name the event."""

from __future__ import annotations

from collections.abc import Mapping

from noetl_core.canonical import JsonObject
from noetl_core.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. Version 0: it is about no single event."""

    code: str
    message: str
    stream_version: int = 0
    event_id: str = ""
    event_type: str = ""
    surface: str = ""

    def to_json(self) -> JsonObject:
        """As reports hold it; what is not known is left out."""
        fields: Mapping[str, str | int] = {
            "code": self.code,
            "message": self.message,
            "stream_version": self.stream_version,
            "event_id": self.event_id,
            "event_type": self.event_type,
            "surface": self.surface,
        }
        return {key: value for key, value in fields.items() if value}
