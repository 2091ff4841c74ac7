import pytest
from noetl_cli.variables import VariablesInvalid, merge_settings, read_payload
from noetl_core.errors import NotCanonical


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("amount=120", {"amount": 120}),
        ("ratio=0.5", {"ratio": 0.5}),
        ("flag=true", {"flag": True}),
        ("nothing=null", {"nothing": None}),
        ('names=["a", "b"]', {"names": ["a", "b"]}),
        ('quoted="120"', {"quoted": "120"}),
        ("who=Ada Lovelace", {"who": "Ada Lovelace"}),
        ("code=007", {"code": "007"}),
        ("not_a_number=NaN", {"not_a_number": "NaN"}),
        ("empty=", {"empty": ""}),
        ("equation=a=b", {"equation": "a=b"}),
        ("retry.limit=3", {"retry": {"limit": 3}}),
        ("a.b.c=x", {"a": {"b": {"c": "x"}}}),
    ],
)
def test_a_value_is_json_if_it_is_that_and_else_text_and_dots_nest(setting: str, expected: object) -> None:
    assert merge_settings({}, [setting]) == expected


def test_settings_go_over_the_payload_and_later_ones_over_earlier_ones() -> None:
    payload = {"who": "world", "retry": {"limit": 1, "delay": 2}}

    merged = merge_settings(payload, ["who=Ada", "retry.limit=3", "retry.limit=4"])

    assert merged == {"who": "Ada", "retry": {"limit": 4, "delay": 2}}
    assert payload == {"who": "world", "retry": {"limit": 1, "delay": 2}}


@pytest.mark.parametrize("setting", ["who", "=Ada", "a..b=1", ".a=1", "a.=1"])
def test_a_setting_without_a_name_or_a_value_is_refused(setting: str) -> None:
    with pytest.raises(VariablesInvalid, match="NAME=VALUE"):
        merge_settings({}, [setting])


def test_a_number_that_no_event_could_carry_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(NotCanonical, match="/big"):
        merge_settings({}, ["big=123456789012345678901234567890"])


def test_nothing_can_be_set_below_what_is_no_map() -> None:
    with pytest.raises(VariablesInvalid, match="'a' is a number"):
        merge_settings({}, ["a=1", "a.b=2"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [("[1, 2]", "must be a JSON object, not a list"), ("{", "is not JSON"), ('{"a": NaN}', "NaN is no JSON")],
)
def test_a_payload_that_is_no_json_object_is_refused_with_its_source(text: str, reason: str) -> None:
    with pytest.raises(VariablesInvalid, match=reason) as refusal:
        read_payload(text, source="variables.json")

    assert refusal.value.message.startswith("variables.json")
