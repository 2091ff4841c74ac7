"""SQL as text: where one statement ends and the next begins, and what a statement starts with. Pure."""

from __future__ import annotations

import re

_LETTER = r"A-Za-z_\x80-\U0010FFFF"
"""Of names, as PostgreSQL counts them: everything beyond ASCII is one, whatever it means."""
_TOKEN = re.compile(
    rf"""
      (?P<end>;)
    | (?P<escaped>(?<![{_LETTER}0-9$])[eE]'(?:[^'\\]|\\.|'')*(?:'|\\?\Z))
    | (?P<text>'[^']*(?:'|\Z))
    | (?P<name>"[^"]*(?:"|\Z))
    | (?P<line_comment>--[^\n]*)
    | (?P<comment>/\*)
    | (?<![{_LETTER}0-9$])(?P<dollar>\$(?:[{_LETTER}][{_LETTER}0-9]*)?\$)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What a `;` may hide in. A doubled quote is two texts next to each other, which makes no difference here."""

_COMMENT_EDGE = re.compile(r"/\*|\*/")
_SPACE = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z))*")
_WORD = re.compile(r"[A-Za-z]+")


def split_statements(sql: str) -> list[str]:
    """The statements of a text, without the `;` between them; pieces without one are left out."""
    if ";" not in sql:  # and most begin with a word
        return [sql.strip()] if sql[:1].isalpha() or not is_empty(sql) else []
    pieces: list[str] = []
    start = position = 0
    while (token := _TOKEN.search(sql, position)) is not None:
        position = _end_of(sql, token)
        if token.lastgroup == "end":
            pieces.append(sql[start : token.start()])
            start = position
    pieces.append(sql[start:])
    return [piece.strip() for piece in pieces if not is_empty(piece)]


def is_empty(piece: str) -> bool:
    """Whether there is nothing but space and comments."""
    return _after_space(piece, 0) == len(piece)


def first_keyword(statement: str) -> str:
    """The word that a statement begins with, in capitals: `SELECT`, also for `(select …) union …`."""
    position = _after_space(statement, 0)
    while statement.startswith("(", position):
        position = _after_space(statement, position + 1)
    word = _WORD.match(statement, position)
    return "" if word is None else word.group().upper()


def without_comments(statement: str) -> str:
    """The words of a statement alone: comments are gone, and texts are emptied."""
    parts: list[str] = []
    start = position = 0
    while (token := _TOKEN.search(statement, position)) is not None:
        position = _end_of(statement, token)
        if token.lastgroup != "name":
            parts += [statement[start : token.start()], " "]
            start = position
    parts.append(statement[start:])
    return "".join(parts)


def quoted_name(name: str) -> str:
    """An identifier as it stands, whatever its letters."""
    return '"' + name.replace('"', '""') + '"'


def quoted_text(text: str) -> str:
    """A text literal; PostgreSQL and DuckDB take backslashes in it as they are."""
    return "'" + text.replace("'", "''") + "'"


def table_name(text: str) -> tuple[str, ...]:
    """The parts of `schema.table`; those without quotes are in lower case, as SQL has it."""
    parts: list[str] = []
    for plain, quoted in re.findall(r'([^".]+)|"((?:[^"]|"")*)"', text.strip()):
        parts.append(quoted.replace('""', '"') if quoted else plain.strip().lower())
    return tuple(parts)


def _after_space(piece: str, position: int) -> int:
    if piece[position : position + 1].isalpha():  # as most statements begin
        return position
    while True:
        skipped = _SPACE.match(piece, position)
        position = skipped.end() if skipped else position
        if not piece.startswith("/*", position):
            return position
        position = _end_of_comment(piece, position)


def _end_of(sql: str, token: re.Match[str]) -> int:
    if token.lastgroup == "comment":
        return _end_of_comment(sql, token.start())
    if token.lastgroup == "dollar":
        closing = sql.find(token.group(), token.end())
        return len(sql) if closing < 0 else closing + len(token.group())
    return token.end()


def _end_of_comment(sql: str, start: int) -> int:
    """Comments nest; one that is not closed goes on to the end."""
    depth, position = 1, start + 2
    while depth:
        edge = _COMMENT_EDGE.search(sql, position)
        if edge is None:
            return len(sql)
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return position
