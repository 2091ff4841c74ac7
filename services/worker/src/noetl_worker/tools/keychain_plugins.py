"""Sources of the keychain from other packages: clouds and vaults, found by their entry points."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from noetl_core.errors import NoetlError
from noetl_servicekit.logging import get_logger

from noetl_worker.application.credentials import Credentials
from noetl_worker.application.keychain import Secret, SecretRequest, SecretSource, Unresolved

__all__ = [
    "ENTRY_POINT_GROUP",
    "KeychainEnvironment",
    "Secret",
    "SecretRequest",
    "SecretSource",
    "SecretSourceFactory",
    "Unresolved",
    "installed_sources",
    "load_sources",
]

ENTRY_POINT_GROUP: Final = "noetl.keychain"
"""The name of an entry point is a `provider` (gcp, aws, vault …) or a kind (google_oauth, google_id_token)."""

SETTINGS_PREFIX: Final = "NOETL_KEYCHAIN_"

_ENTER_SECONDS = 30.0
_RESOLVE_SECONDS = 30.0

logger = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeychainEnvironment:
    """What the worker gives a source when it makes it."""

    settings: Mapping[str, str] = field(repr=False)
    """Variables `NOETL_KEYCHAIN_<NAME>_<SETTING>` of the worker's environment, by their names in lower case."""
    credentials: Credentials


SecretSourceFactory = Callable[[KeychainEnvironment], SecretSource]
"""Called once when the worker starts. A source that is an async context manager is entered and left."""


def installed_sources() -> tuple[EntryPoint, ...]:
    """What the packages of this Python provide, in an order that does not depend on the file system."""
    return tuple(sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda point: (point.name, point.value)))


async def load_sources(
    points: Iterable[EntryPoint],
    *,
    credentials: Credentials,
    variables: Mapping[str, str],
    stack: AsyncExitStack,
) -> dict[str, SecretSource]:
    """A source for each plug-in; one that is broken leaves its entries unresolved, and stops nobody else."""
    sources: dict[str, SecretSource] = {}
    for point in points:
        name, package = point.name, point.dist.name if point.dist is not None else point.value
        environment = KeychainEnvironment(settings=_settings_of(name, variables), credentials=credentials)
        try:
            if name in sources:
                raise ValueError(f"{name!r} is provided already")
            source: SecretSource = point.load()(environment)
            if isinstance(source, AbstractAsyncContextManager):
                async with asyncio.timeout(_ENTER_SECONDS):
                    source = await stack.enter_async_context(source)
            if not callable(getattr(source, "resolve", None)):
                raise TypeError(f"its factory gave a {type(source).__name__}, which has no `resolve`")
        except Exception as exc:
            reason = f"{type(exc).__name__}: {exc}"
            logger.error("worker.keychain_plugin_failed", provider=name, package=package, reason=reason)
        else:
            logger.info("worker.keychain_plugin_loaded", provider=name, package=package)
            sources[name] = GuardedSource(source, package=package)
    return sources


class GuardedSource:
    """A source of somebody else's: its time is limited, and what it raises leaves the entry unresolved."""

    def __init__(self, source: SecretSource, *, package: str, seconds: float = _RESOLVE_SECONDS) -> None:
        self._source = source
        self._package = package
        self._seconds = seconds

    async def resolve(self, request: SecretRequest) -> Secret:
        """What it says, if that is a secret."""
        try:
            async with asyncio.timeout(self._seconds):
                secret: object = await self._source.resolve(request)
        except NoetlError:
            raise
        except Exception as exc:  # Its text stays out: nobody knows what of it is secret.
            raise Unresolved(f"the package {self._package!r} failed with {type(exc).__name__}") from exc
        if not isinstance(secret, Secret):
            raise Unresolved(f"the package {self._package!r} gave a {type(secret).__name__} instead of a secret")
        return secret


def _settings_of(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    prefix = f"{SETTINGS_PREFIX}{name.upper().replace('-', '_').replace('.', '_')}_"
    return {key.removeprefix(prefix).lower(): value for key, value in variables.items() if key.startswith(prefix)}
