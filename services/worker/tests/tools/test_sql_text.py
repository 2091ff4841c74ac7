"""Where statements end: never inside quotes, dollar quotes or comments, and nothing of them is lost."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noetl_worker.tools.sql_text import (
    first_keyword,
    is_empty,
    quoted_name,
    quoted_text,
    split_statements,
    table_name,
    without_comments,
)

SAFE = st.text(alphabet="abc 123,*()=\n\té", min_size=1, max_size=12)
ANYTHING = st.text(alphabet="ab;'\"$-/*\\\n e", max_size=12)
TAGS = st.sampled_from(["$$", "$a$", "$fn_1$", "$été$"])


@st.composite
def pieces(draw: st.DrawFn) -> str:
    """A part of a statement that may hold semicolons, none of which ends the statement."""
    match draw(st.integers(0, 6)):
        case 0:
            return "'" + draw(ANYTHING).replace("'", "''").replace("\\", "") + "'"
        case 1:
            return '"' + draw(ANYTHING).replace('"', '""') + '"'
        case 2:
            tag = draw(TAGS)
            return f"{tag}{draw(ANYTHING).replace('$', '')}{tag}"
        case 3:
            return "--" + draw(ANYTHING).replace("\n", "") + "\n"
        case 4:
            return "/*" + draw(ANYTHING).replace("*", "").replace("/", "") + "*/"
        case 5:
            return "E'" + draw(ANYTHING).replace("\\", "\\\\").replace("'", "\\'") + "'"
        case _:
            return draw(SAFE)


statements = st.lists(pieces(), max_size=5).map(lambda parts: " " + " ".join(["select", *parts]))


@given(st.lists(statements, min_size=1, max_size=5), st.sampled_from([";", " ; ", ";\n", ";;", "; -- ;\n;"]))
def test_what_was_joined_comes_apart_again(written: list[str], separator: str) -> None:
    assert split_statements(separator.join(written)) == [one.strip() for one in written]


@given(st.text(alphabet="ab;'\"$-/*\\\n e", max_size=60))
def test_no_text_is_too_strange_and_no_character_is_lost(sql: str) -> None:
    found = split_statements(sql)

    position = 0
    for statement in found:
        position = sql.index(statement, position) + len(statement)
        assert not is_empty(statement)
        assert split_statements(statement) == [statement]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("", []),
        (" ;; -- nothing\n; /* at ; all */", []),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("do $do$ begin; perform $$;$$; end $do$; select 1", ["do $do$ begin; perform $$;$$; end $do$", "select 1"]),
        ("select a$b$; select c$b$", ["select a$b$", "select c$b$"]),
        ("select €$b$; select ·$b$", ["select €$b$", "select ·$b$"]),
        ("select €e'\\'; select '\\'", ["select €e'\\'", "select '\\'"]),
        ("select $€·1$ ; $€·1$; select 1", ["select $€·1$ ; $€·1$", "select 1"]),
        ("select $1; select $2", ["select $1", "select $2"]),
        (r"select E'\';'; select '\'; x", [r"select E'\';'", r"select '\'", "x"]),
        ("select name_e';'; x", ["select name_e';'", "x"]),
        ("/* a /* b ; */ ; */ select 1; x", ["/* a /* b ; */ ; */ select 1", "x"]),
        ("select 'open; still", ["select 'open; still"]),
        ("select $x$ open; still", ["select $x$ open; still"]),
        ("select 1 /* open; still", ["select 1 /* open; still"]),
        ("(", ["("]),
    ],
)
def test_the_corners(sql: str, expected: list[str]) -> None:
    assert split_statements(sql) == expected


def test_a_megabyte_is_split_in_one_pass() -> None:
    hostile = [
        "e'" + "\\'a" * 300_000,
        "$a$ " * 250_000,
        "/*" * 500_000,
        "--\n" * 300_000,
        "'" * 1_000_001,
        ";" * 900_000,
    ]
    started = time.process_time()

    for sql in hostile:
        split_statements(sql)

    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("select 1", "SELECT"),
        ("-- why\n ( /* how */ (values (1)))", "VALUES"),
        ("With x as (select 1) insert into t select * from x", "WITH"),
        ("  ", ""),
        ("1", ""),
    ],
)
def test_the_first_word_of_a_statement(statement: str, word: str) -> None:
    assert first_keyword(statement) == word


def test_words_in_texts_and_comments_are_not_words_of_the_statement() -> None:
    assert without_comments("update t set a = 'x returning y' -- returning\n").split() == [
        "update",
        "t",
        "set",
        "a",
        "=",
    ]


def test_names_and_texts_are_quoted_whatever_is_in_them() -> None:
    assert quoted_name('a"b') == '"a""b"'
    assert quoted_text("it's") == "'it''s'"


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("Orders", ("orders",)),
        ("sales.Orders", ("sales", "orders")),
        ('"Sales"."My.Orders"', ("Sales", "My.Orders")),
        ('"a""b"', ('a"b',)),
        (" ", ()),
    ],
)
def test_the_parts_of_a_table_name(written: str, parts: tuple[str, ...]) -> None:
    assert table_name(written) == parts
