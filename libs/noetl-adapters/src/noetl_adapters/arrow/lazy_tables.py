"""Tables as they are stored; the library that reads them takes long to import, and most results are none."""

from noetl_core.canonical import JsonObject
from noetl_core.ports.tables import Tables, TakeRows


class StoredTables:
    """Port `ReadTables`; the library is imported when a table is met."""

    def decode_json(self, data: bytes | memoryview, *, start: int = 0, stop: int | None = None) -> list[JsonObject]:
        """The rows of a range as JSON."""
        return _arrow().decode_json(data, start=start, stop=stop)

    def rows_json(self, data: bytes | memoryview) -> TakeRows:
        """The rows as JSON, made when they are taken."""
        return _arrow().rows_json(data)

    def note(self, data: bytes | memoryview) -> bytes:
        """What was kept with the columns."""
        return _arrow().note(data)


def _arrow() -> Tables:
    from noetl_adapters.arrow.ipc import ArrowTables  # noqa: PLC0415 - takes long

    return ArrowTables()
