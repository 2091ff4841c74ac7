"""Times and spans of time, in the few forms that answers use."""

from datetime import datetime

from noetl_core.timestamps import format_time


def time_text(moment: datetime | None) -> str | None:
    """For programs: RFC 3339."""
    return format_time(moment) if moment is not None else None


def clock_text(moment: datetime) -> str:
    """For people: to the millisecond, in UTC as everything is."""
    return format_time(moment)[:23].replace("T", " ") + "Z"


def span_text(seconds: float) -> str:
    """For people: as precise as is of use."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
