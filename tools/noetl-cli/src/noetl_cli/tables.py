"""The reader of stored tables that commands use; the one place of theirs that chooses it."""

from noetl_adapters.arrow.lazy_tables import StoredTables

__all__ = ["StoredTables"]
