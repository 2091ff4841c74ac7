"""Texts of a call that do not stand in the playbook, or not readably: their templates may name anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from noetl_core.playbook.references import handed_on

_UNREAD: Final = frozenset({"script", "code_b64", "command_b64", "query_b64"})


def has_unread_texts(config: Mapping[str, object]) -> bool:
    """Whether something will be rendered or run that nobody can look through before the call."""
    code = config.get("code")
    return not _UNREAD.isdisjoint(config) or (isinstance(code, str) and handed_on(code) is not None)
