"""Rows of text as aligned lines."""

from collections.abc import Iterator, Sequence

from noetl_cli.shown.text import one_line


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Every column as wide as its widest cell; no spaces at the end of a line."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
