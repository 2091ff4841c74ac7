"""Read one map of a document by its section; whatever is wrong becomes a finding, and reading goes on."""

from __future__ import annotations

from collections.abc import Mapping

from noetl_core.canonical import JsonValue
from noetl_core.playbook.expressions import check_condition, check_syntax
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.sections import Key, Section, Templates
from noetl_core.playbook.shapes import Anything, Below, Choice, Either, Name, Text, When
from noetl_core.playbook.source import Path
from noetl_core.playbook.support import REGISTERED

_SHOWN_CHARACTERS = 200
_TYPE_NAMES = {
    type(None): "nothing",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a map",
}


class Fields:
    """A map of the document, of which only that is left which is known, supported and of the right shape."""

    def __init__(
        self, values: Mapping[str, JsonValue], path: Path, findings: Findings, section: Section, written: frozenset[str]
    ) -> None:
        self.values = values
        self.path = path
        self.findings = findings
        self.section = section
        self.written = written
        """Keys that have a value, right or wrong: those that were refused are not missing besides."""

    @classmethod
    def read(
        cls, value: JsonValue, path: Path, findings: Findings, section: Section, *, title: str | None = None
    ) -> Fields | None:
        """The fields of a value that should be a map; everything that its section says is checked here."""
        if not isinstance(value, dict):
            message = f"{title or section.title} must be a map, not {type_name(value)}"
            findings.error("invalid_field", message, path)
            return None
        values: dict[str, JsonValue] = {}
        written: set[str] = set()
        for key, child in value.items():
            described = section.keys.get(key, section.other)
            if described is None or key in section.ignored:
                _report_key(key, (*path, key), findings, section)
            elif _is_written(child, described):
                written.add(key)
                if _is_valid(key, child, described, (*path, key), findings):
                    values[key] = child
        fields = cls(values, path, findings, section, frozenset(written))
        fields._check_presence()
        return fields

    def _check_presence(self) -> None:
        section = self.section
        for key, described in section.keys.items():
            if described.required and key not in self.written:
                self.missing(key)
        if section.at_least_one and not self.written.intersection(section.at_least_one):
            self.missing(section.at_least_one[0])
        if section.exactly_one and len(self.written.intersection(section.exactly_one)) != 1:
            words = " and ".join(map(repr, section.exactly_one))
            only = "exactly one of " if len(section.exactly_one) > 1 else ""
            self.findings.error(section.exactly_one_code, f"{section.title} needs {only}{words}", self.path)

    def has(self, key: str) -> bool:
        return key in self.values

    def invalid(self, key: str, message: str, *, code: str = "invalid_field", suggestion: str | None = None) -> None:
        self.findings.error(code, f"{key!r} {message}", (*self.path, key), suggestion=suggestion)

    def missing(self, key: str, *, why: str = "") -> None:
        self.findings.error(self.section.missing_code, f"{self.section.title} needs {key!r}{why}", (*self.path, key))

    def older(self, key: str, message: str, *, suggestion: str | None = None) -> None:
        self.findings.warn("older_form", message, (*self.path, key), suggestion=suggestion)

    def below(self, key: str) -> Fields | None:
        """The map under a key, read by its own section, if there is one."""
        value = self.values.get(key)
        section = _section_below(self.section.keys.get(key))
        if value is None or section is None:
            return None
        return Fields.read(value, (*self.path, key), self.findings, section, title=repr(key))

    def items(self, key: str) -> list[tuple[Path, JsonValue]]:
        """The members of a list with their places; of nothing, none."""
        value = self.values.get(key)
        members = value if isinstance(value, list) else []
        return [((*self.path, key, index), member) for index, member in enumerate(members)]

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def texts(self, key: str) -> tuple[str, ...]:
        """A text, or a list of texts; anything else in the list is reported."""
        value = self.values.get(key)
        if isinstance(value, str):
            return (value,)
        for path, member in self.items(key):
            if not isinstance(member, str):
                message = f"a member of {key!r} must be text, not {type_name(member)}"
                self.findings.error("invalid_field", message, path)
        return tuple(member for _, member in self.items(key) if isinstance(member, str))

    def flag(self, key: str) -> bool | None:
        value = self.values.get(key)
        return value if isinstance(value, bool) else None

    def whole(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, key: str) -> float | None:
        value = self.values.get(key)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, key: str) -> int | str | None:
        """A whole number or the template of one."""
        return self.text(key) or self.whole(key)

    def amount(self, key: str) -> float | str | None:
        """A number or the template of one."""
        text = self.text(key)
        return self.number(key) if text is None else text

    def map(self, key: str) -> Mapping[str, JsonValue]:
        value = self.values.get(key)
        return value if isinstance(value, dict) else {}

    def condition(self, key: str) -> str | bool:
        """A condition; none at all always holds, one that was refused never does."""
        value = self.values.get(key)
        if isinstance(value, str | bool):
            return value
        return key not in self.written


