"""The upcasters of this release. One is added with every change of an event's schema version, and none is removed."""

from __future__ import annotations

from typing import Final

from noetl_core.upcasting.registry import Upcasters

UPCASTERS: Final = Upcasters()
"""Every type is in its first version so far."""
