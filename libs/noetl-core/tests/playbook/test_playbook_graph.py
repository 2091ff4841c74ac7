import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from noetl_core.playbook.graph import Graph, build_graph, is_error_arc
from noetl_core.playbook.model import Arc, Next, Playbook, Step, Tool, ToolKind


def playbook(arcs: dict[str, list[str]], *, entry: str | None = None, final_step: str | None = None) -> Playbook:
    steps = {
        name: Step(
            name=name,
            tool=Tool(kind=ToolKind.NOOP),
            next=Next(arcs=tuple(Arc(step=target) for target in targets)),
        )
        for name, targets in arcs.items()
    }
    return Playbook(name="p", path="p", entry_step=entry or next(iter(arcs)), final_step=final_step, steps=steps)


def test_a_diamond_joins() -> None:
    graph = build_graph(playbook({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []}))

    assert graph.predecessors == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
    assert graph.reaches("a", "d")
    assert graph.reaches("b", "d")
    assert not graph.reaches("b", "c")
    assert not graph.reaches("d", "a")
    assert not graph.reaches("d", "d")
    assert list(graph.reachable("a")) == ["b", "c", "d"]
    assert graph.any_reaches(["b", "c"], "d")
    assert not graph.any_reaches([], "d")
    assert graph.unreachable == ()


def test_an_arc_to_a_step_on_the_way_leads_back() -> None:
    graph = build_graph(playbook({"a": ["b"], "b": ["c", "b"], "c": ["a", "d"], "d": []}))

    assert graph.back == {"a": (), "b": ("b",), "c": ("a",), "d": ()}
    assert graph.forward == {"a": ("b",), "b": ("c",), "c": ("d",), "d": ()}
    assert graph.is_back_edge("c", "a")
    assert not graph.is_back_edge("c", "d")
    assert not graph.reaches("c", "a")
    assert graph.predecessors["a"] == ()


def test_written_order_decides_which_of_two_arcs_leads_back() -> None:
    first = build_graph(playbook({"a": ["b", "c"], "b": ["c"], "c": ["b"]}))
    second = build_graph(playbook({"a": ["c", "b"], "b": ["c"], "c": ["b"]}))

    assert (first.is_back_edge("b", "c"), first.is_back_edge("c", "b")) == (False, True)
    assert (second.is_back_edge("b", "c"), second.is_back_edge("c", "b")) == (True, False)


def test_steps_that_nothing_leads_to_are_known_and_do_not_count_as_predecessors() -> None:
    graph = build_graph(playbook({"z": ["b"], "a": ["b"], "b": [], "y": ["z"]}, entry="a"))

    assert graph.unreachable == ("z", "y")
    assert graph.predecessors["b"] == ("a",)
    assert graph.reaches("y", "b")


def test_the_final_step_is_reachable_and_leads_nowhere() -> None:
    graph = build_graph(playbook({"a": [], "z": ["a"]}, final_step="z"))

    assert graph.unreachable == ()
    assert graph.forward["z"] == ()
    assert not graph.reaches("z", "a")


def test_two_arcs_to_the_same_step_are_one_edge() -> None:
    graph = build_graph(playbook({"a": ["b", "b"], "b": []}))

    assert graph.predecessors["b"] == ("a",)


def test_thousands_of_steps_in_a_row_are_no_problem() -> None:
    count = 10_000
    graph = build_graph(playbook({f"s{i}": [f"s{i + 1}"] if i + 1 < count else [] for i in range(count)}))

    assert graph.reaches("s0", f"s{count - 1}")
    assert not graph.reaches(f"s{count - 1}", "s0")


@st.composite
def any_arcs(draw: st.DrawFn) -> dict[str, list[str]]:
    names = [f"s{i}" for i in range(draw(st.integers(1, 8)))]
    return {name: draw(st.lists(st.sampled_from(names), max_size=5)) for name in names}


@given(any_arcs())
@settings(deadline=None, derandomize=True)
def test_edges_agree_with_a_recursive_search(arcs: dict[str, list[str]]) -> None:
    graph = build_graph(playbook(arcs))
    forward: set[tuple[str, str]] = set()
    back: set[tuple[str, str]] = set()
    seen: set[str] = set()

    def visit(step: str, way: tuple[str, ...]) -> None:
        seen.add(step)
        for target in arcs[step]:
            if target in way:
                back.add((step, target))
            else:
                forward.add((step, target))
                if target not in seen:
                    visit(target, (*way, target))

    visit("s0", ("s0",))

    assert set(graph.unreachable) == arcs.keys() - seen
    assert {(step, target) for step in seen for target in graph.forward[step]} == forward
    assert {(step, target) for step in seen for target in graph.back[step]} == back
    assert {(source, step) for step in arcs for source in graph.predecessors[step]} == forward
    _assert_reach_is_the_closure(graph, arcs)


def _assert_reach_is_the_closure(graph: Graph, arcs: dict[str, list[str]]) -> None:
    for start in arcs:
        reached: set[str] = set()
        pending = list(graph.forward[start])
        while pending:
            step = pending.pop()
            if step not in reached:
                reached.add(step)
                pending.extend(graph.forward[step])
        assert {step for step in arcs if graph.reaches(start, step)} == reached
        assert start not in reached, "forward edges never come back"


@pytest.mark.parametrize(
    ("when", "is_error"),
    [
        (True, False),
        (False, False),
        ("{{ error }}", True),
        ("error.kind == 'timeout'", True),
        ("{{ output.error.retryable }}", True),
        ("output['status'] == 'error'", True),
        ("{{ output.status != 'ok' }}", True),
        ("{{ fanin.status == 'partial' }}", True),
        ("{{ event.name == 'call.error' }}", True),
        ("event.name in ['call.error', 'x']", True),
        ("{{ output.data.status == 'error' }}", False),
        ("{{ output.data.error }}", False),
        ("{{ my.error }}", False),
        ("{{ event.name == 'call.done' }}", False),
        ("{{ output }}", False),
    ],
)
def test_an_arc_that_speaks_of_failure_is_an_error_arc(when: str | bool, is_error: bool) -> None:
    assert is_error_arc(Arc(step="x", when=when)) is is_error


def test_a_step_or_variable_called_error_is_not_the_failure() -> None:
    assert not is_error_arc(Arc(step="x", when="{{ error.kind }}"), shadowed={"error"})
    assert is_error_arc(Arc(step="x", when="{{ error.kind or output.status }}"), shadowed={"error"})
