"""The tokens file that servers read: who presents which token, as digests only."""

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from noetl_core.errors import AlreadyExists, InvalidInput
from noetl_servicekit.callers import ANY, Role

from noetl_cli.dev.files import changing, write_atomically

ROLES: Final = tuple(role.value for role in Role)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenEntry:
    """One line of the file; the token itself is nowhere."""

    name: str
    token_sha256: str
    tenant_id: str
    organization_id: str
    role: str


def new_token() -> str:
    """Random and long enough that nobody finds it; the prefix lets scanners of secrets recognize it."""
    return f"noetl_{secrets.token_urlsafe(32)}"


def entry_for(token: str, *, name: str, tenant_id: str, organization_id: str, role: str) -> TokenEntry:
    """What the file will say about a token; refuses what servers would refuse."""
    if role not in ROLES:
        raise InvalidInput(f"a role is one of {', '.join(ROLES)}, not {role!r}")
    if not (name and tenant_id and organization_id):
        raise InvalidInput("a token needs a name, a tenant and an organization")
    if role != Role.SERVICE.value and ANY in (tenant_id, organization_id):
        raise InvalidInput(f"only a service may act for any tenant, not the role {role}")
    digest = hashlib.sha256(token.encode()).hexdigest()
    return TokenEntry(name=name, token_sha256=digest, tenant_id=tenant_id, organization_id=organization_id, role=role)


def add_token(file: Path, entry: TokenEntry) -> None:
    """Add a line under a name that is not taken; servers notice within a second."""
    with changing(file):
        entries = _read(file)
        if any(known.get("name") == entry.name for known in entries):
            raise AlreadyExists(f"{file} has a token called {entry.name!r} already", name=entry.name)
        _write(file, [*entries, asdict(entry)])


def put_tokens(file: Path, *wanted: TokenEntry) -> None:
    """Have these lines in the file, in place of others of their names; what else it has stays."""
    with changing(file):
        names = {entry.name for entry in wanted}
        others = [known for known in _read(file) if known.get("name") not in names]
        _write(file, [*(asdict(entry) for entry in wanted), *others])


def _read(file: Path) -> list[dict[str, Any]]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        entries = document["tokens"]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError) as exc:
        raise InvalidInput(f"{file} is not a tokens file: {exc}") from exc
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidInput(f'{file} is not a tokens file: it must be {{"tokens": [...]}}')
    return entries


def _write(file: Path, entries: list[dict[str, Any]]) -> None:
    write_atomically(file, json.dumps({"tokens": entries}, indent=2) + "\n")
