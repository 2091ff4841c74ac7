"""Keep the secrets that a call was given out of everything it says: messages, logs, and results that echo them."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from noetl_core.canonical import JsonValue
from noetl_core.playbook.views import View

from noetl_worker.application.credential_names import is_credential_name

HIDDEN = "***"

_PUBLIC = frozenset(
    {
        *("account", "auth", "auth_type", "bucket", "charset", "data_path", "database", "dbname", "description"),
        *("domain", "endpoint", "header", "header_name", "host", "in", "kind", "location", "method", "name", "param"),
        *("port", "prefix", "provider", "region", "role", "schema", "scope", "service", "source", "ssl", "sslmode"),
        *("tags", "token_type", "type", "url_style", "use_ssl", "user", "username", "version", "warehouse"),
    }
)
"""Fields of a credential that say where and who, after a prefix such as `db_`; all others are secret."""

_PREFIXES = ("db_", "pg_", "nats_", "postgres_")
_MIN_CHARACTERS = 4
"""Shorter values stand in every other word: blotting them out would hide the message, not the secret."""

_SURE_CHARACTERS = 12
"""Data are changed only where it cannot be chance that a value is the same as a secret."""


class KnownSecrets:
    """The secret values of one call."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._spellings: list[str] = []
        self._values: set[str] = set()
        if values != ():  # most calls begin with none
            self.add(*values)

    def __bool__(self) -> bool:
        return bool(self._spellings)

    def __repr__(self) -> str:
        return f"KnownSecrets({len(self._spellings)} spellings)"

    def add(self, *values: str) -> None:
        """Learn values, in all the ways in which they may be spelled."""
        if all(len(value) < _MIN_CHARACTERS for value in values):
            return
        found = set(self._spellings)
        for value in values:
            if len(value) >= _MIN_CHARACTERS:
                self._values.add(value)
                found.update(_spellings(value))
        # The longest first: of two secrets one may be a part of the other.
        self._spellings = sorted(found, key=lambda spelling: (-len(spelling), spelling))

    def add_all(self, others: KnownSecrets) -> None:
        """Learn what others know."""
        if not self._spellings:
            self._spellings, self._values = others._spellings, set(others._values)
        else:
            self.add(*others._values)

    def add_fields(self, fields: Mapping[str, object]) -> None:
        """Learn the secret fields of a credential or of a keychain entry."""
        self.add(*_secret_fields(fields))

    def add_keychain(self, keychain: object) -> None:
        """Learn every value of every entry; those that templates have not asked for cannot have leaked."""
        if isinstance(keychain, Mapping):
            for entry in keychain.values():
                if isinstance(entry, str):
                    self.add(entry)
                elif isinstance(entry, Mapping):
                    self.add_fields(entry)

    def hide(self, text: str) -> str:
        """The text without them."""
        for spelling in self._spellings:
            if spelling in text:
                text = text.replace(spelling, HIDDEN)
        return text

    def are_in(self, data: bytes) -> bool:
        """Whether any of them stands in these bytes."""
        return any(spelling.encode() in data for spelling in self._spellings)

    def hide_in_data(self, value: JsonValue, *, whole: bool = False) -> JsonValue:
        """A value without them, for results of servers that echo what they were sent.

        With `whole`, a text that is nothing but a secret is hidden however short it is.
        """
        sure = [spelling for spelling in self._spellings if len(spelling) >= _SURE_CHARACTERS]
        alone = self._values if whole else frozenset[str]()
        return _replaced(value, sure, alone) if sure or alone else value


def _secret_fields(fields: Mapping[str, object]) -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _secret_fields(value)
        elif isinstance(value, list):
            yield from _secret_fields({f"{name}[{index}]": item for index, item in enumerate(value)})
        elif isinstance(value, str):
            if "://" in value:
                yield from _userinfo(value)
            elif not _is_public(name):
                yield value
                if name.lower().endswith("dsn"):
                    yield from (part.partition("=")[2].strip("'") for part in value.split() if "password" in part)


def _is_public(name: str) -> bool:
    word = name.lower()
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return word in _PUBLIC


def _userinfo(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        yield url
        return
    if parts.password:
        yield parts.password
        yield unquote(parts.password)
    elif parts.username and parts.scheme in {"nats", "tls"}:
        yield parts.username  # a token stands alone before the @
    for name, value in parse_qsl(parts.query):
        if is_credential_name(name):
            yield value


def _spellings(value: str) -> Iterator[str]:
    yield value
    yield quote(value, safe="")
    yield quote_plus(value)
    yield json.dumps(value)[1:-1]
    yield value.replace("'", "''")
    yield base64.b64encode(value.encode(errors="replace")).decode()


def _replaced(value: JsonValue, secrets: list[str], alone: Collection[str]) -> JsonValue:
    if isinstance(value, str):
        if value in alone:
            return HIDDEN
        for secret in secrets:
            if secret in value:
                value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, dict):
        return {str(_replaced(key, secrets, ())): _replaced(child, secrets, alone) for key, child in value.items()}
    if isinstance(value, list):
        return [_replaced(child, secrets, alone) for child in value]
    return value


def secrets_in_names(names: Mapping[str, object]) -> KnownSecrets:
    """What templates of this call can have put anywhere: the values of its keychain."""
    secrets = KnownSecrets()
    keychain = names.get("keychain")
    if keychain is not None:
        secrets.add_keychain(keychain.whole() if isinstance(keychain, View) else keychain)
    return secrets
