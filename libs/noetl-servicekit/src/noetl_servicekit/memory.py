"""How our processes collect garbage: rarely, because what a call allocates is gone with its answer."""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 100_000
"""An append of a hundred events makes some thousand objects, none of them in a cycle."""


def collect_rarely() -> None:
    """Leave alone what was loaded at the start, and look for cycles rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
