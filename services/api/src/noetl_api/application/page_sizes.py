"""How much a caller may ask for at once."""

from noetl_core.errors import InvalidInput


def page_size(asked: int, *, default: int, maximum: int) -> int:
    """The size asked for; 0 means the default, and too much is refused rather than cut."""
    if asked == 0:
        return default
    if not 0 < asked <= maximum:
        raise InvalidInput(f"a page has from 1 to {maximum} entries, not {asked}")
    return asked
