"""A report as plain text, Markdown or HTML; whatever stands in a bundle is shown, and nothing of it is obeyed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Final

from noetl_cli.shown.tables import table_lines
from noetl_cli.shown.text import one_line
from noetl_cli.verify.report_blocks import Block, Commands, Report, Sentence, Table

_MARKED: Final = re.compile(r"[\\`*_\[\]|~]")
_LINKED: Final = re.compile(r"://|www\.|@", re.IGNORECASE)
"""What Markdown makes links of by itself."""
_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1b1b1b; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ccc; }
.verdict { padding: .8rem 1rem; border: 3px solid; font-weight: bold; font-size: 1.3rem; }
.holds { color: #0b5d1e; border-color: #0b5d1e; background: #e9f7ec; }
.fails { color: #9b1111; border-color: #9b1111; background: #fdecec; }
table { border-collapse: collapse; margin: .5rem 0; width: 100%; }
th, td { border: 1px solid #ccc; padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { background: #f3f3f3; } td { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere; }
pre { background: #f3f3f3; padding: .6rem; overflow-x: auto; }
"""


def as_text(report: Report) -> str:
    """For terminals and plain files."""
    return "\n".join(_text_lines(report)) + "\n"


def _text_lines(report: Report) -> Iterator[str]:
    bar = "=" * 72
    yield from (bar, report.verdict, bar, "", one_line(report.title), "", one_line(report.summary))
    for section in report.sections:
        yield from ("", section.heading, "-" * len(section.heading))
        for block in section.blocks:
            yield from _text_block(block)


def _text_block(block: Block) -> Iterator[str]:
    match block:
        case Table(columns=columns, rows=rows):
            yield from table_lines([[one.upper() for one in columns], *rows])
        case Sentence(text=text):
            yield one_line(text)
        case Commands(lines=lines):
            yield from (f"    {line}" for line in lines)


def as_markdown(report: Report) -> str:
    """For wikis and tickets: values cannot end their cell, link anywhere or be taken for markup."""
    return "\n".join(_markdown_lines(report)) + "\n"


def _markdown_lines(report: Report) -> Iterator[str]:
    yield from (f"# {report.verdict}", "", f"**{_marked(report.title)}**", "", _marked(report.summary))
    for section in report.sections:
        yield from ("", f"## {section.heading}")
        for block in section.blocks:
            yield ""
            yield from _markdown_block(block)


def _markdown_block(block: Block) -> Iterator[str]:
    match block:
        case Table(columns=columns, rows=rows):
            yield _markdown_row(columns)
            yield _markdown_row(["---"] * len(columns))
            yield from (_markdown_row([_marked(cell) for cell in row]) for row in rows)
        case Sentence(text=text):
            yield _marked(text)
        case Commands(lines=lines):
            yield from ("```", *lines, "```")


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _marked(text: str) -> str:
    plain = escape(one_line(text), quote=False)
    linkless = _LINKED.sub(lambda found: "".join(f"&#{ord(one)};" for one in found[0]), plain)
    return _MARKED.sub(lambda found: f"\\{found[0]}", linkless)


def as_html(report: Report) -> str:
    """One page that needs nothing else: no script, no picture, no address, and none would be followed."""
    return "\n".join(_html_lines(report)) + "\n"


def _html_lines(report: Report) -> Iterator[str]:
    outcome = "holds" if report.holds else "fails"
    yield from (
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{_html(report.title)}</title>",
        f"<style>{_STYLE}</style>",
        "</head>",
        "<body>",
        f'<p class="verdict {outcome}">{_html(report.verdict)}</p>',
        f"<h1>{_html(report.title)}</h1>",
        f"<p>{_html(report.summary)}</p>",
    )
    for section in report.sections:
        yield f"<h2>{_html(section.heading)}</h2>"
        for block in section.blocks:
            yield from _html_block(block)
    yield from ("</body>", "</html>")


def _html_block(block: Block) -> Iterator[str]:
    match block:
        case Table(columns=columns, rows=rows):
            yield "<table>"
            yield _html_row("th", columns)
            yield from (_html_row("td", row) for row in rows)
            yield "</table>"
        case Sentence(text=text):
            yield f"<p>{_html(text)}</p>"
        case Commands(lines=lines):
            yield f"<pre>{_html_text(lines)}</pre>"


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_html(cell)}</{tag}>' for cell in cells)}</tr>"


def _html_text(lines: Sequence[str]) -> str:
    return "\n".join(escape(line) for line in lines)


def _html(text: str) -> str:
    return escape(one_line(text))


FORMATS: Final[Mapping[str, Callable[[Report], str]]] = {"markdown": as_markdown, "html": as_html, "text": as_text}
