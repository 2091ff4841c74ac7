"""The keys that encrypt credentials, as a file or a variable spells them: `<id>:<base64>`, the current one first."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

from noetl_core.errors import InvalidInput

KEY_BYTES: Final = 32
_KEY_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class KeysInvalid(InvalidInput):
    """The text holds no usable keys; it is never repeated, since a part of it may be one."""

    code = "credentials.keys_invalid"


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialKey:
    """256 bits under a name that is stored with everything they encrypt."""

    key_id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.key_id):
            raise KeysInvalid("a key id is made of letters, digits, '.', '_' and '-', at most 64 of them")
        if len(self.secret) != KEY_BYTES:
            raise KeysInvalid(f"key {self.key_id!r} has {len(self.secret)} bytes, not {KEY_BYTES}")

    def line(self) -> str:
        """The key as the file has it."""
        return f"{self.key_id}:{base64.b64encode(self.secret).decode()}"


def parse_keys(text: str) -> tuple[CredentialKey, ...]:
    """Keys on lines or between commas, the current one first; what stands behind # is a remark."""
    keys: dict[str, CredentialKey] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        for entry in line.partition("#")[0].split(","):
            if not entry.strip():
                continue
            key = _parse_key(entry.strip(), number)
            if key.key_id in keys:
                raise KeysInvalid(f"key {key.key_id!r} is there twice")
            keys[key.key_id] = key
    if not keys:
        raise KeysInvalid("there are no keys; one is <id>:<base64 of 32 random bytes>")
    return tuple(keys.values())


def _parse_key(entry: str, number: int) -> CredentialKey:
    key_id, separator, encoded = entry.partition(":")
    if not separator:
        raise KeysInvalid(f"line {number} is not <id>:<base64 of 32 random bytes>")
    try:
        secret = base64.b64decode(encoded.strip().translate({ord("-"): "+", ord("_"): "/"}), validate=True)
    except (binascii.Error, ValueError):
        raise KeysInvalid(f"line {number} has no base64 after its id") from None
    return CredentialKey(key_id=key_id.strip(), secret=secret)
