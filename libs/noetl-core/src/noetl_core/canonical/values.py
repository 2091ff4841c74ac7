"""What canonical JSON can carry, and the one way to say where a value cannot be carried."""

from __future__ import annotations

from typing import TypeAlias

from noetl_core.errors import NotCanonical

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
JsonObject: TypeAlias = "dict[str, JsonValue]"

MAX_SAFE_INTEGER = 2**53 - 1
"""Beyond it neighbouring integers share one double, which is all that a JSON number promises to be."""

MAX_DEPTH = 128
"""Fixed, so that what one process could write never overflows the stack of another that reads it."""


class Refused(Exception):
    """A refusal that collects its path from the inside out, so that success pays nothing for it."""

    def __init__(self, reason: str, *trail: str | int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail = list(trail)

    def located(self) -> NotCanonical:
        """The refusal as callers see it, its path a JSON pointer."""
        steps = (str(step).replace("~", "~0").replace("/", "~1") for step in reversed(self.trail))
        pointer = "".join(f"/{step}" for step in steps)
        return NotCanonical(self.reason, path=pointer.encode(errors="backslashreplace").decode())


def name_of(key: object) -> str:
    """A member's name; other keys are refused, since text made of them could meet a name that is there."""
    if not isinstance(key, str):
        short = isinstance(key, int) and abs(key) <= MAX_SAFE_INTEGER
        raise Refused(f"a key of type {type(key).__name__}", str(key) if short else "?")
    try:
        return without_surrogates(key)
    except Refused as refusal:
        refusal.trail.append(key)
        raise


def without_surrogates(text: str) -> str:
    """The text itself, if UTF-8 can carry it."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refused("a lone surrogate") from None
    return text


def deeper(depth: int) -> int:
    """The depth one level further in; this also ends values that contain themselves."""
    if depth == MAX_DEPTH:
        raise Refused(f"nesting of more than {MAX_DEPTH} levels")
    return depth + 1


def foreign(value: object) -> Refused:
    """Names the type, never the value: that may be a secret."""
    return Refused(f"a value of type {type(value).__name__}")
