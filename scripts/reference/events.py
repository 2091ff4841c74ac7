"""Event types, from the catalog of what the log may hold."""

from __future__ import annotations

from dataclasses import MISSING, fields

from noetl_core.events import known_types

from scripts.reference.markdown import code, page, table

INTRODUCTION = """
What the log holds. Every event has an envelope (`event_id`, `execution_id`, `stream_version`, `event_type`,
`node_name`, `event_time`, `result`, `meta`, `prev_checksum`, `checksum` and more, see [the
contract](../../protos/noetl/event/v1/event.proto)); the fields below are its own. `noetl events ID` shows them. Names
that begin with none of these words are free for events of users (`POST /api/events`).
"""


def events_page() -> str:
    """Type by type."""
    rows = []
    for name, spec in sorted(known_types().items()):
        own = [
            field.name + ("" if field.default is MISSING and field.default_factory is MISSING else "?")
            for field in fields(spec.payload)
        ]
        notes = " ".join((spec.payload.__doc__ or "").strip().split("\n\n")[0].split())
        rows.append((code(name), spec.aggregate_type, ", ".join(own), notes + (" Ends it." if spec.terminal else "")))
    return page("Events", INTRODUCTION, table(("type", "about", "fields (? may be missing)", "means"), rows))
