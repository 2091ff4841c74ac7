"""What the `auth` of a tool means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from noetl_core.canonical import JsonValue
from noetl_core.credentials import CREDENTIAL_NOT_FOUND
from noetl_core.errors import InvalidInput
from noetl_core.ports.credentials import Credential

from noetl_worker.application.credential_source import Credentials
from noetl_worker.application.frame_credentials import made_of
from noetl_worker.application.light_values import light_value
from noetl_worker.application.tool_call import ToolCall

__all__ = ["CREDENTIAL_NOT_FOUND", "Auth", "AuthInvalid", "Credential", "Credentials", "resolve_auth"]

_REFERENCE_KEYS = ("key", "credential")
_SOURCE_WORDS = frozenset({"credential", "credential_store", "credentials", "keychain"})
"""`source` may say where a credential comes from instead of what it is."""

_DESCRIBING = frozenset({"type", "source", "provider", *_REFERENCE_KEYS})
_INLINE_FIELDS = frozenset(
    {
        *("access_token", "api_key", "db_host", "db_password", "dsn", "host", "nats_url", "password", "servers"),
        *("secret", "secret_key", "token", "url", "user", "username", "value"),
    }
)
"""A map with one of these is a credential itself, such as an entry of the keychain, and no map of aliases."""


class AuthInvalid(InvalidInput):
    """`auth` is written in a way that has no meaning; what it says is not repeated, it may be a secret."""

    code = "AUTH_INVALID"


@light_value(frozen=True, slots=True, kw_only=True)
class Auth:
    """What `auth` resolved to: nothing, one credential, or several with the names that the tool knows them by."""

    single: Credential | None = None
    aliases: Mapping[str, Credential] = field(default_factory=dict)

    @property
    def all(self) -> tuple[Credential, ...]:
        """Every credential of the call, so that their secrets can be kept out of what it says."""
        return (*self.aliases.values(), *(() if self.single is None else (self.single,)))

    def one(self) -> Credential | None:
        """The credential of a tool that needs one; a single alias will do."""
        if self.single is None and len(self.aliases) == 1:
            return next(iter(self.aliases.values()))
        if self.single is None and self.aliases:
            raise AuthInvalid(f"`auth` names {len(self.aliases)} credentials where one is needed")
        return self.single


async def resolve_auth(auth: JsonValue, *, credentials: Credentials, call: ToolCall) -> Auth:
    """Understand `auth`: a name, a template, `{type or source, key}`, a credential itself, or a map of aliases."""
    rendered = call.render(auth)
    if not rendered and (rendered is None or rendered in ("", {})):
        return Auth()
    if isinstance(rendered, str):
        return Auth(single=await _fetch(rendered, credentials, call))
    if not isinstance(rendered, dict):
        raise AuthInvalid(f"`auth` is a name or a map, not a {type(rendered).__name__}")
    if _is_one_credential(rendered):
        return Auth(single=await _described(rendered, credentials, call))
    aliases: dict[str, Credential] = {}
    for alias, value in rendered.items():
        if isinstance(value, str):
            aliases[alias] = await _fetch(value, credentials, call)
        elif isinstance(value, dict) and _is_one_credential(value):
            aliases[alias] = await _described(value, credentials, call)
        else:
            raise AuthInvalid(f"`auth.{alias}` is neither the name of a credential nor {{type, key}}")
    return Auth(aliases=aliases)


def _is_one_credential(value: Mapping[str, JsonValue]) -> bool:
    if any(isinstance(value.get(key), str) for key in ("type", "source", *_REFERENCE_KEYS)):
        return True
    return any(name in _INLINE_FIELDS and not isinstance(field, dict) for name, field in value.items())


async def _described(value: Mapping[str, JsonValue], credentials: Credentials, call: ToolCall) -> Credential:
    """A map that names a credential, or is one; fields beside the name win over the stored ones."""
    kind = value.get("type") or value.get("source")
    own_type = kind if isinstance(kind, str) and kind not in _SOURCE_WORDS else None
    fields = {name: field for name, field in value.items() if name not in _DESCRIBING}
    name = next((value[key] for key in _REFERENCE_KEYS if value.get(key)), None)
    if name is not None and not isinstance(name, str):
        raise AuthInvalid("`auth.key` is not the name of a credential")
    if own_type == "api_key" and name is not None and "value" in fields:
        # `{type: api_key, key: X-Api-Key, value: …}`: here the key is the header's.
        return Credential(name="auth", type="api_key", data={"header": name, **fields})
    if name is None:
        if not fields:
            raise AuthInvalid("`auth` names no credential: it has no `key`")
        return Credential(name="auth", type=own_type or "", data=fields)

    def with_fields(stored: Credential) -> Credential:
        return Credential(name=stored.name, type=own_type or stored.type, data={**stored.data, **fields})

    return made_of(await _fetch(name, credentials, call), f"described: {own_type!r} {fields!r}", with_fields)


async def _fetch(name: str, credentials: Credentials, call: ToolCall) -> Credential:
    return await credentials.get(
        tenant_id=call.tenant_id,
        organization_id=call.organization_id,
        name=name,
        execution_id=call.execution_id,
    )
