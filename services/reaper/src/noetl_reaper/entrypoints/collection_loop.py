"""Has payloads collected now and then, if the operator wants that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from noetl_core.append import Fence

from noetl_reaper.application.collect_payloads import CollectPayloads

LONGEST_SILENCE_SECONDS = 3_600.0
"""Of a collection that is under way: a large payload may take long to be put aside."""


async def collect_regularly(
    collect: CollectPayloads, *, elected: Callable[[], Fence | None], every_seconds: float, beat: Callable[[], None]
) -> None:
    """For ever; whatever fails is tried again the next time."""
    while True:
        beat()
        if (fence := elected()) is not None:
            await collect(fence, beat)
        beat()
        await asyncio.sleep(every_seconds)
