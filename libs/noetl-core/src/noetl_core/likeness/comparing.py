"""Compares runs: what differs between two that nobody disturbed is the playbook's own doing, and asks for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from noetl_core.canonical import JsonValue, encode, sha256_hex
from noetl_core.likeness.accounts import FRAME, Account
from noetl_core.values import dataclass

VARIES: Final = "<varies>"
"""Stands in an expectation for what was different in two undisturbed runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as in the undisturbed runs; None is absence."""

    where: str
    expected: Any
    found: Any

    def to_json(self) -> dict[str, JsonValue]:
        """For whoever reads it with a program."""
        return {"where": self.where, "expected": self.expected, "found": self.found}


def expectation(runs: Sequence[Account]) -> Account:
    """What undisturbed runs have in common."""
    expected = dict(runs[0])
    for other in runs[1:]:
        expected = {name: _common(expected.get(name), other.get(name)) for name in {**expected, **other}}
    return expected


def varying(expected: Account) -> list[str]:
    """The places at which undisturbed runs differ."""
    return sorted(where for name, value in expected.items() for where in _marks(name, value))


def differences(expected: Account, found: Account) -> list[Difference]:
    """What a run has told differently. Single frames count only where both runs have cut the rows alike."""
    names = sorted({*expected, *found})
    return [
        one
        for name in names
        if not (name.startswith(FRAME) and (name not in expected or name not in found))
        for one in _compare(name, expected.get(name), found.get(name))
    ]


def digest(expected: Account, found: Account) -> str:
    """A checksum of what a run has told, but for what varies: equal for runs that are alike."""
    told = {name: _masked(value, found.get(name)) for name, value in expected.items() if not name.startswith(FRAME)}
    more = {name: value for name, value in found.items() if name not in expected and not name.startswith(FRAME)}
    return sha256_hex(encode({"told": told, "more": more}))


def _common(left: JsonValue, right: JsonValue) -> Any:
    if left == right:
        return left
    if isinstance(left, dict) and isinstance(right, dict):
        return {name: _common(left.get(name), right.get(name)) for name in {**left, **right}}
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        return [_common(one, other) for one, other in zip(left, right, strict=True)]
    return VARIES


def _marks(where: str, value: JsonValue) -> Iterator[str]:
    if value == VARIES:
        yield where
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _marks(f"{where}.{name}", each)
    elif isinstance(value, list):
        for number, each in enumerate(value):
            what = each.get("event", number) if isinstance(each, dict) else number
            yield from _marks(f"{where}.{what}", each)


def _compare(where: str, expected: JsonValue, found: JsonValue) -> Iterator[Difference]:
    if expected in (VARIES, found):
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in sorted({*expected, *found}):
            yield from _compare(f"{where}.{name}", expected.get(name), found.get(name))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for one, other in zip(expected, found, strict=True):
            what = one.get("event", "") if isinstance(one, Mapping) else ""
            yield from _compare(f"{where}.{what}", one, other)
    else:
        yield Difference(where=where, expected=expected, found=found)


def _masked(expected: JsonValue, found: JsonValue) -> Any:
    if expected == VARIES:
        return VARIES
    if isinstance(expected, dict) and isinstance(found, dict):
        return {name: _masked(expected.get(name), found.get(name)) for name in {**expected, **found}}
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        return [_masked(one, other) for one, other in zip(expected, found, strict=True)]
    return found
