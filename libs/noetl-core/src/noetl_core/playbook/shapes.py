"""The kinds of values that may stand under a key: what is accepted, how that is said, and its JSON Schema."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.syntax import has_template

if TYPE_CHECKING:
    from noetl_core.playbook.sections import Section

MAX_NAME_CHARACTERS = 255
TEMPLATE_PATTERN = r"\{[\{%#]"


class Shape(ABC):
    """What a value must be."""

    @property
    @abstractmethod
    def noun(self) -> str:
        """How it is called in a message: 'text', 'a list'."""

    @abstractmethod
    def accepts(self, value: JsonValue) -> bool:
        """Whether a value is one; what is inside lists and maps is looked at by who reads them."""

    @abstractmethod
    def schema(self) -> JsonObject:
        """The same as JSON Schema; sections are referred to by name."""

    def sections(self) -> tuple[Section, ...]:
        """Sections that a value may consist of."""
        return ()


@dataclass(frozen=True, slots=True)
class Text(Shape):
    """Any text."""

    noun = "text"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, str)

    def schema(self) -> JsonObject:
        return {"type": "string"}


@dataclass(frozen=True, slots=True)
class Name(Shape):
    """A text that other things refer to."""

    is_identifier: bool = False

    @property
    def noun(self) -> str:
        if self.is_identifier:
            return "a name of letters, digits and underscores"
        return f"text of at most {MAX_NAME_CHARACTERS} characters, without spaces around it or control characters"

    def accepts(self, value: JsonValue) -> bool:
        if not isinstance(value, str) or not value or len(value) > MAX_NAME_CHARACTERS:
            return False
        return value.isidentifier() if self.is_identifier else value == value.strip() and value.isprintable()

    def schema(self) -> JsonObject:
        return {"type": "string", "minLength": 1, "maxLength": MAX_NAME_CHARACTERS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag(Shape):
    """True or false."""

    or_template: bool = False

    @property
    def noun(self) -> str:
        return "true, false or a template" if self.or_template else "true or false"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, bool) or (self.or_template and is_template(value))

    def schema(self) -> JsonObject:
        return _or_template({"type": "boolean"}, self.or_template)


@dataclass(frozen=True, slots=True, kw_only=True)
class Number(Shape):
    """A number within bounds; `above` itself is not allowed."""

    what: str = "a number"
    is_whole: bool = False
    above: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    or_template: bool = False

    @property
    def noun(self) -> str:
        words = self.what
        if self.above is not None:
            words += f" above {self.above:g}"
        if self.minimum is not None:
            words += f" from {self.minimum:g}" + (f" to {self.maximum:g}" if self.maximum is not None else " on")
        return words + (" or a template" if self.or_template else "")

    def accepts(self, value: JsonValue) -> bool:
        if isinstance(value, str):
            return self.or_template and is_template(value)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            return False
        return (
            (not self.is_whole or isinstance(value, int))
            and (self.above is None or value > self.above)
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
        )

    def schema(self) -> JsonObject:
        bounds = {"exclusiveMinimum": self.above, "minimum": self.minimum, "maximum": self.maximum}
        found: JsonObject = {"type": "integer" if self.is_whole else "number"}
        return _or_template(
            found | {word: bound for word, bound in bounds.items() if bound is not None}, self.or_template
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Shape):
    """One of a few words; older ones are understood, and not spoken of."""

    words: tuple[str, ...]
    older: tuple[str, ...] = ()
    or_template: bool = False

    @property
    def noun(self) -> str:
        one_of = "one of " if len(self.words) > 1 else ""
        return one_of + ", ".join(self.words) + (" or a template" if self.or_template else "")

    def accepts(self, value: JsonValue) -> bool:
        is_known = value in self.words or value in self.older
        return isinstance(value, str) and (is_known or (self.or_template and is_template(value)))

    def schema(self) -> JsonObject:
        return _or_template({"enum": [str(word) for word in (*self.words, *self.older)]}, self.or_template)


@dataclass(frozen=True, slots=True)
class When(Shape):
    """A condition: a template, with or without its braces, or a boolean."""

    noun = "text or a boolean"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, str | bool)

    def schema(self) -> JsonObject:
        return {"type": ["string", "boolean"]}


@dataclass(frozen=True, slots=True)
class Anything(Shape):
    """Any value."""

    noun = "anything"

    def accepts(self, value: JsonValue) -> bool:
        return True

    def schema(self) -> JsonObject:
        return {}


@dataclass(frozen=True, slots=True)
class Map(Shape):
    """A map whose keys the author chooses; what is not text of a map is told by `of`."""

    of: Shape | None = None

    noun = "a map"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, dict)

    def schema(self) -> JsonObject:
        found: JsonObject = {"type": "object"}
        return found if self.of is None else found | {"additionalProperties": self.of.schema()}

    def sections(self) -> tuple[Section, ...]:
        return () if self.of is None else self.of.sections()


@dataclass(frozen=True, slots=True)
class Items(Shape):
    """A list."""

    of: Shape | None = None

    noun = "a list"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, list)

    def schema(self) -> JsonObject:
        found: JsonObject = {"type": "array"}
        return found if self.of is None else found | {"items": self.of.schema()}

    def sections(self) -> tuple[Section, ...]:
        return () if self.of is None else self.of.sections()


@dataclass(frozen=True, slots=True)
class Below(Shape):
    """A map whose keys the language defines."""

    section: Section

    noun = "a map"

    def accepts(self, value: JsonValue) -> bool:
        return isinstance(value, dict)

    def schema(self) -> JsonObject:
        return {"$ref": f"#/$defs/{self.section.name}"}

    def sections(self) -> tuple[Section, ...]:
        return (self.section,)


@dataclass(frozen=True, slots=True)
class Template(Shape):
    """A text with a template in it, where one stands for a whole value."""

    noun = "a template"

    def accepts(self, value: JsonValue) -> bool:
        return is_template(value)

    def schema(self) -> JsonObject:
        return {"type": "string", "pattern": TEMPLATE_PATTERN}


class Either(Shape):
    """Any of several shapes."""

    def __init__(self, *shapes: Shape) -> None:
        self.shapes = shapes

    @property
    def noun(self) -> str:
        nouns = list(dict.fromkeys(shape.noun for shape in self.shapes))
        return f"{', '.join(nouns[:-1])} or {nouns[-1]}" if len(nouns) > 1 else nouns[0]

    def accepts(self, value: JsonValue) -> bool:
        return any(shape.accepts(value) for shape in self.shapes)

    def schema(self) -> JsonObject:
        return {"anyOf": [shape.schema() for shape in self.shapes]}

    def sections(self) -> tuple[Section, ...]:
        return tuple(section for shape in self.shapes for section in shape.sections())


def is_template(value: object) -> bool:
    """Whether a value is a text with something to evaluate."""
    return isinstance(value, str) and has_template(value)


def _or_template(schema: JsonObject, or_template: bool) -> JsonObject:
    return {"anyOf": [schema, Template().schema()]} if or_template else schema
