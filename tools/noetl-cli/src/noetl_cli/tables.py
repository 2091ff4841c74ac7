"""Tables as they are stored; loaded only by commands that meet one, because the library takes long to import."""

from noetl_core.ports.tables import Tables


def stored_tables() -> Tables:
    """What reads and writes them."""
    from noetl_adapters.arrow.ipc import ArrowTables  # noqa: PLC0415

    return ArrowTables()
