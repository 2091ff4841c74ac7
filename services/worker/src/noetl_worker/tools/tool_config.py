"""The configuration of one call, rendered and read with the types that a tool expects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import NoetlError
from noetl_core.playbook.expressions import is_plain

from noetl_worker.application.credentials import Auth, Credential, Credentials, resolve_auth
from noetl_worker.application.frame_credentials import made_of
from noetl_worker.application.known_secrets import KnownSecrets, secrets_in_names
from noetl_worker.application.light_values import light_value
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.tools.call_failed import credential_failed, misconfigured
from noetl_worker.tools.python_pool import Owner

_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NOBODY = Auth()


class ToolConfig:
    """Renders only what is asked for. Inputs are names too, where nothing else has the name."""

    def __init__(self, call: ToolCall) -> None:
        self.call = replace(call, names={**call.rendered_input(), **call.all_names}) if call.input else call
        self.secrets = secrets_in_names(call.visible) if call.has_keychain else KnownSecrets()

    @property
    def owner(self) -> Owner:
        """Whose call it is: connections and processes are never shared between organizations."""
        return Owner(tenant_id=self.call.tenant_id, organization_id=self.call.organization_id)

    def __contains__(self, key: str) -> bool:
        return self.call.config.get(key) is not None

    def value(self, *keys: str) -> JsonValue:
        """The first of these keys that has a value, rendered."""
        for key in keys:
            value = self.call.configured(key)
            if value is not None:
                return value
        return None

    def text(self, *keys: str) -> str | None:
        """As `value`; a number is as good as its digits."""
        return as_text(self.value(*keys), keys[0])

    def required_text(self, *keys: str) -> str:
        """As `text`, and there must be some."""
        text = self.text(*keys)
        if not text:
            raise misconfigured(f"a {self.call.kind} step needs `{keys[0]}`")
        return text

    def number(self, *keys: str, default: float, minimum: float = 0.0) -> float:
        """A number, or text that is one."""
        value = self.value(*keys)
        number = default if value is None or value == "" else as_number(value, keys[0])
        if number < minimum:
            raise misconfigured(f"`{keys[0]}` is {number:g}, at least {minimum:g} is possible")
        return number

    def boolean(self, key: str, *, default: bool) -> bool:
        """True or false, or a word for it."""
        value = self.value(key)
        if value is None or value == "":
            return default
        if isinstance(value, bool):
            return value
        known = _BOOLEANS.get(str(value).strip().lower())
        if known is None:
            raise misconfigured(f"`{key}` is neither true nor false")
        return known

    def mapping(self, *keys: str) -> JsonObject:
        """A map, or nothing."""
        value = self.value(*keys)
        if value is None or value == "":
            return {}
        if not isinstance(value, dict):
            raise misconfigured(f"`{keys[0]}` is a {type(value).__name__}, not a map")
        return value

    def timeout_seconds(self, *, default: float) -> float:
        """How long the call may take: what its step says, or the operator."""
        return default if self.call.timeout_seconds is None else self.call.timeout_seconds

    @property
    def names_credentials(self) -> bool:
        """Whether the call, or this part of its configuration, has an `auth`."""
        return self.call.auth is not None or self.call.config.get("auth") is not None

    @property
    def credential_name(self) -> str | None:
        """If `auth` is nothing but the name of a credential, the same for all rows."""
        written = self.call.config.get("auth") if self.call.auth is None else self.call.auth
        return written if isinstance(written, str) and is_plain(written) else None

    async def auth(self, credentials: Credentials) -> Auth:
        """The credentials of the call, or of a part of its configuration; their secrets are known from here on."""
        written = self.call.config.get("auth") if self.call.auth is None else self.call.auth
        if written is None:
            return _NOBODY
        try:
            resolved = await resolve_auth(written, credentials=credentials, call=self.call)
        except NoetlError as exc:
            raise credential_failed(exc) from exc
        for credential in resolved.all:
            self.secrets.add_all(made_of(credential, "secrets", secrets_of))
        return resolved

    def below(self, key: str) -> ToolConfig:
        """A map of the configuration, read in the same way."""
        section = self.call.config.get(key)
        is_template = isinstance(section, str)
        if is_template:
            section = self.call.render(section)
        if not isinstance(section, Mapping):
            raise misconfigured(f"a {self.call.kind} step needs `{key}`, a map")
        return self.with_config(section, is_rendered=is_template)

    def with_config(self, config: Mapping[str, JsonValue], *, is_rendered: bool = False) -> ToolConfig:
        """Another configuration of the same call."""
        call = replace(self.call, config=config, input={}, auth=None)
        other = ToolConfig(as_rendered(call) if is_rendered else call)
        other.secrets = self.secrets  # what one part learns, all keep to themselves
        return other


@light_value(frozen=True, slots=True, kw_only=True)
class _RenderedCall(ToolCall):
    """A call whose configuration came out of a template: it is data now, and never a template again."""

    def render(self, value: JsonValue) -> JsonValue:
        return value

    def configured(self, key: str) -> JsonValue:
        return self.config.get(key)


def secrets_of(credential: Credential) -> KnownSecrets:
    """What nobody may be told of a credential."""
    secrets = KnownSecrets()
    secrets.add_fields(credential.data)
    return secrets


def as_rendered(call: ToolCall) -> ToolCall:
    """The call, with a configuration that is taken as it is."""
    return _RenderedCall(**{field.name: getattr(call, field.name) for field in fields(call)})


def as_text(value: JsonValue, name: str) -> str | None:
    """Text, or a number written out; null is no text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise misconfigured(f"`{name}` is a {type(value).__name__}, not text")


def as_number(value: JsonValue, name: str) -> float:
    """A finite number, or text that is one."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if math.isfinite(number):
            return number
    raise misconfigured(f"`{name}` is not a number")
