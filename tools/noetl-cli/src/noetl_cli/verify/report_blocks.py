"""What a readable report is made of: headings, sentences, facts and tables, the same for every format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; each cell is somebody's text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """Words of our own, or with values in them."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Lines to be typed in, of our own words only."""

    lines: Sequence[str]


Block = Table | Sentence | Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What stands under one heading."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report; whether the evidence holds stands above everything else."""

    title: str
    holds: bool
    verdict: str
    """In capitals, so that nobody overlooks it."""
    summary: str
    sections: Sequence[Section]
