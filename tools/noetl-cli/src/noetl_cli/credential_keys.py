"""The file of keys that encrypt credentials: api reads it, operators add to it."""

import secrets
from datetime import UTC, datetime
from pathlib import Path

from noetl_core.credential_keys import KEY_BYTES, CredentialKey, KeysInvalid, parse_keys
from noetl_core.errors import AlreadyExists, InvalidInput

from noetl_cli.dev.files import changing, write_atomically

_HEADER = """\
# Keys that encrypt stored credentials, one a line: <id>:<base64 of 32 bytes>.
# The first one encrypts, all of them decrypt: throw none away before `noetl credential rotate` has moved
# everything to the first. Whoever loses this file loses the credentials.
"""


def ensure_keys_file(file: Path) -> None:
    """Have a file with a key; one that is there stays as it is."""
    with changing(file):
        if not file.exists():
            write_atomically(file, f"{_HEADER}{_new_key().line()}\n")


def add_key(file: Path, *, key_id: str = "") -> str:
    """Put a new random key before the others, and return its id; a server that reads the file uses it at once."""
    key = _new_key(key_id)
    with changing(file):
        text = _read(file)
        if text and any(known.key_id == key.key_id for known in _parse(file, text)):
            raise AlreadyExists(f"{file} has a key {key.key_id!r} already", key_id=key.key_id)
        remarks, keys = _split(text or _HEADER)
        write_atomically(file, f"{remarks}{key.line()}\n{keys}")
    return key.key_id


def _new_key(key_id: str = "") -> CredentialKey:
    """The default id tells when a key was made, and does not clash with one made the same day."""
    made = key_id or f"{datetime.now(UTC):%Y-%m-%d}-{secrets.token_hex(2)}"
    return CredentialKey(key_id=made, secret=secrets.token_bytes(KEY_BYTES))


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError as exc:
        raise InvalidInput(f"{file} is not a file of keys: it is not text") from exc


def _parse(file: Path, text: str) -> tuple[CredentialKey, ...]:
    try:
        return parse_keys(text)
    except KeysInvalid as exc:
        raise InvalidInput(f"{file} is not a file of keys: {exc.message}") from exc


def _split(text: str) -> tuple[str, str]:
    """The remarks on top, and the rest."""
    lines = text.splitlines(keepends=True)
    top = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join(lines[:top]), "".join(lines[top:])
