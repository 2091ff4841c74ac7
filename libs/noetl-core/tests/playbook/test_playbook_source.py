import pytest
from noetl_core.errors import PlaybookInvalid, Problem
from noetl_core.playbook.positions import locate
from noetl_core.playbook.source import MAX_BYTES, MAX_DEPTH, format_path, read_source


def refusal(document: str | bytes) -> Problem:
    with pytest.raises(PlaybookInvalid) as refused:
        read_source(document)
    return refused.value.problems[-1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("True", True),
        ("false", False),
        ("~", None),
        ("", None),
        ("2024-05-01", "2024-05-01"),
        ("2024-05-01T10:00:00Z", "2024-05-01T10:00:00Z"),
        ("12:30:45", "12:30:45"),
        ("00501", "00501"),
        ("1_000", "1_000"),
        ("42", 42),
        ("-0x1F", "-0x1F"),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.5e3", 1500.0),
        ("1e3", 1000.0),
        ("-.5", -0.5),
        ("1.2.3", "1.2.3"),
        ('"42"', "42"),
        ("! 42", "42"),
        ("!!str 42", "42"),
        ("!!int 42", 42),
        ("!!float 42", 42),
        ("!!timestamp 2024-05-01", "2024-05-01"),
        ("!!null null", None),
    ],
)
def test_an_unquoted_word_means_what_yaml_1_2_says(text: str, value: object) -> None:
    read = read_source(f"a: {text}\n").value

    assert read == {"a": value}
    assert isinstance(read, dict)
    assert type(read["a"]) is type(value)


def test_keys_are_text_exactly_as_written() -> None:
    assert read_source("on: 1\n404: 2\ntrue: 3\n~: 4\n1.50: 5\n").value == {
        "on": 1,
        "404": 2,
        "true": 3,
        "~": 4,
        "1.50": 5,
    }


def test_aliases_and_merge_keys_are_resolved() -> None:
    text = "base: &b {x: 1, y: 2}\nother: &o {y: 9, z: 3}\nmade: {<<: [*b, *o], y: 5}\nlist: [*b]\n'<<': text\n"

    assert read_source(text).value == {
        "base": {"x": 1, "y": 2},
        "other": {"y": 9, "z": 3},
        "made": {"x": 1, "y": 5, "z": 3},
        "list": [{"x": 1, "y": 2}],
        "<<": "text",
    }


def test_of_several_merged_maps_the_first_one_wins() -> None:
    assert read_source("a: {<<: [{k: 1}, {k: 2}]}").value == {"a": {"k": 1}}


def test_duplicate_keys_are_all_reported_and_the_rest_is_still_read() -> None:
    source = read_source("a: 1\nb:\n  - {c: 1, c: 2}\na: 2\n")

    assert source.value == {"a": 1, "b": [{"c": 1}]}
    assert [(p.code, p.path, p.line, p.column) for p in source.problems] == [
        ("playbook.duplicate_key", "b[0].c", 3, 12),
        ("playbook.duplicate_key", "a", 4, 1),
    ]


