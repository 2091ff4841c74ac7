"""How `noetl shards` spells what a replica owns."""

import pytest
from noetl_cli.commands.shards import ranges_text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], ""), ([7], "7"), ([3, 1, 2, 0, 7], "0-3,7"), ([0, 2, 4], "0,2,4"), (list(range(64)), "0-63")],
)
def test_neighbours_are_told_in_short(numbers: list[int], text: str) -> None:
    assert ranges_text(numbers) == text
