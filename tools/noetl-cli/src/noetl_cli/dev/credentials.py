"""The secrets of the stack on this machine: made at its first start, kept in a private directory."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from noetl_core.errors import Corrupt
from noetl_servicekit.callers import ANY, Role

from noetl_cli.credential_keys import ensure_keys_file
from noetl_cli.dev.files import read_or_create_secret, write_atomically
from noetl_cli.tokens import entry_for, put_tokens

LOCAL_TENANT = "default"
LOCAL_ORGANIZATION = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCredentials:
    """One token for the services among themselves, one for whoever uses the stack, a password per database role."""

    directory: Path

    @property
    def tokens_file(self) -> Path:
        """What servers read; `noetl token create` may add to it."""
        return self.directory / "tokens.json"

    @property
    def service_token_file(self) -> Path:
        return self.directory / "service.token"

    @property
    def credential_keys_file(self) -> Path:
        """What api encrypts stored credentials with."""
        return self.directory / "credential.keys"

    @property
    def local_token_file(self) -> Path:
        return self.directory / "local.token"

    def create(self) -> None:
        """Make what is missing, and have the tokens file know both tokens; what others added to it stays."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        ensure_keys_file(self.credential_keys_file)
        service = read_or_create_secret(self.service_token_file)
        local = read_or_create_secret(self.local_token_file)
        put_tokens(
            self.tokens_file,
            entry_for(service, name="services", tenant_id=ANY, organization_id=ANY, role=Role.SERVICE.value),
            entry_for(
                local, name="local", tenant_id=LOCAL_TENANT, organization_id=LOCAL_ORGANIZATION, role=Role.ADMIN.value
            ),
        )

    def local_token(self) -> str:
        """The token of whoever may read the directory."""
        return read_or_create_secret(self.local_token_file)

    def role_passwords(self, roles: Sequence[str]) -> Mapping[str, str]:
        """A random password for each database role, the same at every start."""
        file = self.directory / "role-passwords.json"
        try:
            known = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            known = {}
        except ValueError as exc:
            raise Corrupt(f"{file} is not readable: {exc}") from exc
        made = {role: known.get(role) or new_password() for role in roles}
        if made != known:
            write_atomically(file, json.dumps(made, indent=2) + "\n")
        return made


def new_password() -> str:
    """Random, and without characters that an address would have to escape."""
    return secrets.token_urlsafe(24)
