"""How much events tell of results: a reference and a few scalars, whatever the results are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from noetl_core.canonical import encode
from noetl_worker.application.event_result import MAX_CONTEXT_BYTES

TYPICAL_RESULT_BYTES = 2048


def check_result_sizes(results: Iterable[Mapping[str, Any] | None]) -> None:
    """99 of 100 results of events are below 2 KB, and none is much larger than its context may be."""
    sizes = sorted(len(encode(dict(result))) for result in results if result)
    assert sizes, "no event has a result"
    assert sizes[(len(sizes) * 99 - 1) // 100] < TYPICAL_RESULT_BYTES
    assert sizes[-1] < MAX_CONTEXT_BYTES + TYPICAL_RESULT_BYTES
