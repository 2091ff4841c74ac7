"""The names that templates have from the runtime, and the warning about names that hide them."""

from __future__ import annotations

from noetl_core.playbook.findings import Findings
from noetl_core.playbook.source import Path

CONTEXT_NAMES = frozenset(
    {
        *("ctx", "workload", "steps", "output", "event", "error", "result", "execution_id", "catalog_id", "job"),
        *("idempotency_key", "iter", "_index", "_first", "_last", "_total", "loop_index", "loop"),
        *("_prev", "_task", "_attempt", "results"),
        *("frame", "_frame_index", "_frame_row_index", "_worker_slot_id", "__frame_id", "__frame_max_rows"),
        *("__frame_policy", "__worker_slot_id", "fanin", "partitions", "keychain"),
    }
)
"""A step or variable of the same name is hard to tell from these."""


def warn_if_shadowing(what: str, name: str, path: Path, findings: Findings) -> None:
    """Say so where an author's name is one that templates have anyway."""
    if name in CONTEXT_NAMES:
        message = f"templates have a name {name!r} of their own, besides this {what}"
        findings.warn("shadowed_name", message, path)
