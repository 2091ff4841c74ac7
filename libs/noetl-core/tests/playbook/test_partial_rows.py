"""Rows that are here in part answer as a list would, or say that something is missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.playbook.expressions import ValueWithheld, render
from noetl_core.playbook.partial_rows import PartialRows
from noetl_core.playbook.slices import cuts_of, rows_of
from noetl_core.playbook.views import NotInView

TOTAL = 20
ALL = [{"n": number} for number in range(TOTAL)]

bounds = st.none() | st.integers(-25, 25)


@given(starts=st.sets(st.sampled_from([0, 5, 10, 15])), start=bounds, stop=bounds)
def test_a_slice_is_that_of_the_list_or_missing(starts: set[int], start: int | None, stop: int | None) -> None:
    rows = PartialRows(TOTAL, {first: ALL[first : first + 5] for first in starts})
    wanted = range(TOTAL)[start:stop]

    if all(index - index % 5 in starts for index in wanted):
        assert rows[start:stop] == ALL[start:stop]
    else:
        with pytest.raises(NotInView):
            rows[start:stop]


@given(index=st.integers(-25, 25))
def test_a_row_is_that_of_the_list(index: int) -> None:
    rows = PartialRows(TOTAL, {0: ALL[:10], 10: ALL[10:]})
    if -TOTAL <= index < TOTAL:
        assert rows.lookup(index) == rows.lookup(str(index)) == ALL[index]
    else:
        with pytest.raises(KeyError):
            rows.lookup(index)


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ a.rows | length }}", TOTAL),
        ("{{ a.rows | count }}", TOTAL),
        ("{{ a.rows[:2] }}", ALL[:2]),
        ("{{ a.rows[-2:] | map(attribute='n') | list }}", [18, 19]),
        ("{{ (a.rows | first).n + (a.rows | last).n }}", 19),
        ("{{ a.rows[-1].n }}", 19),
        ("{{ a.rows[99].n }}", None),
        ("{% for row in a.rows[1:3] %}{{ row.n }},{% endfor %}", "1,2,"),
        ("{{ a.rows[1:3][0].n }}", 1),
    ],
)
def test_templates_read_little_of_a_list_that_is_here_in_part(template: str, value: Any) -> None:
    rows = PartialRows(TOTAL, {0: ALL[:5], 15: ALL[15:]})

    assert render(template, {"a": {"rows": rows}}) == value
    assert render(template, {"a": {"rows": ALL}}) == value


@pytest.mark.parametrize(
    "template",
    ["{{ a.rows }}", "{{ a.rows[4:6] }}", "{{ a.rows[7].n }}", "{{ a.rows | list }}", "{{ a.rows | tojson }}"],
)
def test_what_is_not_here_is_never_taken_for_nothing(template: str) -> None:
    with pytest.raises(ValueWithheld):
        render(template, {"a": {"rows": PartialRows(TOTAL, {0: ALL[:5]})}})


@pytest.mark.parametrize(
    ("template", "cuts"),
    [
        ("{{ a.rows[:10] }}", {("a", "rows"): {(None, 10)}}),
        ("{{ a.rows[2:4] | length + a.rows[-3:][0].x }}", {("a", "rows"): {(2, 4), (-3, None)}}),
        ("{{ a.rows[-1].x }}", {("a", "rows"): {(-1, None)}}),
        ("{{ a.rows[-3].x }}", {("a", "rows"): {(-3, -2)}}),
        ("{{ a.rows | first }}", {("a", "rows"): {(0, 1)}}),
        ("{{ (a.rows | last).x }}", {("a", "rows"): {(-1, None)}}),
        ("{{ a.rows | length > 3 }}", {("a", "rows"): {(0, 0)}}),
        ("{{ a[:1] }}", {("a",): {(None, 1)}}),
        ("{% for row in a.rows[:b.n] %}{{ row }}{% endfor %}", {}),
        ("{{ a.rows[::2] }}", {}),
        ("{{ a.rows[:2] + a.rows }}", {}),
        ("{{ a.rows[i].x }}", {}),
        ("{{ a.rows[:2] if a.rows else 0 }}", {}),
        ("{{ a.rows.index(a.rows[0]) }}", {}),
        ("no template", {}),
        ("{{ not a template", {}),
    ],
)
def test_what_a_template_reads_of_a_list_is_known_before(template: str, cuts: Any) -> None:
    assert cuts_of(template) == cuts


@given(start=bounds, stop=bounds, total=st.integers(0, 30))
def test_a_cut_is_a_range_of_rows(start: int | None, stop: int | None, total: int) -> None:
    first, end = rows_of((start, stop), total)
    assert list(range(first, end)) == list(range(total))[start:stop]
