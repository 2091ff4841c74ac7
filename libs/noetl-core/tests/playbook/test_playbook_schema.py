"""The published schema agrees with what registration does."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from noetl_core.errors import PlaybookInvalid
from noetl_core.playbook.schema import DIALECT, playbook_schema
from noetl_core.playbook.source import read_source
from noetl_core.playbook.support import EVERYTHING
from noetl_core.playbook.validate import parse_playbook

SCHEMA: Any = playbook_schema()
KINDS = SCHEMA["$defs"]["tool"]["properties"]["kind"]["anyOf"][0]["enum"]
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: test}\n"
EXAMPLES = sorted((Path(__file__).parent / "examples").glob("*.yaml"))
TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
    "integer": (int,),
    "number": (int, float),
}
ANNOTATIONS = {"$schema", "$defs", "title", "description", "deprecated"}


def fits(value: object, schema: Any) -> bool:
    """Whether a value fits a schema, for the keywords that the schema uses; any other keyword fails the test."""
    for keyword, expected in schema.items():
        if (
            keyword not in ANNOTATIONS
            and keyword not in {"then"}
            and not _fits_keyword(value, keyword, expected, schema)
        ):
            return False
    return True


def _fits_keyword(value: Any, keyword: str, expected: Any, schema: Any) -> bool:
    match keyword:
        case "$ref":
            return fits(value, SCHEMA["$defs"][expected.removeprefix("#/$defs/")])
        case "type":
            return any(_is(value, name) for name in ([expected] if isinstance(expected, str) else expected))
        case "enum":
            return value in expected
        case "const":
            return bool(value == expected)
        case "not":
            return not fits(value, expected)
        case "anyOf":
            return any(fits(value, one) for one in expected)
        case "oneOf":
            return sum(fits(value, one) for one in expected) == 1
        case "allOf":
            return all(fits(value, one) for one in expected)
        case "if":
            return not fits(value, expected) or fits(value, schema["then"])
        case "properties":
            return not isinstance(value, dict) or all(
                fits(value[key], below) for key, below in expected.items() if key in value
            )
        case "required":
            return not isinstance(value, dict) or set(expected) <= value.keys()
        case "additionalProperties":
            return not isinstance(value, dict) or all(
                expected is not False and fits(child, expected)
                for key, child in value.items()
                if key not in schema.get("properties", {})
            )
        case "items":
            return not isinstance(value, list) or all(fits(member, expected) for member in value)
        case "pattern":
            return not isinstance(value, str) or re.search(expected, value) is not None
        case "minLength" | "maxLength":
            return not isinstance(value, str) or (
                len(value) >= expected if keyword == "minLength" else len(value) <= expected
            )
        case "minimum" | "maximum" | "exclusiveMinimum":
            return (
                not _is(value, "number")
                or {
                    "minimum": value >= expected,
                    "maximum": value <= expected,
                    "exclusiveMinimum": value > expected,
                }[keyword]
            )
    raise AssertionError(f"the schema uses {keyword}, which this test does not know")


def _is(value: object, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def is_registered(document: str) -> bool:
    try:
        parse_playbook(document, supported=EVERYTHING)
    except PlaybookInvalid:
        return False
    return True


def test_the_schema_is_json_of_its_own() -> None:
    assert SCHEMA["$schema"] == DIALECT
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    assert playbook_schema() is not SCHEMA


def test_every_reference_leads_somewhere() -> None:
    names = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(SCHEMA)))

    assert names == SCHEMA["$defs"].keys()


def test_editors_learn_what_keys_mean_and_which_are_old() -> None:
    definitions: Any = SCHEMA["$defs"]

    assert definitions["arc"]["properties"]["when"]["description"]
    assert definitions["arc"]["properties"]["cond"]["deprecated"]
    assert definitions["tool_http"]["properties"]["endpoint"]["deprecated"]
    assert definitions["frame"]["additionalProperties"] is False
    assert "http" in definitions["tool"]["properties"]["kind"]["anyOf"][0]["enum"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_of_the_specification_fits(path: Path) -> None:
    assert fits(read_source(path.read_text()).value, SCHEMA)


@pytest.mark.parametrize(
    "document",
    [
        "5",
        "workflow: []",
        HEAD,
        HEAD + "workflow: {}",
        HEAD + "vars: {}\nworkflow: [{step: a}]",
        HEAD.replace("v2", "v3") + "workflow: [{step: a}]",
        HEAD + "workflow: [{tool: {kind: noop}}]",
        HEAD + "workflow: [{step: a, case: []}]",
        HEAD + "workflow: [{step: a, next: 5}]",
        HEAD + "workflow: [{step: a, next: {arcs: [{when: x}]}}]",
        HEAD + "workflow: [{step: a, next: {spec: {mode: some}}}]",
        HEAD + "workflow: [{step: a, loop: {}}]",
        HEAD + "workflow: [{step: a, loop: {in: [], cursor: {kind: postgres, claim: x}}}]",
        HEAD + "workflow: [{step: a, loop: {in: [], spec: {max_in_flight: 0}}}]",
        HEAD + "workflow: [{step: a, loop: {in: [], spec: {max_in_flight: many}}}]",
        HEAD + "workflow: [{step: a, loop: {in: [], spec: {frame: {max_row: 1}}}}]",
        HEAD + "workflow: [{step: a, tool: {}}]",
        HEAD + "workflow: [{step: a, tool: {kind: http}}]",
        HEAD + "workflow: [{step: a, tool: {kind: http, url: 5}}]",
        HEAD + "workflow: [{step: a, tool: {kind: spark, sql: x, code: y}}]",
        HEAD + "workflow: [{step: a, tool: [{kind: shell}]}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, timeout: -1}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rules: [{when: x, then: {do: stop}}]}}}}]",
        HEAD + "keychain: [{name: k, kind: vault}]\nworkflow: [{step: a}]",
    ],
)
def test_mistakes_that_need_no_thought_are_seen_while_typing(document: str) -> None:
    assert not is_registered(document)
    assert not fits(yaml.safe_load(document), SCHEMA)


@pytest.mark.parametrize(
    "document",
    [
        HEAD.replace("v2", "v10") + "tracing: {}\nexecutor: {version: x}\nworkflow: [{step: a, next: a}]",
        HEAD + "workflow: [{step: a, when: x, args: {b: 1}, next: [a, {step: a, cond: x}]}]",
        HEAD + "workflow: [{step: a, tool: {kind: shell, spec: {cmds: ls}}}]",
        HEAD + "workflow: [{step: a, tool: {kind: spark, spec: {sql: x}}}]",
        HEAD + "workflow: [{step: a, tool: [{b: {kind: http, endpoint: u, retry: 3}}]}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rules: [{else: {do: fail, set: {x: 1}}}]}}}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, spec: {policy: {rules: [{else: null, then: {do: fail}}]}}}}]",
        HEAD + "workflow: [{step: a, tool: {kind: python, code: x, libs: [y]}, output: {output_select: [z]}}]",
        HEAD + "workflow: [{step: a, loop: {in: [], mode: async, concurrency: 3, spec: {policy: {}}}}]",
        HEAD + "workflow: [{step: a, loop: {in: null, cursor: null}, desc: null, set: null, spec: {timeout: null}}]",
        HEAD + "workflow: [{step: a, loop: {in: []}, spec: {loop_mode: fanout, fanout: {max_shard_retries: 1}}}]",
        HEAD + "keychain: [{name: k, type: static, map: {a: b}}]\nworkflow: [{step: a}]",
        HEAD + "surprise: 1\nworkflow: [{step: a, more: 1, tool: {kind: noop, unknown: 1}}]",
        HEAD + "workflow: [{step: a, tool: {kind: container, image: x, args: y}}]",
        HEAD + "workflow: [{step: a, tool: {kind: script, script: x.sh, args: [y]}}]",
        HEAD + "workflow: [{step: a, tool: {kind: noop, args: {b: 1}}}]",
    ],
)
def test_older_forms_empty_values_and_unknown_keys_fit_where_registration_accepts_them(document: str) -> None:
    assert is_registered(document)
    assert fits(read_source(document).value, SCHEMA)


WORDS = sorted({word for section in SCHEMA["$defs"].values() for word in section["properties"]})
SCALARS = st.sampled_from(
    [
        *(
            None,
            True,
            False,
            0,
            1,
            7,
            0.5,
            -1,
            "",
            "a",
            "b",
            "{{ a }}",
            "{{ a b",
            "noop",
            "python",
            "http",
            "shell",
            "spark",
        ),
        *(
            "postgres",
            "playbook",
            "workbook",
            "nats",
            "transfer",
            "get",
            "parallel",
            "fanout",
            "cursor",
            "async",
            "spark",
        ),
        *(
            "retry",
            "jump",
            "continue",
            "previous",
            "page",
            "offset",
            "kv_get",
            "static",
            "oauth2",
            "call.partial",
            "step",
        ),
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def made_of(draw: st.DrawFn, name: str, depth: int = 0) -> dict[str, object]:
    """A map with keys of one section, whose values may be anything but are often right."""
    section = SCHEMA["$defs"][name]
    rules = [rule.get("anyOf", [rule])[0] for rule in section.get("allOf", [])]
    required = [key for rule in rules for key in rule.get("required", [])]
    chosen = draw(st.lists(st.sampled_from(sorted(section["properties"])), max_size=4, unique=True))
    return {key: draw(_value_for(section["properties"][key], depth)) for key in dict.fromkeys([*required, *chosen])}


def _value_for(schema: Any, depth: int) -> st.SearchStrategy[Any]:
    if depth > 8:
        return SCALARS
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        return _tools(depth + 1) if name == "tool" else made_of(name, depth + 1)
    if "anyOf" in schema:
        return st.one_of(*(_value_for(one, depth) for one in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kinds = {
        "string": st.sampled_from(["a", "b", "{{ a }}", "x y", "previous"]),
        "boolean": st.booleans(),
        "null": st.none(),
        "integer": st.integers(0, 20),
        "number": st.integers(0, 20) | st.floats(0, 20),
        "array": st.lists(_value_for(schema.get("items", {}), depth + 1), max_size=2) if "items" in schema else VALUES,
        "object": st.dictionaries(st.sampled_from(["a", "b", "ctx.c"]), SCALARS, max_size=2),
    }
    names = schema.get("type", [])
    found = [kinds[one] for one in ([names] if isinstance(names, str) else names)]
    return st.one_of(*found) if found else VALUES


def _tools(depth: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(KINDS).flatmap(
        lambda kind: made_of(f"tool_{kind}", depth).map(lambda found: {**found, "kind": kind})
    )


@given(made_of("step"), made_of("step"), made_of("playbook"))
@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None, derandomize=True)
def test_the_schema_never_refuses_what_registration_accepts(
    first: dict[str, object], second: dict[str, object], root: dict[str, object]
) -> None:
    head = {"apiVersion": "noetl.io/v2", "kind": "Playbook", "metadata": {"name": "x"}}
    steps = [{**first, "step": "a"}, {**second, "step": "b"}]
    for value in ({**head, "workflow": steps}, {**root, **head, "workflow": [{"step": "a"}]}):
        document = yaml.safe_dump(value)
        if is_registered(document):
            assert fits(read_source(document).value, SCHEMA), document
