"""How the words of the language are written down: a section is a map, a key is what may stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from noetl_core.playbook.shapes import Shape
from noetl_core.playbook.support import Feature


class Templates(Enum):
    """Whether the texts below a key are templates."""

    NONE = "literal"
    RENDERED = "rendered"
    OR_AS_WRITTEN = "rendered if possible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """What may stand under one key of a section."""

    shape: Shape
    says: str = ""
    """What it means, in a few words: editors show it."""
    required: bool = False
    templates: Templates = Templates.NONE
    feature: Feature | None = None
    """What the runtime must be able to do where the key is used."""
    asks_nothing_if_empty: bool = False
    is_older: bool = False
    """An accepted form of older playbooks, which nobody should be led to."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Section:
    """The keys of one kind of map."""

    name: str
    title: str
    keys: Mapping[str, Key]
    removed: Mapping[str, str] = field(default_factory=dict)
    """Keys that the language once had, with what to write instead."""
    elsewhere: Mapping[str, str] = field(default_factory=dict)
    """Keys that maps like this have in other places, with why not here; what was accepted with them stays readable."""
    ignored: frozenset[str] = frozenset()
    """Keys of older versions that never changed what a playbook does."""
    is_strict: bool = False
    """Where a misspelt key would change what happens without a trace, it is refused."""
    other: Key | None = None
    """What may stand under keys that are not listed; without it they are not known."""
    missing_code: str = "missing_field"
    """The problem that it is if a required key is missing."""
    at_least_one: tuple[str, ...] = ()
    """Keys of which one must be there; the first is the one that is asked for."""
    exactly_one: tuple[str, ...] = ()
    """Keys of which one must be there, and no other."""
    exactly_one_code: str = "tool_config"
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Older words for keys, which are read as today's where those are missing."""
    variants: Mapping[str, Section] = field(default_factory=dict)
    """What else there is by the value of `kind`; a variant lists all of its keys."""

    def suggested(self) -> list[str]:
        """Everything that a misspelt key may have been meant to be."""
        return [key for key, described in self.keys.items() if not described.is_older]
