from __future__ import annotations

from typing import Any

from noetl_api.application import workload

NOW = "2026-01-01T12:00:00.000000Z"


def begin(defaults: dict[str, Any], payload: dict[str, Any], **env: str) -> dict[str, Any]:
    variables = workload.merged(defaults, payload)
    keys = workload.own_templates(defaults, payload)
    return workload.rendered(variables, keys, payload=payload, execution_id=7, env=env, now=NOW)


def test_the_payload_wins_by_key() -> None:
    assert begin({"a": 1, "b": {"x": 1}}, {"b": {"y": 2}, "c": 3}) == {"a": 1, "b": {"y": 2}, "c": 3}


def test_the_keys_of_a_ctx_map_are_merged_as_well() -> None:
    assert begin({"a": 1}, {"a": 2, "ctx": {"a": 3, "b": 4}}) == {"a": 3, "b": 4}


def test_a_ctx_that_is_no_map_is_a_variable() -> None:
    assert begin({}, {"ctx": 7}) == {"ctx": 7}


def test_templates_see_the_payload_the_id_the_environment_and_the_other_keys() -> None:
    defaults = {
        "who": "{{ payload.name }}",
        "same": "{{ input.name }}",
        "greeting": "Hello {{ who }}",
        "id": "{{ execution_id }}",
        "zone": "{{ env.ZONE }}",
        "missing": "{{ env.OTHER }}",
        "nested": {"list": ["{{ 1 + 1 }}"]},
    }

    assert begin(defaults, {"name": "Ada"}, ZONE="north") == {
        "who": "Ada",
        "same": "Ada",
        "greeting": "Hello Ada",
        "id": "7",
        "zone": "north",
        "missing": None,
        "nested": {"list": [2]},
        "name": "Ada",
    }


def test_what_cannot_be_rendered_stays_as_written() -> None:
    defaults = {"bad": "{{ 1 / 0 }}", "list": ["{{ nothing | nofilter }}", "{{ 2 }}"]}

    assert begin(defaults, {}) == {"bad": "{{ 1 / 0 }}", "list": ["{{ nothing | nofilter }}", 2]}


def test_a_template_is_rendered_once() -> None:
    assert begin({"a": "{{ '{{ 1 }}' }}"}, {}) == {"a": "{{ 1 }}"}


def test_what_the_caller_gave_is_data_whatever_braces_it_has() -> None:
    given = {"a": "{{ env.SECRET }}", "ctx": {"b": "{{ env.SECRET }}"}}

    assert begin({"a": "{{ 1 }}", "b": "{{ 2 }}"}, given, SECRET="s") == {
        "a": "{{ env.SECRET }}",
        "b": "{{ env.SECRET }}",
    }
