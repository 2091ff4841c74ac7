from __future__ import annotations

import traceback
from typing import Any

import pytest
from noetl_core.credentials import (
    MAX_DATA_BYTES,
    CredentialInvalid,
    bound_to,
    checked_credential,
    credential_of,
    decode_data,
    encode_data,
)
from noetl_core.ports.credentials import Credential, SealedData
from noetl_core.ports.event_log import Scope

SECRET = "hunter2"


def checked(**changes: Any) -> Credential:
    given: dict[str, Any] = {
        "name": "pg",
        "type_name": "postgres",
        "description": "",
        "tags": (),
        "data": {"db_password": SECRET},
    }
    return checked_credential(**{**given, **changes})


def test_a_good_credential_is_kept_as_it_was_given() -> None:
    credential = checked(description="for orders\nand returns", tags=("b", "a", "b"), data={"a": {"b": [1, None]}})

    assert (credential.name, credential.type) == ("pg", "postgres")
    assert credential.description == "for orders\nand returns"
    assert credential.tags == ("b", "a")
    assert credential.data == {"a": {"b": [1, None]}}
    assert decode_data(encode_data(credential)) == credential.data


def test_a_credential_without_a_type_is_generic() -> None:
    assert checked(type_name="").type == "generic"


@pytest.mark.parametrize("name", ["team/pg", "größe", "a b", "pg:orders", "1"])
def test_names_may_have_any_text_in_them(name: str) -> None:
    assert checked(name=name).name == name


@pytest.mark.parametrize(
    "changes",
    [
        {"name": ""},
        {"name": " pg"},
        {"name": "pg\n"},
        {"name": "p\0g"},
        {"name": "p\ud800g"},
        {"name": "x" * 201},
        {"type_name": "a\tb"},
        {"description": "x" * 2_001},
        {"description": "bell\a"},
        {"tags": ("",)},
        {"tags": tuple(map(str, range(51)))},
        {"data": {}},
        {"data": {"k": float("nan")}},
        {"data": {"k": 2**60}},
        {"data": {"k": SECRET.encode()}},
        {"data": {1: SECRET}},
        {"data": {"k": f"{SECRET}\ud800"}},
        {"data": {"k": SECRET * MAX_DATA_BYTES}},
    ],
)
def test_a_bad_credential_is_refused_without_repeating_its_data(changes: dict[str, Any]) -> None:
    with pytest.raises(CredentialInvalid) as refusal:
        checked(**changes)

    assert refusal.value.code == "credential.invalid"
    assert SECRET not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    "data",
    [b"", b'"hunter2"', b'["hunter2"]', b"{'p': 'hunter2'}", b'{"p": "hunter2', b'{"a":1,"a":2}', b"\xffhunter2"],
)
def test_data_that_are_no_json_object_are_refused_without_repeating_them(data: bytes) -> None:
    with pytest.raises(CredentialInvalid) as refusal:
        decode_data(data)

    assert SECRET not in "".join(traceback.format_exception(refusal.value))


def test_secrets_are_not_shown() -> None:
    shown = repr(checked()) + repr(SealedData(key_id="k", ciphertext=b"hunter2"))

    assert SECRET not in shown


def test_encryption_is_bound_to_one_place() -> None:
    places = {
        bound_to(Scope(tenant_id=tenant, organization_id=organization), name)
        for tenant, organization, name in [
            ("a", "b", "c"),
            ("a", "c", "b"),
            ("a/b", "", "c"),
            ("a", "b/", "c"),
            ('a","b', "", "c"),
            ("a", "b", "C"),
        ]
    }

    assert len(places) == 6


def test_a_document_is_read_as_files_and_http_clients_write_it() -> None:
    document = {
        "name": " pg ",
        "credential_type": "postgres",
        "tags": "orders, eu,",
        "data": {"db_password": SECRET},
        "meta": {},
        "description": None,
    }

    assert credential_of(document) == checked(tags=("orders", "eu"))
    assert credential_of({**document, "type": "mysql", "tags": ["a", "b"]}) == checked(
        type_name="mysql", tags=("a", "b")
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"data": SECRET},
        {"data": None},
        {"name": [SECRET]},
        {"name": None},
        {"type": {"k": SECRET}},
        {"tags": {"k": SECRET}},
        {"tags": [["x"]]},
        {"meta": {"k": SECRET}},
        {"passwort": SECRET},
    ],
)
def test_a_document_that_is_no_credential_is_refused_without_repeating_it(changes: dict[str, object]) -> None:
    with pytest.raises(CredentialInvalid) as refusal:
        credential_of({"name": "pg", "data": {"k": SECRET}, **changes})

    assert SECRET not in "".join(traceback.format_exception(refusal.value))
