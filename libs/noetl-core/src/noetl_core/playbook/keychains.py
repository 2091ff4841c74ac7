"""Read the keychain."""

from __future__ import annotations

from noetl_core.canonical import JsonValue
from noetl_core.playbook.context_names import warn_if_shadowing
from noetl_core.playbook.fields import Fields
from noetl_core.playbook.findings import Findings
from noetl_core.playbook.keychain_vocabulary import KEYCHAIN_ENTRY
from noetl_core.playbook.model import KeychainEntry, KeychainScope
from noetl_core.playbook.source import Path


def read_keychain(root: Fields) -> dict[str, KeychainEntry]:
    """Every entry by name; of two with the same name the first one counts."""
    entries: dict[str, KeychainEntry] = {}
    for path, value in root.items("keychain"):
        entry = _read_entry(value, path, root.findings)
        if entry is None:
            continue
        if entry.name in entries:
            message = f"there is another entry {entry.name!r} in the keychain"
            root.findings.error("duplicate_label", message, (*path, "name"))
            continue
        warn_if_shadowing("keychain entry", entry.name, (*path, "name"), root.findings)
        entries[entry.name] = entry
    return entries


def _read_entry(value: JsonValue, path: Path, findings: Findings) -> KeychainEntry | None:
    if isinstance(value, dict):
        renamed = {older: today for older, today in KEYCHAIN_ENTRY.renamed.items() if today not in value}
        value = {renamed.get(key, key): child for key, child in value.items()}
    kind = value.get("kind") if isinstance(value, dict) else None
    section = KEYCHAIN_ENTRY.variants.get(kind, KEYCHAIN_ENTRY) if isinstance(kind, str) else KEYCHAIN_ENTRY
    fields = Fields.read(value, path, findings, section)
    if fields is None:
        return None
    name, kind = fields.text("name"), fields.text("kind")
    if name is None or kind is None:
        return None
    scope = fields.text("scope")
    return KeychainEntry(
        name=name,
        kind=kind,
        scope=KeychainScope.LOCAL if scope is None else KeychainScope(scope),
        auto_renew=fields.flag("auto_renew") or False,
        config={key: child for key, child in fields.values.items() if key not in KEYCHAIN_ENTRY.keys},
    )
