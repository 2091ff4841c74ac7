from __future__ import annotations

import dataclasses
import pickle

import pytest
from noetl_core.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True)
class Checked:
    x: int

    def __post_init__(self) -> None:
        if self.x < 0:
            raise ValueError("negative")


def test_equal_values_are_one_key() -> None:
    assert Point(x=1, tags=("a",)) == Point(x=1, tags=("a",))
    assert len({Point(x=1), Point(x=1), Point(x=2)}) == 2


def test_a_copy_differs_in_what_is_named_and_the_original_stays() -> None:
    first = Point(x=1, y=2, tags=("a",))

    assert replace(first, y=3) == Point(x=1, y=3, tags=("a",))
    assert first == Point(x=1, y=2, tags=("a",))
    assert replace(first) == first


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError):
        replace(Point(x=1), z=1)  # type: ignore[call-arg]


def test_values_of_other_makes_are_copied_in_their_own_way() -> None:
    assert replace(Frozen(1), y=2) == Frozen(1, 2)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), x=-1)


def test_values_can_be_sent_to_other_processes() -> None:
    sent = pickle.dumps(Point(x=1, tags=("a",)))

    assert pickle.loads(sent) == Point(x=1, tags=("a",))  # noqa: S301 - it is our own
