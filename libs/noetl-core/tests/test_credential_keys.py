from __future__ import annotations

import base64

import pytest
from noetl_core.credential_keys import CredentialKey, KeysInvalid, parse_keys

FIRST = CredentialKey(key_id="2026-11", secret=bytes(range(32)))
SECOND = CredentialKey(key_id="old.key_1", secret=b"\xff\xfe" * 16)
ENCODED = base64.b64encode(FIRST.secret).decode()


def test_keys_stand_on_lines_or_between_commas_the_current_one_first() -> None:
    file = f"# keys of credentials, newest first\n\n{FIRST.line()}  # since November, at last\r\n  {SECOND.line()}\n"
    variable = f"{FIRST.line()}, {SECOND.line()},"

    assert parse_keys(file) == (FIRST, SECOND)
    assert parse_keys(variable) == (FIRST, SECOND)


def test_both_alphabets_of_base64_are_understood() -> None:
    encoded = base64.urlsafe_b64encode(SECOND.secret).decode()

    assert "_" in encoded
    assert parse_keys(f"old.key_1:{encoded}") == (SECOND,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        ENCODED,
        f":{ENCODED}",
        f"a b:{ENCODED}",
        f"{'x' * 65}:{ENCODED}",
        f"k:{ENCODED[:-4]}",
        f"k:{ENCODED}AAAA",
        f"k:{ENCODED[:-1]}",
        "k:not base64 at all",
        "k:größe",
        f"k:{ENCODED}\nk:{base64.b64encode(SECOND.secret).decode()}",
    ],
)
def test_anything_else_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(KeysInvalid) as refusal:
        parse_keys(text)

    assert ENCODED[:20] not in str(refusal.value)
    assert "not base64 at all" not in str(refusal.value)


def test_a_key_does_not_show_itself() -> None:
    assert repr(FIRST) == "CredentialKey(key_id='2026-11')"
