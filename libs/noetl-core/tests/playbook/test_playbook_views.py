import pytest
from noetl_core.playbook.expressions import render
from noetl_core.playbook.views import CallView, DataView, OutputView, RawView, StepView


def names(result: object, **envelope: object) -> dict[str, object]:
    return {
        "x": StepView(result),
        "steps": {"x": StepView(result)},
        "result": DataView(result),
        "output": OutputView(envelope={"status": "ok", **envelope}, result=result),
    }


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ output.status }}", "ok"),
        ("{{ output.data }}", {"a": 1, "status": "mine"}),
        ("{{ output.data.a }}", 1),
        ("{{ output.data.status }}", "mine"),
        ("{{ output.data.top }}", 2),
        ("{{ output.top }}", 2),
        ("{{ output.a }}", 1),
        ("{{ output.error }}", None),
        ("{{ output.error.kind }}", None),
        ("{{ output.nothing }}", None),
        ("{{ output }}", {"status": "ok", "data": {"a": 1, "status": "mine"}}),
        ("{{ output.data.get('a') }} {{ output.data.get('z', 9) }}", "1 9"),
        ("{{ output.data.keys() | list }}", ["a", "status"]),
        ("{{ output.data | length }}", 2),
        ("{{ result }}", {"a": 1, "status": "mine"}),
        ("{{ result.top }}", 2),
        ("{{ x }}", {"data": {"a": 1, "status": "mine"}, "top": 2}),
        ("{{ x.a }}", None),
        ("{{ x.data.a }}", 1),
        ("{{ x.result.top }}", 2),
        ("{{ steps.x.top }}", 2),
        ("{{ steps }}", {"x": {"data": {"a": 1, "status": "mine"}, "top": 2}}),
        (
            "{{ [x, {'r': result}] }}",
            [{"data": {"a": 1, "status": "mine"}, "top": 2}, {"r": {"a": 1, "status": "mine"}}],
        ),
        ("{% for key in x %}{{ key }},{% endfor %}", "data,top,"),
        ("{{ x == steps.x }}", True),
        ("{{ x is mapping }}", True),
    ],
)
def test_templates_see_the_call_and_its_result(template: str, value: object) -> None:
    assert render(template, names({"data": {"a": 1, "status": "mine"}, "top": 2})) == value


def test_an_index_goes_to_a_list_below_data() -> None:
    assert render("{{ output[0].id }} {{ output.data[0].id }}", names({"data": [{"id": 1}]})) == "1 1"
    assert render("{{ output.data[-1].id }}", names([{"id": 1}, {"id": 2}])) == 2
    assert render("{{ output.data[:1] }}", names([1, 2])) == [1]


@pytest.mark.parametrize("result", ["Hello", 5, [1, 2], None, False])
def test_a_result_that_is_no_map_is_its_own_data(result: object) -> None:
    for template in ("{{ x }}", "{{ x.data }}", "{{ x.result }}", "{{ output.data }}", "{{ result }}"):
        assert render(template, names(result)) == result


def test_methods_of_a_value_behind_a_view_can_be_called() -> None:
    assert (
        render("{{ x.upper() }} {{ x.data.title() }} {{ result.center(7) }}", names("hello")) == "HELLO Hello  hello "
    )


def test_a_failure_has_an_error() -> None:
    seen = names(None, status="error", error={"kind": "timeout"})

    assert render("{{ output.error.kind }} {{ output.status }}", seen) == "timeout error"


PAGED = {"status_code": 200, "data": [{"n": 1}, {"n": 2}, {"n": 3}]}


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ output.data.status_code }}", 200),
        ("{{ output.data }}", PAGED),
        ("{{ output.data[1].n }}", 2),
        ("{{ output[1].n }}", 2),
        ("{% for one in output.data %}{{ one.n }}{% endfor %}", "123"),
        ("{% for one in output %}{{ one.n }}{% endfor %}", "123"),
        ("{{ output.data | length }}", 3),
        ("{{ output.data | map(attribute='n') | list }}", [1, 2, 3]),
        ("{{ output.data | selectattr('n', 'gt', output.data[0].n) | map(attribute='n') | sum }}", 5),
        ("{{ output.data[1:] | length }}", 2),
        ("{{ output.data | list | length }}", 3),
    ],
)
def test_where_output_data_is_the_whole_result_items_are_those_of_a_list_below_it(template: str, value: object) -> None:
    seen = {"output": CallView(envelope={"status": "ok"}, result=PAGED)}

    assert render(template, seen) == value


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{ output.data[0].n }}", 1),
        ("{{ output[0].n }}", 1),
        ("{% for one in output %}{{ one.n }}{% endfor %}", "123"),
        ("{{ output.n }}", None),
        ("{{ output }}", PAGED),
    ],
)
def test_the_raw_result_is_indexed_and_gone_through_in_the_same_way(template: str, value: object) -> None:
    assert render(template, {"output": RawView(PAGED)}) == value


def test_without_a_list_below_it_a_map_is_gone_through_by_its_keys() -> None:
    seen = {"output": CallView(envelope={"status": "ok"}, result={"a": 1, "data": {"b": 2}})}

    assert render("{% for key in output.data %}{{ key }} {% endfor %}", seen) == "a data "
    assert render("{{ output.data | length }}", seen) == 2