@pytest.mark.parametrize(
    ("document", "code", "words", "line"),
    [
        ("", "yaml_invalid", "empty", None),
        ("# nothing\n", "yaml_invalid", "empty", None),
        ("a: [1\n", "yaml_invalid", "flow sequence", 2),
        ("a: 1\n\tb: 2\n", "yaml_invalid", "not YAML", 2),
        ("a: 1\n---\nb: 2\n", "yaml_invalid", "more than one document", 2),
        ("a: *nobody\n", "yaml_invalid", "*nobody", 1),
        ("a: &a [*a]\n", "yaml_invalid", "*a", 1),
        ("a: {{ x }}\n", "yaml_invalid", "key must be text", 1),
        ("? [1]\n: 2\n", "yaml_invalid", "key must be text", 1),
        ("&k a: 1\nb: {*k : 2}\n", "yaml_invalid", "key must be text", 2),
        ("a: !!python/object/apply:os.system [ls]\n", "yaml_invalid", "not allowed", 1),
        ("a: !mine 5\n", "yaml_invalid", "not allowed", 1),
        ("a: !!binary aGk=\n", "yaml_invalid", "not allowed", 1),
        ("a: !!set {x}\n", "yaml_invalid", "not allowed", 1),
        ("a: !!int five\n", "yaml_invalid", "not an integer", 1),
        ("a: .nan\n", "yaml_invalid", "JSON", 1),
        ("a: -.inf\n", "yaml_invalid", "JSON", 1),
        ("a: 1e999\n", "yaml_invalid", "too large", 1),
        ("x: 1\na: 9007199254740992\n", "yaml_invalid", "2^53", 2),
        ("a: " + "9" * 5000, "yaml_invalid", "2^53", 1),
        ("a: {<<: 5}\n", "yaml_invalid", "merged", 1),
        ("a: 1\nb: \x00\n", "yaml_invalid", "U+0000", 2),
        ("a: \ud800\n", "yaml_invalid", "UTF-8", None),
        (b"a: \xff\n", "yaml_invalid", "UTF-8", None),
        ("a" * (MAX_BYTES + 1), "too_large", "larger", None),
        ("é" * (MAX_BYTES // 2 + 1), "too_large", "larger", None),
        (b"a" * (MAX_BYTES + 1), "too_large", "larger", None),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(
    document: str | bytes, code: str, words: str, line: int | None
) -> None:
    problem = refusal(document)

    assert problem.code == f"playbook.{code}"
    assert words in problem.message
    assert problem.line == line


def test_a_forgotten_quote_around_a_template_is_explained() -> None:
    assert refusal("a: {{ x }}").suggestion == 'a template must stand in quotes: "{{ … }}"'


def test_duplicate_keys_before_a_syntax_error_are_reported_with_it() -> None:
    with pytest.raises(PlaybookInvalid) as refused:
        read_source("a: 1\na: 2\nb: [\n")

    assert [problem.code for problem in refused.value.problems] == [
        "playbook.duplicate_key",
        "playbook.yaml_invalid",
    ]


def test_nesting_has_a_bound_that_is_not_the_stack() -> None:
    assert read_source("[" * MAX_DEPTH + "]" * MAX_DEPTH)
    for document in ("[" * (MAX_DEPTH + 1), "- " * (MAX_DEPTH + 1), "[" * 500_000):
        assert "nested deeper" in refusal(document).message


def test_aliases_cannot_nest_deeper_than_the_document_may() -> None:
    half = "[" * 60 + "]" * 60
    document = f"a: &a {half}\nb: {'[' * 60}*a{']' * 60}\n"

    assert "nested deeper" in refusal(document).message


def test_a_bomb_of_aliases_is_refused_before_it_goes_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]

    assert refusal("\n".join(lines)).code == "playbook.too_large"


def test_an_alias_of_a_long_text_counts_by_its_length() -> None:
    repeated = ", ".join(["*t"] * 20)

    assert refusal(f"a: &t {'x' * 100_000}\nb: [{repeated}]\n").code == "playbook.too_large"


def test_a_byte_order_mark_is_no_part_of_the_document() -> None:
    assert read_source("\ufeffa: 1").value == {"a": 1}
    assert read_source(b"\xef\xbb\xbfa: 1").value == {"a": 1}


def test_paths_are_written_as_people_write_them() -> None:
    assert format_path(("workflow", 1, "next", "arcs", 0, "when")) == "workflow[1].next.arcs[0].when"
    assert format_path(("input", "a b", "c-d")) == "input['a b'].c-d"
    assert format_path(()) == ""


def test_a_path_is_found_at_its_key_and_an_unwritten_one_at_what_is_around_it() -> None:
    text = "a:\n  - x: 1\n    y: |\n      one\n      two\n  - [5, 6]\nb: &b {c: 1}\nd: *b\n"

    found = locate(text, [("a", 0, "y"), ("a", 1, 1), ("d", "c"), ("nowhere",), ()])

    assert {path: (place.line, place.column) for path, place in found.items()} == {
        ("a", 0, "y"): (3, 5),
        ("a", 1, 1): (6, 9),
        ("d", "c"): (8, 1),
        ("nowhere",): (1, 1),
        (): (1, 1),
    }
    assert found[("a", 0, "y")].text_line == 4
