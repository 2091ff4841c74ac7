"""The few forms of Markdown that the pages have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

NOTE = "<!-- Made by `make docs` from the code. Change the code, not this page. -->"


def page(title: str, introduction: str, *blocks: str) -> str:
    """A whole page."""
    return "\n\n".join([f"# {title}", NOTE, introduction.strip(), *(block.strip() for block in blocks if block)]) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells may have anything in them."""
    return "\n".join(_lines(head, rows))


def code(text: str) -> str:
    """A name as code, or nothing."""
    return f"`{text}`" if text else ""


def codes(names: Sequence[str]) -> str:
    """Names as code, between commas."""
    return ", ".join(map(code, names))


def _lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(_cell(cell) for cell in row)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
