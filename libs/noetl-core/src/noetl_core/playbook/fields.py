"""Read one map of a document field by field; whatever is wrong becomes a finding, and reading goes on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from noetl_core.canonical import JsonValue
from noetl_core.playbook.expressions import check_condition, check_syntax
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.source import Path
from noetl_core.playbook.vocabulary import Section

_MAX_NAME_CHARACTERS = 255
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
    """A map, the path where it stands, and where to report."""

    def __init__(self, values: Mapping[str, JsonValue], path: Path, findings: Findings) -> None:
        self.values = values
        self.path = path
        self.findings = findings

    @classmethod
    def read(cls, value: JsonValue, path: Path, findings: Findings, *, title: str) -> Fields | None:
        """The fields of a value that should be a map."""
        if isinstance(value, dict):
            return cls(value, path, findings)
        findings.error("invalid_field", f"{title} must be a map, not {type_name(value)}", path)
        return None

    def check_keys(self, section: Section) -> None:
        """Report every key that is not simply read: unknown, not supported yet, removed, or without effect."""
        for key, value in self.values.items():
            path = (*self.path, key)
            if key in section.keys:
                continue
            if key in section.unsupported:
                self.findings.unsupported(section.unsupported[key], path)
            elif key in section.unsupported_unless_empty:
                if value not in (None, {}, [], ""):
                    self.findings.unsupported(section.unsupported_unless_empty[key], path)
            elif key in section.removed:
                message = f"{section.title} has no {key!r} any more"
                self.findings.error("removed_key", message, path, suggestion=section.removed[key])
            elif key in section.ignored:
                self.findings.warn("older_form", f"{key!r} of {section.title} has no effect", path)
            else:
                message = f"{section.title} has no {key!r}; it is ignored"
                suggestion = self.findings.did_you_mean(key, section.known())
                self.findings.warn("unknown_key", message, path, suggestion=suggestion)

    def invalid(self, key: str, message: str, *, suggestion: str | None = None) -> None:
        self.findings.error("invalid_field", f"{key!r} {message}", (*self.path, key), suggestion=suggestion)

    def missing(self, key: str, title: str) -> None:
        self.findings.error("missing_field", f"{title} needs {key!r}", (*self.path, key))

    def below(self, key: str) -> Fields | None:
        """The map under a key, if there is one."""
        value = self.values.get(key)
        if value is None:
            return None
        return Fields.read(value, (*self.path, key), self.findings, title=repr(key))

    def text(self, key: str) -> str | None:
        """A text, if there is one."""
        value = self.values.get(key)
        if value is None or isinstance(value, str):
            return value
        suggestion = f'write "{value}"' if isinstance(value, int | float) else None
        self.invalid(key, f"must be text, not {type_name(value)}", suggestion=suggestion)
        return None

    def name(self, key: str, *, title: str) -> str | None:
        """A text that other things refer to; there must be one."""
        value = self.text(key)
        if value is None:
            if self.values.get(key) is None:
                self.missing(key, title)
            return None
        if not value.strip() or value != value.strip():
            self.invalid(key, "must not be empty, nor begin or end with a space")
        elif len(value) > _MAX_NAME_CHARACTERS:
            self.invalid(key, f"must have at most {_MAX_NAME_CHARACTERS} characters")
        elif not value.isprintable():
            self.invalid(key, "must not have control characters")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean, if there is one."""
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.invalid(key, f"must be true or false, not {type_name(value)}")
        return None

    def choice(self, key: str, allowed: Iterable[str]) -> str | None:
        """One of a few words, if there is one."""
        words = list(allowed)
        value = self.text(key)
        if value is None or value in words:
            return value
        suggestion = self.findings.did_you_mean(value, words)
        self.invalid(key, f"must be one of {', '.join(words)}, not {value!r}", suggestion=suggestion)
        return None

    def seconds(self, key: str) -> float | None:
        """A positive number of seconds, if there is one."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 and math.isfinite(value):
            return float(value)
        self.invalid(key, "must be a number of seconds above 0")
        return None

    def templates(self, key: str) -> Mapping[str, JsonValue]:
        """A map of values whose templates are checked."""
        fields = self.below(key)
        if fields is None:
            return {}
        check_templates(fields.values, fields.path, self.findings)
        return fields.values

    def condition(self, key: str) -> str | bool:
        """A condition; none at all always holds."""
        if key not in self.values:
            return True
        value = self.values[key]
        if isinstance(value, bool):
            return value
        if not isinstance(value, str):
            self.invalid(key, f"must be text or a boolean, not {type_name(value)}")
            return False
        problem = check_condition(value)
        if problem is not None:
            message, line = problem
            path = (*self.path, key)
            self.findings.error("template_syntax", f"{message}: {value.strip()[:200]}", path, template_line=line)
        return value


def check_templates(value: object, path: Path, findings: Findings, *, only_warn: bool = False) -> None:
    """Report every template with a syntax error in a value, however deep."""
    pending: list[tuple[object, Path]] = [(value, path)]
    while pending:
        current, here = pending.pop()
        if isinstance(current, str):
            problem = check_syntax(current)
            if problem is not None:
                message, line = problem
                report = findings.warn if only_warn else findings.error
                report("template_syntax", f"{message}: {current.strip()[:200]}", here, template_line=line)
        elif isinstance(current, Mapping):
            pending.extend((child, (*here, str(key))) for key, child in current.items())
        elif isinstance(current, list):
            pending.extend((child, (*here, index)) for index, child in enumerate(current))


def type_name(value: object) -> str:
    """What a value is, in words of the document and not of Python."""
    return _TYPE_NAMES.get(type(value), "something else")
