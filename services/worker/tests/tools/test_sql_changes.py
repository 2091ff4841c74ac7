"""Which statements change rows and nothing of their session, as far as their text says."""

from __future__ import annotations

import pytest
from noetl_worker.tools.sql_changes import changes_rows_alone


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO t VALUES (1)",
        "insert into public.rows (run, \"Id\") values ('it''s', -1), (DEFAULT, 2.5)",
        'INSERT INTO t (body) VALUES ($j${"call": "set_config(1)", "path": "C:\\\\"}$j$)',
        "INSERT INTO t VALUES ('2026-01-01'::date, ARRAY[1, 2], CURRENT_TIMESTAMP, 1/2)",
        "INSERT INTO t (a, b) VALUES (1, 2) ON CONFLICT (a) DO UPDATE SET b = EXCLUDED.b",
        "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING",
        "UPDATE t SET a = a + 1, b = 'f(x)' WHERE c = 3",
        "DELETE FROM t WHERE a > 3",
    ],
)
def test_values_and_names_alone_touch_nothing_else(statement: str) -> None:
    assert changes_rows_alone(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 1",
        "SET search_path = nowhere",
        "LISTEN news",
        "INSERT INTO t VALUES (set_config('a.b', 'c', false))",
        "INSERT INTO t VALUES (1, pg_advisory_lock (7))",
        "INSERT INTO t SELECT pg_advisory_lock(1)",
        "INSERT INTO t SELECT a FROM v",
        "WITH l AS (SELECT pg_advisory_lock(1)) INSERT INTO t VALUES (1)",
        "INSERT INTO t VALUES ((SELECT pg_advisory_lock(1)))",
        "INSERT INTO t VALUES (1) RETURNING set_config('a.b', 'c', false)",
        "INSERT INTO t VALUES (1) RETURNING a",
        "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET b = set_config('a.b', 'c', false)",
        "UPDATE t SET a = set_config('a.b', 'c', false)",
        "DELETE FROM t WHERE pg_try_advisory_lock(a)",
        # Where a literal ends depends on the server's settings, or on what a comment hides.
        "INSERT INTO t VALUES ('\\', set_config('a.b', 'c', false), ' ')",
        "INSERT INTO t VALUES (E'\\'', set_config('a.b', 'c', false), ' ')",
        "INSERT INTO t VALUES (1 /* ' */, set_config('a.b', 'c', false) /* ' */)",
        "INSERT INTO t VALUES (1 -- '\n, set_config('a.b', 'c', false) -- '\n)",
        "INSERT INTO t VALUES (a$j$, set_config('a.b', 'c', false), $j$ $j$)",
        "UPDATE t SET a = €$j$ || set_config('a.b', 'c', false) || b$j$",
        "UPDATE t SET a = \u00a0$j$ || set_config('a.b', 'c', false) || b$j$",
        "INSERT INTO t VALUES (1); SELECT pg_advisory_lock(1)",
    ],
)
def test_whatever_could_touch_the_session_is_not_taken_for_harmless(statement: str) -> None:
    assert not changes_rows_alone(statement)


def test_long_statements_take_no_longer_than_their_text() -> None:
    assert not changes_rows_alone("INSERT INTO t VALUES (" + "'a', $$b$$, 1 - 2 / 3, " * 20_000 + "f(1))")
    assert not changes_rows_alone("INSERT INTO t VALUES (" + "$a$ " * 2_000)
