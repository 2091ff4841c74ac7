"""Statements that change rows and, by what they say, nothing of the session in which they run. Pure."""

from __future__ import annotations

import re

_NAME = r'(?:[A-Za-z_]\w*|"[^"]*")'
_NAMES = rf"\(\s*+{_NAME}(?:\s*+,\s*+{_NAME})*+\s*+\)"


def _values(tag: str) -> str:
    """Literals, names and operators: a function would need parentheses, and so would a query.

    PostgreSQL takes whatever is not ASCII for a letter, after which a dollar belongs to the name.
    """
    literal = rf"""'[^'\\]*+' | (?<![\w$\u0080-\U0010ffff])\$(?P<{tag}>\w*+)\$.*?\$(?P={tag})\$"""
    return rf"""(?: [^()'"$\\/;-]++ | -(?!-) | /(?!\*) | {literal} )*+"""


_INSERT = re.compile(
    rf"""
    INSERT\s++INTO\s++{_NAME}(?:\.{_NAME})*+\s*+ (?:{_NAMES}\s*+)?+
    VALUES\s*+ (?:\({_values("of_row")}\)\s*+,?+\s*+)++
    (?:ON\s++CONFLICT\s*+(?:{_NAMES}\s*+)?+DO\s++{_values("of_conflict")})?+
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_CHANGE = re.compile(rf"(?:UPDATE|DELETE)\s{_values('of_change')}", re.VERBOSE | re.DOTALL | re.IGNORECASE)
"""Where a literal may end elsewhere (a backslash in it), or where there are comments, it is not sure."""


def changes_rows_alone(statement: str) -> bool:
    """Whether it is sure that a statement gives no rows, and that nothing is set, locked or listened to with it.

    What the database itself does then, in triggers and defaults, its text does not say.
    """
    if _INSERT.fullmatch(statement) is None and _CHANGE.fullmatch(statement) is None:
        return False
    return "returning" not in statement.lower()
