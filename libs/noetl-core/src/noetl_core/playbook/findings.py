"""Collect everything that is wrong with a document, so that its author learns all of it at once."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import islice

from noetl_core.errors import Problem
from noetl_core.playbook.positions import Position, locate
from noetl_core.playbook.source import MAX_PROBLEMS, Path, format_path
from noetl_core.playbook.support import RELEASE, TITLES, Feature

_MAX_COMPARED_NAMES = 500
_MAX_SUGGESTIONS = 50
"""Comparing names is slow: past this many, a playbook has worse problems than spelling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem or warning whose position is not looked up yet."""

    code: str
    message: str
    path: Path
    suggestion: str | None = None
    template_line: int | None = None

    def located(self, position: Position) -> Problem:
        line, column = position.line, position.column
        if self.template_line is not None:
            line = position.text_line + self.template_line - 1
        return Problem(
            code=f"playbook.{self.code}",
            message=self.message,
            path=format_path(self.path),
            line=line,
            column=column if line == position.line else None,
            suggestion=self.suggestion,
        )


class Findings:
    """What reading a document has brought up so far: errors refuse it, warnings come with success."""

    def __init__(self, *, supported: Container[str] = RELEASE) -> None:
        self.supported = supported
        self._errors: list[Finding] = []
        self._warnings: list[Finding] = []
        self._suggestions_left = _MAX_SUGGESTIONS

    def error(
        self,
        code: str,
        message: str,
        path: Path,
        *,
        suggestion: str | None = None,
        template_line: int | None = None,
    ) -> None:
        """Something for which the document must be refused."""
        self._errors.append(
            Finding(code=code, message=message, path=path, suggestion=suggestion, template_line=template_line)
        )

    def warn(
        self,
        code: str,
        message: str,
        path: Path,
        *,
        suggestion: str | None = None,
        template_line: int | None = None,
    ) -> None:
        """Something that the author should know, although the document can run."""
        self._warnings.append(
            Finding(code=code, message=message, path=path, suggestion=suggestion, template_line=template_line)
        )

    def supports(self, feature: Feature, path: Path) -> bool:
        """Whether this version can run it. If not, the language knows it all the same: saying so beats ignoring it."""
        if feature in self.supported:
            return True
        self.error("unsupported", f"{TITLES[feature]} is not supported by this version", path)
        return False

    def did_you_mean(self, word: str, known: Iterable[str]) -> str | None:
        """A suggestion for a misspelt name, if one of the known names is close."""
        if self._suggestions_left <= 0 or len(word) > 100:
            return None
        # No more than has to be seen: a document may have thousands of names, and as many that none of them is.
        candidates = [str(name) for name in islice(known, _MAX_COMPARED_NAMES + 1)]
        if len(candidates) > _MAX_COMPARED_NAMES:
            return None
        self._suggestions_left -= 1
        close = get_close_matches(word, candidates, n=1)
        return f"did you mean {close[0]!r}?" if close else None

    @property
    def has_errors(self) -> bool:
        return bool(self._errors)

    def errors(self, text: str) -> list[Problem]:
        """Every error in the order of the document."""
        return _located(self._errors, text)

    def warnings(self, text: str) -> list[Problem]:
        """Every warning in the order of the document."""
        return _located(self._warnings, text)


def _located(findings: list[Finding], text: str) -> list[Problem]:
    listed = findings[:MAX_PROBLEMS]
    positions = locate(text, (finding.path for finding in listed)) if listed else {}
    problems = [finding.located(positions[finding.path]) for finding in listed]
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
