"""A tabular result is taken apart into rows and the rest, and put together again as it was."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_core.errors import Corrupt
from noetl_core.tabular import from_note, tabular

ROWS: list[Any] = [{"n": 1}, {"n": 2}]
STATEMENT = {"status": "success", "rows": ROWS, "row_count": 2}


@pytest.mark.parametrize(
    ("result", "places"),
    [
        (ROWS, ((),)),
        ({"rows": ROWS}, (("rows",),)),
        ({"status_code": 200, "data": ROWS, "body": ROWS}, (("data",), ("body",))),
        ({**STATEMENT, "command_0": STATEMENT}, (("rows",), ("command_0", "rows"))),
        (
            {"results": {"a": STATEMENT}, "_prev": STATEMENT, "a": STATEMENT, **STATEMENT},
            (("results", "a", "rows"), ("_prev", "rows"), ("a", "rows"), ("rows",)),
        ),
        ({"rows": [], "data": ROWS}, (("data",),)),
        ({"rows": ROWS, "others": [{"rows": ROWS}]}, (("rows",),)),
    ],
)
def test_the_same_rows_are_taken_out_wherever_they_stand(result: Any, places: Any) -> None:
    apart = tabular(result)

    assert apart is not None
    assert apart.rows is ROWS
    assert apart.places == places
    assert from_note(apart.note()).whole(ROWS) == result


@pytest.mark.parametrize(
    "result",
    [
        None,
        7,
        "rows",
        [],
        [1],
        [{}],
        [{"n": 1}, None],
        {},
        {"rows": []},
        {"rows": {"_chunks": []}},
        {"rows": 3, "data": "text"},
        {"items": ROWS},
    ],
)
def test_everything_else_is_no_table(result: Any) -> None:
    assert tabular(result) is None


def test_equal_rows_that_are_others_stay_where_they_are() -> None:
    """To Python 1 and true are equal, and so are tables of them."""
    apart = tabular({"rows": ROWS, "more": {"rows": [{"n": True}, {"n": 2}]}})

    assert apart is not None
    assert apart.rest == {"more": {"rows": [{"n": True}, {"n": 2}]}}


@pytest.mark.parametrize("note", [b"[]", b"{", b'{"at":3,"rest":1}', b'{"at":[3],"rest":1}'])
def test_a_note_that_says_nothing_is_corrupt(note: bytes) -> None:
    with pytest.raises(Corrupt):
        from_note(note)
