import pytest
from noetl_core.playbook.references import condition_paths, referenced_paths


@pytest.mark.parametrize(
    ("template", "paths"),
    [
        ("no template", []),
        ("{{ output.data.risk > 1 and score['x'] }}", ["output.data.risk", "score.x"]),
        ("{{ a }} and {{ b.c }}", ["a", "b.c"]),
        ("{{ a.b | default(c.d) }}", ["a.b", "c.d"]),
        ("{{ rows[0].x }} {{ rows.1 }}", ["rows.0.x", "rows.1"]),
        ("{{ rows[-1].x }}", ["rows"]),
        ("{{ rows[i].x }}", ["rows", "i"]),
        ("{{ rows[i.j][k] }}", ["rows", "i.j", "k"]),
        ("{{ rows[1:2] }}", ["rows"]),
        ("{{ x.items() }}", ["x.items", "x"]),
        ("{{ x.get('key', d) }}", ["x.get", "x.key", "d"]),
        ("{{ x.get(k) }}", ["x.get", "x", "k"]),
        ("{{ x.name.upper() }}", ["x.name.upper", "x.name"]),
        ("{{ range(n) }} {{ now() }}", ["n"]),
        ("{{ range.x }}", ["range.x"]),
        ("{{ (a or b).c }}", ["a", "b"]),
        ("{{ [a.x, {'k': b.y}] }}", ["a.x", "b.y"]),
        ("{{ a if b else c }}", ["a", "b", "c"]),
        ("{% for i in xs.ys %}{{ i.a }}{{ loop.index }}{% endfor %}", ["xs.ys"]),
        ("{% set x = x.a %}{{ x.b }}", ["x.a", "x.b"]),
        ("{% set y = x.a %}{{ y.b }}", ["x.a"]),
        ("{% macro m(p) %}{{ p.q }}{{ z.w }}{% endmacro %}{{ m(1) }}", ["z.w"]),
        ("{{ a.true }} {{ true }} {{ none }}", ["a.true"]),
        ("{{ steps['a/b'].x }}", ["steps.a/b.x"]),
        ("{{ broken", []),
    ],
)
def test_the_constant_chains_from_free_names_are_known(template: str, paths: list[str]) -> None:
    assert referenced_paths(template) == {tuple(path.split(".")) for path in paths}


def test_conditions_are_read_without_their_braces_too() -> None:
    assert condition_paths("output.data.a > b") == {("output", "data", "a"), ("b",)}
    assert condition_paths("{{ output.data.a > b }}") == {("output", "data", "a"), ("b",)}
    assert condition_paths(True) == frozenset()
    assert condition_paths("") == frozenset()
    assert condition_paths("a b") == frozenset()
