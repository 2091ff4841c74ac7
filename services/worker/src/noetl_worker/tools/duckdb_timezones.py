"""DuckDB's Python client asks the package pytz for time zones; Python's own serve it as well."""

from __future__ import annotations

import importlib.util
import sys
import types
from datetime import datetime
from zoneinfo import ZoneInfo


class _Zone(ZoneInfo):
    def localize(self, time: datetime) -> datetime:
        """What pytz calls it to say in which zone a time is meant."""
        return time.replace(tzinfo=self)


def provide_time_zones() -> None:
    """For this process, a child that runs nothing but DuckDB: stand in for pytz where it is not installed."""
    if "pytz" not in sys.modules and importlib.util.find_spec("pytz") is None:
        stand_in = types.ModuleType("pytz")
        stand_in.timezone = _Zone  # type: ignore[attr-defined]  # the one name that DuckDB uses
        sys.modules["pytz"] = stand_in
