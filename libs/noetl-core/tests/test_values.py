from __future__ import annotations

import dataclasses
import pickle
from typing import NamedTuple

import pytest
from noetl_core.values import dataclass, maker, new_tuple, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    x: int
    y: int = 0
    tags: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: int
    y: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OddlyNamed:
    kind: str
    make: str = ""
    old: int = 0
    new: int = 0
    kept: bool = False


class Pair(NamedTuple):
    left: int
    right: int


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


def test_fields_may_have_any_name() -> None:
    first = OddlyNamed(kind="a", old=1)

    assert replace(first, new=2, kept=True) == OddlyNamed(kind="a", old=1, new=2, kept=True)
    assert maker(OddlyNamed)("a", "b", 1, 2, True) == OddlyNamed(kind="a", make="b", old=1, new=2, kept=True)


def test_a_name_that_is_no_field_is_refused() -> None:
    with pytest.raises(TypeError):
        replace(Point(x=1), z=1)  # type: ignore[call-arg]


def test_values_of_other_makes_are_copied_in_their_own_way() -> None:
    assert replace(Frozen(1), y=2) == Frozen(1, 2)
    with pytest.raises(ValueError, match="negative"):
        replace(Checked(1), x=-1)


def test_a_value_can_be_made_by_position_of_all_its_fields() -> None:
    assert maker(Point)(1, 2, ("a",)) == Point(x=1, y=2, tags=("a",))
    with pytest.raises(TypeError):
        maker(Point)(1, 2)
    assert new_tuple(Pair, (1, 2)) == Pair(left=1, right=2)


@pytest.mark.parametrize("kind", [Frozen, Checked])
def test_what_does_more_than_to_set_its_fields_is_not_made_by_position(kind: type) -> None:
    with pytest.raises(TypeError, match="more than to set its fields"):
        maker(kind)


def test_values_can_be_sent_to_other_processes() -> None:
    sent = pickle.dumps(Point(x=1, tags=("a",)))

    assert pickle.loads(sent) == Point(x=1, tags=("a",))  # noqa: S301 - it is our own
