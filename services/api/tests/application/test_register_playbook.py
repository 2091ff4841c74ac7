"""What registration accepts depends on what the installation runs, and nothing that was accepted is refused later."""

import pytest
from noetl_api.application.playbooks import ParsedPlaybooks, RegisterPlaybook
from noetl_core.errors import PlaybookInvalid
from noetl_core.ports.event_log import Scope
from noetl_servicekit.callers import Caller, Role
from noetl_testkit.memory.catalog import InMemoryCatalog

SCOPE = Scope(tenant_id="t", organization_id="o")
ADA = Caller(name="ada", tenant_id="t", organization_id="o", role=Role.WRITER)
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: greeting}
workflow:
- step: greet
  tool: {kind: %s, name: "{{ who }}"}
"""


def registration(*plugin_kinds: str) -> tuple[InMemoryCatalog, RegisterPlaybook]:
    catalog = InMemoryCatalog()
    return catalog, RegisterPlaybook(catalog, next_id=lambda: 1, plugin_kinds=plugin_kinds)


@pytest.mark.parametrize(("kind", "code"), [("hello", "unknown_tool"), ("snowflake", "unsupported")])
async def test_kinds_of_plug_ins_are_accepted_where_workers_have_them(kind: str, code: str) -> None:
    _, register = registration()
    with pytest.raises(PlaybookInvalid) as refused:
        await register(ADA, SCOPE, PLAYBOOK % kind)
    assert [problem.code for problem in refused.value.problems] == [f"playbook.{code}"]

    _, register = registration("hello", "snowflake")
    assert (await register(ADA, SCOPE, PLAYBOOK % kind)).entry.path == "greeting"


async def test_what_was_registered_can_be_started_when_the_plug_in_is_named_no_longer() -> None:
    catalog, register = registration("hello")
    entry = (await register(ADA, SCOPE, PLAYBOOK % "hello")).entry

    source = await catalog.get(SCOPE, path="", version=0, catalog_id=entry.catalog_id)
    assert "greet" in (await ParsedPlaybooks().of(source)).steps
