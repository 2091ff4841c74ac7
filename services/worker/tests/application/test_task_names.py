"""Names that are looked up one by one are those that are put together at once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_core.playbook.views import View
from noetl_worker.application.frame_names import FrameNames
from noetl_worker.application.iteration import Iteration
from noetl_worker.application.outcome import Outcome
from noetl_worker.application.scopes import FIXED_NAMES, PipelineScope
from noetl_worker.application.task_names import TaskNames

SPELLED = (
    *sorted(FIXED_NAMES),
    *("step", "results", "_prev", "_task", "_attempt", "iter", "loop", "loop_index", "_index", "_first", "_last"),
    *("_total", "frame", "_frame_index", "n", "m", "fetch", "error", "nobody"),
)
names = st.sampled_from(SPELLED)
maps = st.dictionaries(names, st.integers(0, 99), max_size=6)
outers = st.builds(
    lambda one, more: {**one, **more},
    maps,
    st.fixed_dictionaries({}, optional={"steps": maps | st.none(), "ctx": maps | st.just("no map")}),
)
frames = st.none() | st.builds(lambda a, b: FrameNames(beside=a, below_iter=b), maps, maps)


def iterations(outer: st.SearchStrategy[Iteration | None]) -> st.SearchStrategy[Iteration]:
    return st.builds(
        Iteration,
        iterator=names,
        value=st.integers(100, 199),
        index=st.integers(0, 2),
        total=st.just(3),
        scope=maps,
        outer=outer,
        frame=frames,
    )


scopes = st.builds(
    PipelineScope,
    outer=outers,
    variables=maps,
    step_scope=maps,
    results=maps,
    loaded=maps,
    previous=st.integers(),
    last_label=names,
    output=st.none() | st.builds(Outcome, data=st.integers()),
    iteration=st.none() | iterations(st.none() | iterations(st.none())),
)


def seen(value: object) -> Any:
    if isinstance(value, View):
        return type(value), value.whole()
    return {name: seen(one) for name, one in value.items()} if isinstance(value, dict) else value


@given(scopes)
def test_every_name_is_what_it_is_among_all_of_them(scope: PipelineScope) -> None:
    whole = scope.names(label="now", attempt=2)
    lazy = TaskNames(scope, label="now", attempt=2)

    assert {name: seen(lazy[name]) for name in SPELLED if name in lazy} == {
        name: seen(value) for name, value in whole.items()
    }
    assert set(lazy) == set(whole)
    assert len(lazy) == len(whole)
    assert {name for name in SPELLED if name in lazy} == set(whole), "also when all have been put together"
    assert {name: seen(value) for name, value in lazy.items()} == {name: seen(value) for name, value in whole.items()}


def test_a_name_is_put_together_once_and_what_is_none_is_not_there() -> None:
    lazy = TaskNames(PipelineScope(outer={"ctx": {"a": 1}}), label="now", attempt=1)

    assert lazy["ctx"] is lazy["ctx"]
    assert "nobody" not in lazy
    with pytest.raises(KeyError):
        lazy["nobody"]
