"""What proofs read, over messages."""

from __future__ import annotations

import pytest
from noetl_contracts.mapping.evidence import column_page, column_page_message, event_place
from noetl_core.errors import InvalidInput
from noetl_core.ports.event_columns import ColumnPage


def test_columns_are_compared_on_from_any_version_that_somebody_may_have_stored() -> None:
    page = ColumnPage(findings=(), following=(7, -3))

    assert column_page(column_page_message(page)) == page


@pytest.mark.parametrize("token", ["7", "7/", "7/-", "7/--1", "7/x"])
def test_what_is_no_place_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        event_place(token)