def check_templates(value: object, path: Path, findings: Findings, *, only_warn: bool = False) -> None:
    """Report every template with a syntax error in a value, however deep."""
    pending: list[tuple[object, Path]] = [(value, path)]
    while pending:
        current, here = pending.pop()
        if isinstance(current, str):
            _report_syntax(check_syntax(current), current, here, findings, only_warn=only_warn)
        elif isinstance(current, Mapping):
            pending.extend((child, (*here, str(key))) for key, child in current.items())
        elif isinstance(current, list):
            pending.extend((child, (*here, index)) for index, child in enumerate(current))


def type_name(value: object) -> str:
    """What a value is, in words of the document and not of Python."""
    return _TYPE_NAMES.get(type(value), "something else")


def _is_written(value: JsonValue, described: Key) -> bool:
    """Nothing is as good as no key, but where nothing is a value, or where it would make a condition always hold."""
    return value is not None or isinstance(described.shape, Anything | When)


def _is_valid(key: str, value: JsonValue, described: Key, path: Path, findings: Findings) -> bool:
    """Whether a value can be read further; if not, the findings say why."""
    asks_for = None if described.asks_nothing_if_empty and value in ({}, [], "") else described.feature
    if asks_for is not None and not findings.supports(asks_for, path):
        return False
    if not described.shape.accepts(value):
        message, suggestion = _misfit(value, described, findings)
        findings.error("invalid_field", f"{key!r} {message}", path, suggestion=suggestion)
        return False
    if isinstance(described.shape, When):
        if isinstance(value, str):
            _report_syntax(check_condition(value), value, path, findings)
    elif described.templates is not Templates.NONE:
        only_warn = described.templates is Templates.OR_AS_WRITTEN
        check_templates(value, path, findings, only_warn=only_warn)
    return True


def _misfit(value: JsonValue, described: Key, findings: Findings) -> tuple[str, str | None]:
    shape = described.shape
    if isinstance(value, str) and isinstance(shape, Choice):
        return f"must be {shape.noun}, not {value!r}", findings.did_you_mean(value, shape.words)
    if isinstance(value, int | float) and not isinstance(value, bool) and isinstance(shape, Text | Name):
        return f"must be text, not {type_name(value)}", f'write "{value}"'
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return f"must be {shape.noun}", None
    return f"must be {shape.noun}, not {type_name(value)}", None


def _report_key(key: str, path: Path, findings: Findings, section: Section) -> None:
    if key in section.removed:
        message = f"{section.title} has no {key!r} any more"
        findings.error("removed_key", message, path, suggestion=section.removed[key])
    elif key in section.elsewhere:
        if findings.supported is not REGISTERED:  # it never had an effect, and was accepted once
            findings.error("unsupported", f"{section.title} has no {key!r}: {section.elsewhere[key]}", path)
    elif key in section.ignored:
        findings.warn("older_form", f"{key!r} of {section.title} has no effect", path)
    elif section.is_strict:
        suggestion = findings.did_you_mean(key, section.suggested())
        findings.error("unknown_key", f"{section.title} has no {key!r}", path, suggestion=suggestion)
    else:
        suggestion = findings.did_you_mean(key, section.suggested())
        findings.warn("unknown_key", f"{section.title} has no {key!r}; it is ignored", path, suggestion=suggestion)


def _report_syntax(
    problem: tuple[str, int] | None, text: str, path: Path, findings: Findings, *, only_warn: bool = False
) -> None:
    if problem is not None:
        message, line = problem
        report = findings.warn if only_warn else findings.error
        shown = text.strip()[:_SHOWN_CHARACTERS]
        report("template_syntax", f"{message}: {shown}", path, template_line=line)


def _section_below(key: Key | None) -> Section | None:
    if key is None:
        return None
    shapes = key.shape.shapes if isinstance(key.shape, Either) else (key.shape,)
    return next((shape.section for shape in shapes if isinstance(shape, Below)), None)
