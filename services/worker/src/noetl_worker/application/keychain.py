"""Opens the keychain of a playbook for one call: only what its templates name, and nothing of it is ever written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from noetl_core.canonical import JsonObject, JsonValue
from noetl_core.errors import NoetlError
from noetl_core.ids import ExecutionId
from noetl_core.playbook.expressions import TemplateFailed
from noetl_core.playbook.model import KeychainEntry, KeychainScope, ToolKind
from noetl_core.playbook.references import referenced_paths
from noetl_servicekit.logging import get_logger

from noetl_worker.application.frame_credentials import forget_credentials
from noetl_worker.application.kept_secrets import KeptSecrets, Secret, SecretKey, Unresolved
from noetl_worker.application.known_secrets import secrets_in_names
from noetl_worker.application.outcome import ErrorKind, Outcome
from noetl_worker.application.tool_call import ToolCall
from noetl_worker.application.unread_texts import has_unread_texts

__all__ = ["Keychain", "Secret", "SecretRequest", "SecretSource", "Unresolved"]

logger = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretRequest:
    """One entry of a keychain, its templates rendered, and for whom it is opened."""

    tenant_id: str
    organization_id: str
    execution_id: ExecutionId
    name: str
    kind: str
    config: JsonObject = field(repr=False)


class SecretSource(Protocol):
    """Where entries of one kind come from."""

    async def resolve(self, request: SecretRequest) -> Secret:
        """The fields of the entry; raises `Unresolved` or another `NoetlError` when they cannot be had."""
        ...


class Keychain:
    """What cannot be opened is logged and undefined: the call goes on without it."""

    def __init__(
        self,
        sources: Mapping[str, SecretSource] | None = None,
        *,
        kept: KeptSecrets | None = None,
        count: Callable[[str, str], None] = lambda kind, outcome: None,
    ) -> None:
        self._sources = dict(sources or {})
        self._kept = KeptSecrets() if kept is None else kept
        self._count = count

    async def opened_for(self, call: ToolCall, entries: Mapping[str, KeychainEntry]) -> ToolCall:
        """The call with the entries that it names; an entry may use those that are written before it."""
        wanted = _wanted(call, entries)
        if not wanted:
            return call
        opened: dict[str, JsonObject | None] = {}
        for name, entry in entries.items():
            if name in wanted:
                opened[name] = await self._open(entry, replace(call, keychain=dict(opened)))
        return replace(call, keychain=opened)

    def learn_from(self, call: ToolCall, outcome: Outcome) -> None:
        """What a server has refused is fetched anew by the next call, however long it was meant to last."""
        if outcome.error is None or outcome.error.kind is not ErrorKind.AUTH:
            return
        forget_credentials()
        if call.keychain:
            self._kept.forget(tenant_id=call.tenant_id, organization_id=call.organization_id, names=call.keychain)

    async def _open(self, entry: KeychainEntry, call: ToolCall) -> JsonObject | None:
        try:
            secret = await self._secret(entry, call)
        except NoetlError as exc:
            reason = secrets_in_names(call.visible).hide(exc.message)
            logger.warning(
                "worker.keychain_unresolved",
                entry=entry.name,
                kind=entry.kind,
                execution_id=str(call.execution_id),
                step=call.step,
                reason=reason,
            )
            self._count(entry.kind, "unresolved")
            return None
        self._count(entry.kind, "resolved")
        return dict(secret.fields)

    async def _secret(self, entry: KeychainEntry, call: ToolCall) -> Secret:
        source = self._sources.get(entry.kind)
        if source is None:
            raise Unresolved(f"this worker cannot open entries of the kind {entry.kind!r}")
        request = SecretRequest(
            tenant_id=call.tenant_id,
            organization_id=call.organization_id,
            execution_id=call.execution_id,
            name=entry.name,
            kind=entry.kind,
            config=_rendered(entry, call),
        )
        key = SecretKey.of(
            tenant_id=call.tenant_id,
            organization_id=call.organization_id,
            # A local entry is nobody else's, even where another execution would get the same.
            execution_id=call.execution_id if entry.scope is KeychainScope.LOCAL else None,
            name=entry.name,
            kind=entry.kind,
            config=request.config,
        )
        return await self._kept.get(key, lambda: source.resolve(request), renews=entry.auto_renew)


def _rendered(entry: KeychainEntry, call: ToolCall) -> JsonObject:
    try:
        return {key: call.render(value) for key, value in entry.config.items()}
    except TemplateFailed as exc:
        raise Unresolved(f"its configuration cannot be rendered: {exc.reason}") from exc


def _wanted(call: ToolCall, entries: Mapping[str, KeychainEntry]) -> frozenset[str]:
    """The entries that the call names, and those that they need in turn."""
    if not entries or call.kind == ToolKind.PLAYBOOK:  # What a child is given is stored as its payload.
        return frozenset()
    if has_unread_texts(call.config):
        return frozenset(entries)
    wanted: set[str] = set()
    pending = [*_named(call.config, entries), *_named(call.input, entries), *_named(call.auth, entries)]
    while pending:
        name = pending.pop()
        if name not in wanted:
            wanted.add(name)
            pending.extend(_named(entries[name].config, entries))
    return frozenset(wanted)


def _named(value: object, entries: Mapping[str, KeychainEntry]) -> Iterator[str]:
    for text in texts_in(value):
        for path in referenced_paths(text):
            if path[0] in entries:
                yield path[0]
            elif path[0] == "keychain":
                yield from entries if len(path) == 1 else (name for name in path[1:2] if name in entries)


def texts_in(value: object) -> Iterator[str]:
    """Every text of a value, however deep."""
    pending: list[object] = [value]
    while pending:
        one = pending.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)


def is_empty(value: JsonValue) -> bool:
    """Nothing that could be a secret."""
    return value is None or value in ("", {})
