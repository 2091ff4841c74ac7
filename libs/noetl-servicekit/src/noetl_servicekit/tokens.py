"""Tokens from a file that may change while the process runs: each maps to exactly one caller."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from noetl_core.errors import NotAuthenticated

from noetl_servicekit.callers import ANY, Caller, Role
from noetl_servicekit.env import SettingsInvalid
from noetl_servicekit.logging import get_logger
from noetl_servicekit.stage_tokens import PREFIX, read_stage_token

logger = get_logger()

SECONDS_BETWEEN_LOOKS: Final = 1.0
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_Signature = tuple[int, int, int]


class Tokens:
    """Only digests are kept, and looked up by digest: neither memory nor timing gives a token away."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time
    ) -> None:
        self._path = path
        self._clock = clock
        self._now = now
        self._looked_at = clock()
        try:
            self._signature: _Signature | None = _signature(path)
            self._callers = parse_tokens(path.read_text("utf-8"))
        except OSError as exc:
            raise SettingsInvalid([f"tokens file {str(path)!r} cannot be read: {exc.strerror}"]) from exc
        except ValueError as exc:
            raise SettingsInvalid([f"tokens file {str(path)!r}: {exc}"]) from exc

    def authenticate(self, header: str | None) -> Caller:
        """The caller behind `Bearer <token>`; every refusal reads the same but for what was missing."""
        self._reload_if_changed()
        if header is None:
            raise NotAuthenticated("no authorization was presented")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise NotAuthenticated("authorization must be 'Bearer <token>'")
        if token.strip().startswith(PREFIX):
            return read_stage_token(token.strip(), self._callers, now=self._now())
        caller = self._callers.get(token_sha256(token.strip()))
        if caller is None:
            raise NotAuthenticated("nobody has this token")
        return caller

    def _reload_if_changed(self) -> None:
        now = self._clock()
        if now - self._looked_at < SECONDS_BETWEEN_LOOKS:
            return
        self._looked_at = now
        try:
            signature = _signature(self._path)
            if signature == self._signature:
                return
            self._signature = signature  # a file that does not read is reported once, not every second
            self._callers = parse_tokens(self._path.read_text("utf-8"))
        except (OSError, ValueError) as exc:
            if isinstance(exc, OSError):
                if self._signature is None:
                    return
                self._signature = None
            logger.error("tokens.reload_failed", path=str(self._path), reason=str(exc))
            return
        logger.info("tokens.reloaded", path=str(self._path), count=len(self._callers))


def token_sha256(token: str) -> str:
    """How a token is written in the file."""
    return hashlib.sha256(token.encode()).hexdigest()


def parse_tokens(text: str) -> Mapping[str, Caller]:
    """Callers by digest; raises ValueError with the place of the first mistake."""
    document = json.loads(text)
    entries = document.get("tokens") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError('must be {"tokens": [...]}')
    callers: dict[str, Caller] = {}
    for index, entry in enumerate(entries):
        try:
            digest, caller = _entry(entry)
        except ValueError as exc:
            raise ValueError(f"tokens[{index}]: {exc}") from None
        if digest in callers:
            raise ValueError(f"tokens[{index}]: {caller.name!r} and {callers[digest].name!r} share a token")
        callers[digest] = caller
    return callers


def _entry(entry: object) -> tuple[str, Caller]:
    if not isinstance(entry, dict):
        raise ValueError("must be an object")
    fields: dict[str, str] = {}
    for name in ("name", "token_sha256", "tenant_id", "organization_id", "role"):
        value = entry.get(name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} must be a text")
        fields[name] = value
    if not _SHA256.fullmatch(fields["token_sha256"]):
        raise ValueError("token_sha256 must be 64 lower-case hexadecimal digits")
    roles = {role.value: role for role in Role}
    role = roles.get(fields["role"])
    if role is None:
        raise ValueError(f"role must be one of {', '.join(roles)}, not {fields['role']!r}")
    if role is not Role.SERVICE and ANY in (fields["tenant_id"], fields["organization_id"]):
        raise ValueError(f"only a service may act for any tenant, not the role {role.value}")
    if role is Role.SERVICE and (fields["tenant_id"], fields["organization_id"]) != (ANY, ANY):
        # Services trust each other with every tenant's data; a token that seems to be confined would not be.
        raise ValueError(f"a service acts for every tenant and organization: both must be {ANY!r}")
    caller = Caller(
        name=fields["name"],
        tenant_id=fields["tenant_id"],
        organization_id=fields["organization_id"],
        role=role,
    )
    return fields["token_sha256"], caller


def _signature(path: Path) -> _Signature:
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
