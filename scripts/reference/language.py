"""The playbook language and its tools, from the vocabulary by which documents are checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from noetl_core.playbook.kinds import KINDS, TOOL
from noetl_core.playbook.sections import Key, Section, Templates
from noetl_core.playbook.shapes import Either, Name, Shape
from noetl_core.playbook.support import EVERYTHING, RELEASE, TITLES, Feature, tool
from noetl_core.playbook.task_model import ToolKind
from noetl_core.playbook.task_vocabulary import COMMON_KEYS
from noetl_core.playbook.vocabulary import ROOT

from scripts.reference.limits import limits
from scripts.reference.markdown import code, codes, page, table
from scripts.reference.room import room

LANGUAGE = """
Every key that a playbook may have, section by section. Registration checks documents by the same tables, and refuses
what this release does not run; `noetl playbook validate FILE` does it without a server. For editors: `noetl playbook
schema` prints the JSON Schema (see [how to get completion in an editor](../howto/editor.md)). The tools are on [a
page of their own](tools.md).
"""
TOOLS = """
What each kind of tool takes besides the keys that all have. Kinds that this release does not run itself are refused
at registration, unless a [plug-in](../../examples/plugins/noetl-tool-hello/README.md) of the worker provides them.
"""


def language_page() -> str:
    """Sections without the tools."""
    sections = [section for section in _sections(ROOT) if section.name not in _tool_sections()]
    written = (_section(section) for section in sections)
    return page("The playbook language", LANGUAGE, _features(), limits(), *written, room())


def tools_page() -> str:
    """The common keys, then kind by kind."""
    common = "## Keys of every tool\n\n" + _keys(TOOL.keys)
    kinds = [_kind(kind, section) for kind, section in KINDS.items()]
    below = {section.name: section for kind in KINDS.values() for section in _sections(kind) if section is not kind}
    language = {section.name for section in _sections(ROOT, through_tools=False)}
    details = [_section(section) for name, section in below.items() if name not in language and name not in _kinds()]
    return page("Tools", TOOLS, common, *kinds, *details)


def _kinds() -> frozenset[str]:
    return frozenset({TOOL.name, *(section.name for section in KINDS.values())})


def _tool_sections() -> frozenset[str]:
    with_tools = {section.name for section in _sections(ROOT)}
    without = {section.name for section in _sections(ROOT, through_tools=False)}
    return frozenset(with_tools - without) | _kinds()


def _sections(root: Section, *, through_tools: bool = True) -> Iterator[Section]:
    """Every section below one, in the order in which a reader meets them."""
    seen: set[str] = set()
    pending = [root]
    while pending:
        section = pending.pop(0)
        if section.name in seen or (not through_tools and section.name in _kinds()):
            continue
        seen.add(section.name)
        yield section
        pending.extend(section.variants.values())
        for key in section.keys.values():
            pending.extend(key.shape.sections())


def _features() -> str:
    rows = [(TITLES[feature], "yes" if feature in RELEASE else "not yet") for feature in Feature]
    assert {*Feature} <= EVERYTHING  # noqa: S101 - a page that leaves something out would mislead
    return "## What this release runs\n\n" + table(("part of the language", "runs"), rows)


def _kind(kind: str, section: Section) -> str:
    runs = "" if tool(ToolKind(kind)) in RELEASE else "\n\nNot run by this release itself."
    own = {name: key for name, key in section.keys.items() if COMMON_KEYS.get(name) is not key}
    needs = ""
    if section.at_least_one:
        needs = f"\n\nNeeds one of {codes(section.at_least_one)}."
    if section.exactly_one:
        needs = f"\n\nNeeds exactly one of {codes(section.exactly_one)}."
    return f"## {kind}{runs}{needs}\n\n" + (_keys(own) if own else "No keys of its own.")


def _section(section: Section) -> str:
    extra = []
    if section.is_strict:
        extra.append("Other keys are refused.")
    if section.exactly_one:
        extra.append(f"Exactly one of {codes(section.exactly_one)}.")
    if section.at_least_one:
        extra.append(f"At least one of {codes(section.at_least_one)}.")
    if section.removed:
        extra += [f"`{key}` is gone: {hint}." for key, hint in section.removed.items()]
    extra += [f"There is no `{key}`: {why}." for key, why in section.elsewhere.items()]
    listed = _keys(section.keys) if section.keys else ""
    title = section.title.replace("`", "")
    return "\n\n".join(part for part in (f"## {title[0].upper()}{title[1:]}", listed, " ".join(extra)) if part)


def _keys(keys: Mapping[str, Key]) -> str:
    rows = [
        (
            code(name) + (" (required)" if key.required else ""),
            _shape(key.shape),
            _meaning(key),
        )
        for name, key in keys.items()
        if not key.is_older
    ]
    return table(("key", "value", "meaning"), rows)


def _shape(shape: Shape) -> str:
    if isinstance(shape, Name):
        return "a name"
    named = [section.title for section in shape.sections()]
    if isinstance(shape, Either) or not named:
        return shape.noun
    return f"{shape.noun}: {', '.join(dict.fromkeys(named))}"


def _meaning(key: Key) -> str:
    notes = [key.says] if key.says else []
    if key.templates is Templates.RENDERED:
        notes.append("templates are rendered")
    elif key.templates is Templates.OR_AS_WRITTEN:
        notes.append("a template if it is one")
    if key.feature is not None and key.feature not in RELEASE:
        notes.append("**not yet**")
    return "; ".join(notes)
