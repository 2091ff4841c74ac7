"""Where encryption keys come from: a variable, a file that may change, or a key management service."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from noetl_core.credential_keys import CredentialKey, KeysInvalid, parse_keys
from noetl_core.credentials import KeyMissing

KEYS_RELOADED: Final = "credential_keys.reloaded"
KEYS_RELOAD_FAILED: Final = "credential_keys.reload_failed"

Report = Callable[[str, str], None]
"""Takes one of the events above and what is to be said about it; never a key."""

_Signature = tuple[int, int, int]


class KeyProvider(Protocol):
    """The hook for key management services: it gives out data keys, however it came by them.

    Such a provider typically keeps its data keys wrapped, has the service unwrap each once, and remembers them for
    as long as the process runs. It is asked for every encryption and decryption.
    """

    async def current(self) -> CredentialKey:
        """The key to encrypt with."""
        ...

    async def find(self, key_id: str) -> CredentialKey:
        """The key to decrypt with; raises `KeyMissing` if there is none of this id."""
        ...


class StaticKeys:
    """Keys that stay the same while the process runs, such as those in a variable; the first is the current one."""

    def __init__(self, keys: Sequence[CredentialKey]) -> None:
        if not keys:
            raise KeysInvalid("there are no keys")
        self._current = keys[0]
        self._by_id = {key.key_id: key for key in keys}

    @classmethod
    def from_text(cls, text: str) -> StaticKeys:
        """The keys that a variable holds."""
        return cls(parse_keys(text))

    async def current(self) -> CredentialKey:
        """The first key."""
        return self._current

    async def find(self, key_id: str) -> CredentialKey:
        """One of the keys."""
        key = self._by_id.get(key_id)
        if key is None:
            raise KeyMissing(key_id)
        return key


class FileKeys:
    """Keys in a file, read again when it changes: a key can be added and made current without a restart.

    A file that cannot be read any more changes nothing: what was encrypted must stay readable.
    """

    def __init__(self, path: Path, *, report: Report = lambda event, detail: None) -> None:
        self._path = path
        self._report = report
        try:
            self._signature: _Signature | None = _signature(path)
            self._keys = StaticKeys.from_text(path.read_text("utf-8"))
        except (OSError, UnicodeDecodeError) as exc:
            raise KeysInvalid(f"the credential keys file {str(path)!r} cannot be read: {_reason(exc)}") from exc
        except KeysInvalid as exc:
            raise KeysInvalid(f"the credential keys file {str(path)!r}: {exc.message}") from exc

    async def current(self) -> CredentialKey:
        """The first key of the file."""
        self._reload_if_changed()
        return await self._keys.current()

    async def find(self, key_id: str) -> CredentialKey:
        """One of the file's keys."""
        self._reload_if_changed()
        return await self._keys.find(key_id)

    def _reload_if_changed(self) -> None:
        try:
            signature = _signature(self._path)
            if signature == self._signature:
                return
            self._signature = signature  # a file that does not read is reported once, not at every use
            self._keys = StaticKeys.from_text(self._path.read_text("utf-8"))
        except OSError as exc:
            if self._signature is not None:
                self._signature = None
                self._report(KEYS_RELOAD_FAILED, f"{self._path}: {_reason(exc)}")
        except (UnicodeDecodeError, KeysInvalid) as exc:
            self._report(KEYS_RELOAD_FAILED, f"{self._path}: {_reason(exc)}")
        else:
            self._report(KEYS_RELOADED, str(self._path))


def _signature(path: Path) -> _Signature:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _reason(exc: Exception) -> str:
    match exc:
        case KeysInvalid():
            return exc.message
        case OSError():
            return exc.strerror or type(exc).__name__
        case _:
            return "it is not text"
