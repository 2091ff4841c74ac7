"""Read a timeout: seconds, or the template of them."""

from __future__ import annotations

from noetl_core.playbook.fields import Fields
from noetl_core.playbook.support import Feature


def read_timeout(fields: Fields | None, key: str = "timeout") -> tuple[float | None, str | None]:
    """The seconds that are written, or the template that gives them when their time comes."""
    if fields is None or not fields.has(key):
        return None, None
    written = fields.amount(key)
    if isinstance(written, str):
        is_supported = fields.findings.supports(Feature.TIMEOUT_TEMPLATE, (*fields.path, key))
        return None, written if is_supported else None
    return written, None
