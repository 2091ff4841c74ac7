"""What a credential must look like, what its encryption is bound to, and how dealing with one can fail."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Final

from noetl_core.canonical import JsonObject, decode, encode
from noetl_core.errors import Corrupt, InvalidInput, NotCanonical, NotFound, Rejected
from noetl_core.ports.credentials import Credential
from noetl_core.ports.event_log import Scope

NOT_FOUND: Final = "credential.not_found"
"""Code of the `NotFound` for a name under which nothing is stored."""

CREDENTIAL_NOT_FOUND: Final = "CREDENTIAL_NOT_FOUND"
"""What the same is called when a call of a tool needed the credential: the code of its outcome."""

GENERIC_TYPE: Final = "generic"
"""Type of a credential that was stored without one."""

MAX_DATA_BYTES: Final = 64 * 1024
MAX_NAME_LENGTH: Final = 200
MAX_TYPE_LENGTH: Final = 100
MAX_DESCRIPTION_LENGTH: Final = 2_000
MAX_TAGS: Final = 50
MAX_TAG_LENGTH: Final = 100

_BINDING: Final = "noetl/credential/1"


class CredentialInvalid(InvalidInput):
    """A credential cannot be stored as it was given; the message never repeats a part of its data."""

    code = "credential.invalid"


class CredentialsNotConfigured(Rejected):
    """The installation has no encryption keys, so it keeps no credentials."""

    code = "credentials.not_configured"

    def __init__(self) -> None:
        super().__init__(
            "this installation has no credential keys; set NOETL_CREDENTIAL_KEYS_FILE or NOETL_CREDENTIAL_KEYS for api"
        )


class KeyMissing(Rejected):
    """The data are encrypted with a key that this installation does not have."""

    code = "credentials.key_missing"

    def __init__(self, key_id: str) -> None:
        super().__init__(f"there is no credential key {key_id!r} here", key_id=key_id)


class CredentialUnreadable(Corrupt):
    """The stored data are not what this key encrypted for this credential."""

    code = "credential.unreadable"

    def __init__(self, *, name: str, key_id: str) -> None:
        super().__init__(
            f"the data of credential {name!r} cannot be opened with key {key_id!r}", name=name, key_id=key_id
        )


def credential_not_found(name: str) -> NotFound:
    """There is no credential of this name for this caller."""
    return NotFound("credential", name, code=NOT_FOUND)


def checked_credential(
    *, name: str, type_name: str, description: str, tags: Sequence[str], data: Mapping[str, object]
) -> Credential:
    """The credential in the form in which it is stored; raises `CredentialInvalid` with what is wrong."""
    _check_line("the name", name, max_length=MAX_NAME_LENGTH)
    _check_line("the type", type_name := type_name or GENERIC_TYPE, max_length=MAX_TYPE_LENGTH)
    if len(description) > MAX_DESCRIPTION_LENGTH:
        raise CredentialInvalid(f"the description has more than {MAX_DESCRIPTION_LENGTH} characters")
    if not _is_text(description.replace("\n", " ").replace("\t", " ")):
        raise CredentialInvalid("the description has characters that are not text")
    labels = tuple(dict.fromkeys(tags))
    if len(labels) > MAX_TAGS:
        raise CredentialInvalid(f"there are more than {MAX_TAGS} tags")
    for tag in labels:
        _check_line("a tag", tag, max_length=MAX_TAG_LENGTH)
    if not data:
        raise CredentialInvalid("the data must be an object with at least one member")
    return Credential(name=name, type=type_name, description=description, tags=labels, data=decode_data(_encoded(data)))


def credential_of(document: Mapping[str, object]) -> Credential:
    """The credential that a document describes, as files and HTTP clients write them; nulls count as left out.

    `credential_type` is another name of `type`; tags may be one text with commas. `meta`, which is not stored, must
    be empty.
    """
    given = {name: value for name, value in document.items() if value is not None}
    unknown = given.keys() - {"name", "type", "credential_type", "description", "tags", "data", "meta"}
    if unknown:
        raise CredentialInvalid(f"a credential has no {', '.join(sorted(map(repr, unknown)))}")
    if given.get("meta"):
        raise CredentialInvalid("meta is not stored: use description and tags")
    data = given.get("data")
    if not isinstance(data, Mapping):
        raise CredentialInvalid("the data must be an object")
    return checked_credential(
        name=_text(given, "name").strip(),
        type_name=(_text(given, "type") or _text(given, "credential_type")).strip(),
        description=_text(given, "description"),
        tags=_tags(given.get("tags", "")),
        data=data,
    )


def encode_data(credential: Credential) -> bytes:
    """The data as bytes that can be encrypted."""
    return _encoded(credential.data)


def decode_data(data: bytes) -> JsonObject:
    """The data that bytes carry; whoever wrote them, a refusal names no value."""
    _check_size(data)
    try:
        value = decode(data)
    except NotCanonical as exc:
        raise CredentialInvalid(f"the data cannot be read: {exc.message}") from None  # its cause holds the document
    if not isinstance(value, dict):
        raise CredentialInvalid("the data must be a JSON object")
    return value


def bound_to(scope: Scope, name: str) -> bytes:
    """What encryption is bound to: a row that is moved to another tenant, organization or name does not open."""
    return encode([_BINDING, scope.tenant_id, scope.organization_id, name])


def _encoded(data: Mapping[str, object]) -> bytes:
    try:
        encoded = encode(data)
    except NotCanonical as exc:
        raise CredentialInvalid(f"the data cannot be stored: {exc.message}") from None
    _check_size(encoded)
    return encoded


def _check_size(data: bytes) -> None:
    if len(data) > MAX_DATA_BYTES:
        raise CredentialInvalid(f"the data have {len(data)} bytes, more than {MAX_DATA_BYTES}")


def _text(document: Mapping[str, object], member: str) -> str:
    value = document.get(member, "")
    if not isinstance(value, str):
        raise CredentialInvalid(f"the {member} must be text")
    return value


def _tags(value: object) -> list[str]:
    if isinstance(value, str):
        return [tag.strip() for tag in value.split(",") if tag.strip()]
    if not isinstance(value, Sequence) or not all(isinstance(tag, str) for tag in value):
        raise CredentialInvalid("the tags must be a list of texts")
    return list(value)


def _check_line(what: str, text: str, *, max_length: int) -> None:
    if not text or text != text.strip():
        raise CredentialInvalid(f"{what} must be text without spaces around it, not {text[:max_length]!r}")
    if len(text) > max_length:
        raise CredentialInvalid(f"{what} has more than {max_length} characters")
    if not _is_text(text):
        raise CredentialInvalid(f"{what} has characters that are not text: {text!r}")


def _is_text(text: str) -> bool:
    return not any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)
