"""Values that every row of a frame makes: immutable as others are, which the type checker sees to and nobody else.

A frozen dataclass sets its fields through `object.__setattr__`, one by one: it takes four times as long to make.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

__all__ = ["light_value"]

if TYPE_CHECKING:
    from dataclasses import dataclass as light_value
else:

    def light_value(*, frozen: bool, **options: Any) -> Callable[[type], type]:
        """As `dataclass`; equal ones have the same hash, as if they were frozen."""
        return dataclass(unsafe_hash=frozen, **options)
