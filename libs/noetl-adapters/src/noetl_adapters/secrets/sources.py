"""Chooses the source of encryption keys that an operator has configured, if any."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from noetl_core.credential_keys import KeysInvalid

from noetl_adapters.secrets.keys import FileKeys, KeyProvider, Report, StaticKeys

PROVIDER_GROUP: Final = "noetl.credential_keys"
"""Entry points of installed packages: each a function from the environment to a `KeyProvider`."""

ProviderFactory = Callable[[Mapping[str, str]], KeyProvider]


def key_provider(
    *,
    keys: str,
    keys_file: Path | None,
    provider: str,
    environment: Mapping[str, str],
    report: Report = lambda event, detail: None,
) -> KeyProvider | None:
    """The source that is set, None if none is; raises `KeysInvalid` if it has no keys."""
    if keys:
        return StaticKeys.from_text(keys)
    if keys_file is not None:
        return FileKeys(keys_file, report=report)
    if provider:
        return _provided(provider, environment)
    return None


def _provided(name: str, environment: Mapping[str, str]) -> KeyProvider:
    found = entry_points(group=PROVIDER_GROUP)
    if name not in found.names:
        known = ", ".join(sorted(found.names)) or "none"
        raise KeysInvalid(f"no installed package provides credential keys as {name!r}; known: {known}")
    factory: ProviderFactory = found[name].load()
    return factory(environment)
