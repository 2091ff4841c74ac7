"""Credentials encrypted with AES-256-GCM: whoever changes, moves or swaps a row only makes it unreadable."""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from noetl_core.credentials import CredentialUnreadable, bound_to
from noetl_core.ports.credentials import SealedData
from noetl_core.ports.event_log import Scope

from noetl_adapters.secrets.keys import KeyProvider

FORMAT: Final = b"\x01"
"""First byte of what is stored, so that another algorithm can follow without guessing."""

NONCE_BYTES: Final = 12
"""Random for each encryption: a key may encrypt four thousand million times before two are likely to meet."""


class AesGcmSealer:
    """Port `CredentialSealer`."""

    def __init__(self, keys: KeyProvider) -> None:
        self._keys = keys

    async def current_key_id(self) -> str:
        """The key with which `seal` encrypts now."""
        return (await self._keys.current()).key_id

    async def seal(self, scope: Scope, name: str, data: bytes) -> SealedData:
        """Encrypt with the current key."""
        key = await self._keys.current()
        nonce = secrets.token_bytes(NONCE_BYTES)
        encrypted = AESGCM(key.secret).encrypt(nonce, data, bound_to(scope, name))
        return SealedData(key_id=key.key_id, ciphertext=FORMAT + nonce + encrypted)

    async def open(self, scope: Scope, name: str, sealed: SealedData) -> bytes:
        """Decrypt with the key that the data name."""
        key = await self._keys.find(sealed.key_id)
        start = len(FORMAT)
        nonce, encrypted = sealed.ciphertext[start : start + NONCE_BYTES], sealed.ciphertext[start + NONCE_BYTES :]
        if sealed.ciphertext[:start] != FORMAT or len(nonce) != NONCE_BYTES:
            raise CredentialUnreadable(name=name, key_id=sealed.key_id)
        try:
            return AESGCM(key.secret).decrypt(nonce, encrypted, bound_to(scope, name))
        except InvalidTag as exc:
            raise CredentialUnreadable(name=name, key_id=sealed.key_id) from exc
