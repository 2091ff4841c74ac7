"""The language as a JSON Schema, so that editors complete and check playbooks; generated from its vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.playbook.sections import Key, Section
from noetl_core.playbook.shapes import Anything, When
from noetl_core.playbook.vocabulary import API_VERSION, DOCUMENT_KIND, OLDER_API_VERSIONS, ROOT

DIALECT = "https://json-schema.org/draft/2020-12/schema"

_WORDS: dict[tuple[str, str], JsonObject] = {
    (ROOT.name, "apiVersion"): {"enum": [API_VERSION, *sorted(OLDER_API_VERSIONS)]},
    (ROOT.name, "kind"): {"const": DOCUMENT_KIND},
}


def playbook_schema() -> JsonObject:
    """The schema as a value of its own, which the caller may change.

    It never refuses what registration accepts; the other way round, registration knows more: names that must exist,
    templates that must parse, what this release can run.
    """
    return deepcopy(_schema())


@lru_cache(maxsize=1)
def _schema() -> JsonObject:
    sections = {section.name: section for section in _sections(ROOT)}
    return {
        "$schema": DIALECT,
        "title": f"NoETL playbook ({API_VERSION})",
        "$ref": f"#/$defs/{ROOT.name}",
        "$defs": {name: _section_schema(section) for name, section in sorted(sections.items())},
    }


def _sections(root: Section) -> Iterator[Section]:
    """Every section that can be reached, once."""
    seen: set[str] = set()
    pending = [root]
    while pending:
        section = pending.pop()
        if section.name in seen:
            continue
        seen.add(section.name)
        yield section
        pending.extend(section.variants.values())
        for key in section.keys.values():
            pending.extend(key.shape.sections())


def _section_schema(section: Section) -> JsonObject:
    properties: dict[str, JsonValue] = {
        **{key: _key_schema(section, key, described) for key, described in section.keys.items()},
        **{key: {"not": {}, "description": f"no longer there: {hint}"} for key, hint in section.removed.items()},
        **{key: {"not": {}, "description": f"not here: {why}"} for key, why in section.elsewhere.items()},
        **{key: {"deprecated": True, "description": "has no effect"} for key in sorted(section.ignored)},
        **{older: {"deprecated": True, "description": f"now `{today}`"} for older, today in section.renamed.items()},
    }
    schema: JsonObject = {"title": section.title, "type": "object", "properties": properties}
    if section.is_strict:
        schema["additionalProperties"] = False
    rules = [*_presence(section), *_variants(section)]
    return {**schema, "allOf": [*rules]} if rules else schema


def _key_schema(section: Section, key: str, described: Key) -> JsonObject:
    schema = described.shape.schema()
    if key == "kind" and section.variants:
        schema = {"anyOf": [{"enum": [str(kind) for kind in section.variants]}, schema]}
    schema = _WORDS.get((section.name, key), schema)
    if any(variant.keys.get(key, described) is not described for variant in section.variants.values()):
        return {}  # some kind of tool means something else by it: the variants say what
    if not described.required and not isinstance(described.shape, Anything | When):
        schema = {"anyOf": [schema, {"type": "null"}]}
    if described.says:
        schema = {**schema, "description": described.says}
    return {**schema, "deprecated": True} if described.is_older else schema


def _presence(section: Section) -> Iterator[JsonObject]:
    """Which keys must be there."""
    renamed = {today: older for older, today in section.renamed.items()}
    for key, described in section.keys.items():
        if described.required:
            yield _unless_in_spec(section, key, _any_of_keys([key, *([renamed[key]] if key in renamed else [])]))
    if section.at_least_one:
        yield _unless_in_spec(section, "", _any_of_keys(section.at_least_one))
    if section.exactly_one:
        alternatives: list[JsonValue] = [_has(key) for key in section.exactly_one]
        yield _unless_in_spec(section, "", {"oneOf": alternatives})


def _unless_in_spec(section: Section, key: str, rule: JsonObject) -> JsonObject:
    """Older playbooks have the configuration of a tool in its `spec`."""
    is_tool_kind = "spec" in section.keys and "kind" in section.keys
    return {"anyOf": [rule, _has("spec")]} if is_tool_kind and key != "kind" else rule


def _any_of_keys(keys: list[str] | tuple[str, ...]) -> JsonObject:
    return _has(keys[0]) if len(keys) == 1 else {"anyOf": [_has(key) for key in keys]}


def _has(key: str) -> JsonObject:
    """A key with a value: nothing is as good as no key, except under `in`, where it is an empty list."""
    return {"required": [key]} if key == "in" else {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def _variants(section: Section) -> Iterator[JsonObject]:
    for kind, variant in section.variants.items():
        yield {
            "if": {"required": ["kind"], "properties": {"kind": {"const": str(kind)}}},
            "then": {"$ref": f"#/$defs/{variant.name}"},
        }
