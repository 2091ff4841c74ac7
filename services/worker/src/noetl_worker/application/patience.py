"""How long a worker waits for a store or a service that is away: work that is done is not given up for an outage."""

from __future__ import annotations

from typing import Final

PATIENCE_SECONDS: Final = 120.0
"""Meanwhile heartbeats keep the claim; whoever takes the claim away, ends the waiting too."""
_FIRST_PAUSES: Final = (0.05, 0.2, 0.8, 2.0)
_LONGEST_PAUSE: Final = 5.0


def pauses(patience_seconds: float = PATIENCE_SECONDS) -> tuple[float, ...]:
    """Between one try and the next: short ones first, and so many that the patience is used up."""
    chosen: list[float] = []
    left = patience_seconds
    while left > 0:
        pause = _FIRST_PAUSES[len(chosen)] if len(chosen) < len(_FIRST_PAUSES) else _LONGEST_PAUSE
        chosen.append(min(pause, left))
        left -= pause
    return tuple(chosen)
