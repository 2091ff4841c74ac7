import pytest
from noetl_core.playbook.expressions import MAX_CONFIG_CHARACTERS, TemplateFailed, render

DATA: dict[str, object] = {"text": "abc", "rows": [1, 2, 3], "box": {"a": 1}, "big": "x" * 100_000}


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ text._x }}",
        "{{ (1).real }}",
        "{{ rows.append }}",
        "{{ box.pop }}",
        "{{ box.update }}",
        "{{ text.encode }}",
        "{{ text.format_map }}",
        "{{ text | attr('__class__') }}",
        "{{ [''] | map(attribute='__class__') | first }}",
        "{{ namespace(a=1)._Namespace__attrs }}",
        "{{ nobody._undefined_obj }}",
    ],
)
def test_nothing_of_python_can_be_seen(template: str) -> None:
    assert render(template, DATA) is None


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ rows.append(4) }}",
        "{{ box.update({'a': 2}) }}",
        "{{ box.setdefault('b', 2) }}",
        "{{ '{0.__class__}'.format(text) }}",
        "{{ '{0[a]}'.format(box) }}",
        "{{ (1).to_bytes(10, 'big') }}",
        "{{ range.__init__.__globals__['x']() }}",
        "{{ cycler.__init__.__globals__.os.system('x') }}",
        "{{ lipsum() }}",
    ],
)
def test_nothing_of_python_can_be_called(template: str) -> None:
    with pytest.raises(TemplateFailed):
        render(template, DATA)
    assert DATA["rows"] == [1, 2, 3]
    assert DATA["box"] == {"a": 1}


DOUBLED = "{% set a = [a | list, a, a[:]] %}"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' * 10**9 }}",
        "{{ 'a' * 1000000000 }}",
        "{{ 10**9 * [1] }}",
        "{{ [big] * 100000 }}",
        "{{ 9 ** 9 ** 9 ** 9 ** 9 }}",
        "{{ 2 ** 100000 }}",
        "{% set x = 2 ** 10000 %}{{ x * x }}",
        "{% set x = 2 ** 16383 %}{{ x + x + x }}",
        "{{ range(100001) }}",
        "{{ range(0, 1000000000, 2) }}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a'.ljust(1000000000) }}",
        "{{ 'a'.zfill(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%.1000000000f' | format(1) }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ ('%s' * 1000) % ((big,) * 1000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ 1 | round(1000000000) }}",
        "{{ 1 | round(1000000000, 'ceil') }}",
        "{{ rows | batch(1000000000, 0) | list }}",
        "{{ rows | slice(1000000000) | list }}",
        "{{ 'a\nb' | indent(1000000000) }}",
        "{{ big | indent(big) | indent(big, true) | replace('x', big) }}",
        "{{ big | replace('x', big) }}",
        "{{ big.replace('x', big) }}",
        "{{ big | replace('', big) }}",
        "{{ big.join(range(100000) | map('string')) }}",
        "{{ range(100000) | join(big) }}",
        "{{ big | wordwrap(1, wrapstring=big) }}",
        "{{ ('http://a.b ' * 1000) | urlize(rel=big) }}",
        "{{ [[rows] * 1000] * 100 * 100 | sum(start=[]) }}",
        "{{ [rows * 1000] * 1000 | sum(start=[]) }}",
        "{{ rows | tojson(indent=1000000) }}",
        "{{ range(100000) | map('center', 100000) | list }}",
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set x %}{% for i in range(100000) %}" + "y" * 1000 + "{% endfor %}{% endset %}",
        "{% for i in range(100000) %}{{ big }}{% endfor %}",
        "{% set a = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' %}" + "{% set a = a ~ a %}" * 40,
        "{% set a = 'x' %}" + "{% set a = a + a %}" * 40,
        "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a }}",
        "{% set a = [1] %}" + "{% set a = [a, a] %}" * 60 + "{{ a == [a] }}",
        "{% set a = [1] %}" + DOUBLED * 40 + "{{ a }}",
        "{% set a = {} %}" + "{% set a = dict(a=a, b=a) %}" * 60 + "{{ a | tojson }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    ],
)
def test_a_template_cannot_make_more_than_it_may(template: str) -> None:
    with pytest.raises(TemplateFailed):
        render(template, DATA)


def test_text_has_a_bound_that_the_caller_may_move() -> None:
    long = {"x": "y" * 1_048_577}

    with pytest.raises(TemplateFailed, match="longer than 1048576"):
        render("-{{ x }}", long)
    assert render("-{{ x }}", long, max_text=2_000_000) == "-" + "y" * 1_048_577


def test_more_text_is_no_reason_for_more_turns() -> None:
    endless = "{% for a in range(3000) %}{% for b in range(3000) %}{% endfor %}{% endfor %}"

    with pytest.raises(TemplateFailed, match="too many turns"):
        render(endless, {}, max_text=MAX_CONFIG_CHARACTERS)


def test_native_values_of_any_size_pass_through() -> None:
    rows = [{"id": number, "name": "n"} for number in range(200_000)]

    assert render("{{ rows }}", {"rows": rows}) == rows
    assert render("{{ rows | map(attribute='id') | max }}", {"rows": rows}) == 199_999
    assert render("{{ {'rows': rows} }}", {"rows": rows}) == {"rows": rows}


def test_ordinary_loops_are_not_hindered() -> None:
    template = "{% for r in rows %}{{ r.id }},{% endfor %}"

    assert len(str(render(template, {"rows": [{"id": 1}] * 50_000}))) == 100_000
