"""Who asks api for heads is told whose they are: the token decides, and an export has to know."""

from __future__ import annotations

from typing import Any

import pytest
from noetl_contracts.clients import EvidenceClient
from noetl_core.ports.event_log import Scope
from noetl_testkit.compliance.event_log import ACME, RIVAL, start


@pytest.mark.parametrize(
    ("token", "named", "whose"),
    [("ada", None, ACME), ("rival", None, RIVAL), ("service", None, None), ("service", RIVAL, RIVAL)],
)
async def test_heads_are_listed_with_whose_they_are(
    api: Any, token: str, named: Scope | None, whose: Scope | None
) -> None:
    log = (await api.as_("service")).events
    for scope in (ACME, RIVAL):
        await start(log, scope=scope)

    page = await EvidenceClient(await api.channel(token)).list_streams(named)

    assert page.scope == whose
    assert len(page.heads) == (2 if whose is None else 1)
